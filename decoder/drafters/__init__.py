"""Drafters, one file each, loaded when first used. A new one is a file here and a line in `DRAFTERS`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from decoder.types import Drafter

if TYPE_CHECKING:
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


class _Registry(Mapping[str, type[Drafter]]):
    """Classes by name; the file `decoder/drafters/NAME.py` is imported when the name is looked up."""

    def __init__(self, **classes: str) -> None:
        self.classes = classes

    def __getitem__(self, name: str) -> type[Drafter]:
        kind = self.classes[name]
        found: type[Drafter] = getattr(import_module(f"decoder.drafters.{name}"), kind)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self.classes

    def __iter__(self) -> Iterator[str]:
        return iter(self.classes)

    def __len__(self) -> int:
        return len(self.classes)


DRAFTERS = _Registry(
    cascade="CascadeDrafter",
    crosstokenizer="CrossTokenizerDrafter",
    eagle="EagleDrafter",
    layerskip="LayerSkipDrafter",
    model="ModelDrafter",
    ngram="NgramDrafter",
    none="NoDrafter",
    quantized="QuantizedDrafter",
    recycle="RecycleDrafter",
    reduced="ReducedVocabularyDrafter",
    suffix="SuffixDrafter",
)

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


def __getattr__(name: str) -> Any:
    """`from decoder.drafters import NgramDrafter`."""
    if name == "SuffixMemory":
        return import_module("decoder.drafters.memory").SuffixMemory
    for drafter, known in DRAFTERS.classes.items():
        if known == name:
            return DRAFTERS[drafter]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
