"""The target without some of its layers drafts for the target.

q is the distribution of the target's embeddings, a chosen subset of its layers, its final norm and its head: the very
tensors of the target, so no second model is loaded. A prefix of the layers ("early exit", LayerSkip, arXiv 2404.16710)
also shares the target's KV cache: the draft writes its keys and values where the target's verification will write the
same ones, so it needs no prefill and no memory at all. Any other subset (self-speculative decoding, arXiv 2309.08168;
SWIFT, arXiv 2410.06916) has a cache of its own for its layers.

Does not know which layers are good: `scripts/lab/layersearch.py` finds them on the person's prompts.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

from typing_extensions import Self

from decoder.drafters.model import ModelDrafter
from decoder.models.cache import LentCache
from decoder.models.hf import CausalModel, CausalSession
from decoder.models.sharing import check_layers, layer_subset
from decoder.types import ModelSession, RandomSource, Warp


def subset_model(target: CausalModel, layers: Sequence[int]) -> CausalModel:
    """The target's chosen layers as a draft of the same vocabulary."""
    model = CausalModel(layer_subset(target.model, layers), "draft", target.vocab_size, target.banned)
    model.layers = max(layers) + 1  # layers keep their cache index; those left out never allocate
    return model


def default_layers(count: int) -> list[int]:
    """Without a search: the outer quarters whole, and every second layer between them; of two layers the first."""
    if count == 2:
        return [0]
    outer = max(1, count // 4)
    return [layer for layer in range(count) if layer < outer or layer >= count - outer or (layer - outer) % 2 == 1]


class LayerSkipDrafter(ModelDrafter):
    """Drafts with some of the target's own layers.

    layers: how many of the first layers, or an ascending list of layer numbers. None takes the first and last quarter
        and every second layer between them, which is a guess: `search` does better.
    sample: as for `ModelDrafter`.  share_cache: False gives a prefix a cache of its own, too.
    """

    name = "layerskip"

    def __init__(
        self, layers: int | Sequence[int] | None = None, *, sample: bool = True, share_cache: bool = True
    ) -> None:
        super().__init__(cast(Any, None), sample=sample)  # the model is made by `bind`
        self.share_cache = share_cache
        self._asked = layers
        self._target: CausalModel | None = None
        self._lent: ModelSession | None = None
        self.layers: tuple[int, ...] = ()

    @classmethod
    def for_models(cls, target: Any, draft: Any) -> LayerSkipDrafter:
        return cls().bind(target, draft)

    def bind(self, target: Any, draft: Any) -> LayerSkipDrafter:
        """Build the module tree over the target's tensors, once for each target."""
        if self._target is target:
            return self
        count = int(target.model.config.get_text_config(decoder=True).num_hidden_layers)
        if count < 2:
            raise ValueError(
                "drafter='layerskip' needs a target of at least two layers; use drafter='quantized' or 'ngram'."
            )
        recipe = self if self._target is None else copy.copy(self)
        chosen = default_layers(count) if self._asked is None else check_layers(self._asked, count)
        recipe.layers, recipe._target = tuple(chosen), target
        recipe.model = subset_model(target, chosen)
        return recipe

    @property
    def is_prefix(self) -> bool:
        return self.layers == tuple(range(len(self.layers)))

    @property
    def reads(self) -> bool:  # type: ignore[override]
        return not (self.share_cache and self.is_prefix)

    def attach(self, target: ModelSession) -> LayerSkipDrafter:
        """A prefix of the layers of this very target reads and writes the target's cache."""
        if not (self.share_cache and self.is_prefix) or target.model is not self._target:
            return self
        run = copy.copy(self)
        run._lent = CausalSession(cast(CausalModel, self.model), LentCache(target.cache))
        return run

    def start(self, contexts: Sequence[Sequence[int]], warp: Warp, random: RandomSource, limit: int) -> Self:
        if self._target is None:
            raise ValueError(
                "LayerSkipDrafter is not bound to a target; give it to a SpeculativeDecoder, or call bind()."
            )
        return super().start(contexts, warp, random, limit)

    def _open(self, rows: int, limit: int) -> ModelSession:
        return super()._open(rows, limit) if self._lent is None else self._lent

    @property
    def kv_cache(self) -> Any:
        return None if self._lent is not None else super().kv_cache

    def _prefill(self, contexts: Sequence[Sequence[int]]) -> None:
        if self._lent is None:  # otherwise the target's prefill is the draft's
            super()._prefill(contexts)

    def keep(self, accepted: Sequence[int]) -> None:
        if self._lent is None:
            super().keep(accepted)

    def __repr__(self) -> str:
        if self._target is None:
            return f"LayerSkipDrafter(layers={self._asked!r}, not bound)"
        total = int(self._target.model.config.get_text_config(decoder=True).num_hidden_layers)
        cache = "the target's" if self.share_cache and self.is_prefix else "its own"
        return f"LayerSkipDrafter(layers={list(self.layers)} of {total}, weights shared, KV cache {cache})"
