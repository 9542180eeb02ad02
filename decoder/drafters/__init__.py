"""L3: drafters, one file each. A new one is a file here and a line in `DRAFTERS`."""

from decoder.drafters.cascade import CascadeDrafter
from decoder.drafters.crosstokenizer import CrossTokenizerDrafter
from decoder.drafters.eagle import EagleDrafter
from decoder.drafters.layerskip import LayerSkipDrafter
from decoder.drafters.memory import SuffixMemory
from decoder.drafters.model import ModelDrafter
from decoder.drafters.ngram import NgramDrafter
from decoder.drafters.none import NoDrafter
from decoder.drafters.quantized import QuantizedDrafter
from decoder.drafters.recycle import RecycleDrafter
from decoder.drafters.reduced import ReducedVocabularyDrafter
from decoder.drafters.suffix import SuffixDrafter
from decoder.types import Drafter

DRAFTERS: dict[str, type[Drafter]] = {
    "cascade": CascadeDrafter,
    "crosstokenizer": CrossTokenizerDrafter,
    "eagle": EagleDrafter,
    "layerskip": LayerSkipDrafter,
    "model": ModelDrafter,
    "ngram": NgramDrafter,
    "none": NoDrafter,
    "quantized": QuantizedDrafter,
    "recycle": RecycleDrafter,
    "reduced": ReducedVocabularyDrafter,
    "suffix": SuffixDrafter,
}

__all__ = [
    "DRAFTERS",
    "CascadeDrafter",
    "CrossTokenizerDrafter",
    "EagleDrafter",
    "LayerSkipDrafter",
    "ModelDrafter",
    "NgramDrafter",
    "NoDrafter",
    "QuantizedDrafter",
    "RecycleDrafter",
    "ReducedVocabularyDrafter",
    "SuffixDrafter",
    "SuffixMemory",
]
