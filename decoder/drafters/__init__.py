"""L3: drafters, one file each. A new one is a file here and a line in `DRAFTERS`."""

from decoder.drafters.model import ModelDrafter
from decoder.drafters.ngram import NgramDrafter
from decoder.drafters.none import NoDrafter
from decoder.types import Drafter

DRAFTERS: dict[str, type[Drafter]] = {
    "model": ModelDrafter,
    "ngram": NgramDrafter,
    "none": NoDrafter,
}

__all__ = ["DRAFTERS", "ModelDrafter", "NgramDrafter", "NoDrafter"]
