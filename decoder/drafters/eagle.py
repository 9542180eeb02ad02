"""A head over the target's hidden states drafts (EAGLE, 2401.15077; EAGLE-3, 2503.01840; Medusa, 2401.10774).

The states come from the forwards that verify: a tape keeps those of the head's layers, and before the head drafts it
reads what was added since. Tokens it drafted itself it read with its own outputs for features; in the next round it
reads those of them that were accepted again, with the target's.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from torch import Tensor
from typing_extensions import Self

from decoder.drafters.model import ModelDrafter
from decoder.heads import FeatureHead
from decoder.heads.drafting import HeadModel, HeadSession
from decoder.heads.load import head_for
from decoder.heads.medusa import MedusaHeads, MedusaModel
from decoder.models.features import FeatureTape
from decoder.types import ModelSession


class EagleDrafter(ModelDrafter):
    """Drafts a chain with a feature head.

    head: a folder in any layout that `decoder.heads.load` reads, or a loaded `FeatureHead`; None takes the packaged
        head of this target.
    sample, stop_below: as for `ModelDrafter`.

    Raises:
        ValueError: no head for the target, or one of another target.
    """

    name = "eagle"
    _tape: FeatureTape | None = None

    def __init__(
        self, head: str | Path | FeatureHead | None = None, *, sample: bool = True, stop_below: float = 0.0
    ) -> None:
        super().__init__(cast(Any, None), sample=sample, stop_below=stop_below)  # the model is made by `bind`
        self._asked = head
        self._target: Any = None

    @classmethod
    def for_models(cls, target: Any, draft: Any) -> EagleDrafter:
        return cls().bind(target, draft)

    @classmethod
    def for_decoder(cls, decoder: Any) -> EagleDrafter:
        """With the head that the decoder was given."""
        return cls(decoder.head).bind(decoder.target_model, decoder.draft_model)

    def bind(self, target: Any, draft: Any) -> EagleDrafter:
        """Load the head and tie it to the target, once for each target."""
        if self._target is target:
            return self
        recipe = self if self._target is None else copy.copy(self)
        head = head_for(target.model, self._asked)
        kind = MedusaModel if isinstance(head, MedusaHeads) else HeadModel
        recipe._target = target
        recipe.model = kind(head, target.vocab_size, target.context_length, target.can_batch)  # type: ignore[arg-type]
        return recipe

    def attach(self, target: ModelSession) -> Self:
        """Have the target's forwards recorded from now on."""
        self._check_bound()
        run = copy.copy(self)
        run._tape = cast(Any, target).record(cast(HeadModel, self.model).head.feature_layers)
        return run

    def _check_bound(self) -> None:
        if self._target is None:
            raise ValueError("EagleDrafter is not bound to a target; give it to a SpeculativeDecoder, or call bind().")

    def _open(self, rows: int, limit: int) -> ModelSession:
        self._check_bound()
        return cast(HeadModel, self.model).open(rows, limit, self._cache, self._tape)

    def _prefill(self, contexts: Sequence[Sequence[int]]) -> None:
        """Nothing: the target's prefill, which leaves the features of the prompt, comes after."""

    def _catch_up(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        """Read every token whose predecessor's features came since; logits [B, 1, V] after each row's last token."""
        session = cast(HeadSession, self.session)
        session.catch_up()
        return super()._catch_up(contexts)

    def _budget(self, contexts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int]:
        most = cast(HeadModel, self.model).most
        return [k if most is None else min(k, most) for k in super()._budget(contexts, counts)]

    def keep(self, accepted: Sequence[int]) -> None:
        """Nothing drafted stays: accepted tokens are read again with the target's features."""
        self._width = 0

    def __repr__(self) -> str:
        if self._target is None:
            return f"EagleDrafter(head={self._asked!r}, not bound)"
        head = cast(HeadModel, self.model).head
        return f"EagleDrafter({type(head).__name__}, layers={list(head.feature_layers)})"
