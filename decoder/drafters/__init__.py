"""L3: drafters, one file each. A new one is a file here and a line in `DRAFTERS`."""

from decoder.drafters.cascade import CascadeDrafter
from decoder.drafters.memory import SuffixMemory
from decoder.drafters.model import ModelDrafter
from decoder.drafters.ngram import NgramDrafter
from decoder.drafters.none import NoDrafter
from decoder.drafters.recycle import RecycleDrafter
from decoder.drafters.suffix import SuffixDrafter
from decoder.types import Drafter

DRAFTERS: dict[str, type[Drafter]] = {
    "cascade": CascadeDrafter,
    "model": ModelDrafter,
    "ngram": NgramDrafter,
    "none": NoDrafter,
    "recycle": RecycleDrafter,
    "suffix": SuffixDrafter,
}

__all__ = [
    "DRAFTERS",
    "CascadeDrafter",
    "ModelDrafter",
    "NgramDrafter",
    "NoDrafter",
    "RecycleDrafter",
    "SuffixDrafter",
    "SuffixMemory",
]
