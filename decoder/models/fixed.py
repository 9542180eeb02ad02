"""`invariant=True`: after the prefill every forward has one shape, so its kernels sum in the same order for every k.

In bfloat16 a forward of five tokens rounds differently from five forwards of one; where every forward feeds `width`
tokens and reads the same number of slots, the logits of a token are the same bits whatever it was fed with.
Padding sits at later positions: no real token sees it, and what it writes is overwritten before it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from decoder.models.cache import PositionCache
from decoder.models.features import FeatureTape
from decoder.models.hf import CausalModel, CausalSession

INVARIANT_K = 8  # the longest draft that there is room for


def check_invariant(k: Any, attention: str) -> None:
    """Whether every forward can have one shape.

    Raises:
        ValueError: a draft length that does not fit, or attention that takes no explicit mask.
    """
    if k == "auto" or k > INVARIANT_K:
        raise ValueError(f"invariant=True serves draft lengths up to {INVARIANT_K}, not k={k!r}; give a smaller k.")
    if attention not in ("eager", "sdpa"):
        raise ValueError(
            f"invariant=True needs attn_implementation 'eager' or 'sdpa', not {attention!r}; reload the model."
        )


class FixedWidthModel:
    """A `CausalModel` whose runs are `FixedWidthSession`s, one row at a time."""

    can_batch = False

    def __init__(self, model: CausalModel) -> None:
        self._inner = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, rows: int, limit: int, cache: PositionCache | None = None) -> FixedWidthSession:
        """As `CausalModel.open`."""
        return FixedWidthSession.open(self._inner, rows, limit, cache)


class FixedWidthSession:
    """Implements `ModelSession`: forwards after the first feed `width` tokens and read `slots` slots."""

    def __init__(self, inner: CausalSession, width: int, slots: int) -> None:
        self._inner, self._width, self._slots = inner, width, slots
        self._prefilled = False
        self.vocab_size = inner.vocab_size

    @classmethod
    def open(
        cls, model: CausalModel, rows: int, limit: int, cache: PositionCache | None, width: int = INVARIANT_K + 1
    ) -> Self:
        """As `CausalModel.open`; the padding may lie beyond `limit`."""
        slots = limit + width
        return cls(model.open(rows, slots, cache), width, slots)

    @property
    def model(self) -> CausalModel:
        return self._inner.model

    @property
    def cache(self) -> PositionCache:
        return self._inner.cache

    def record(self, layers: Sequence[int]) -> FeatureTape:
        """As `CausalSession.record`: what padding leaves lies beyond what is read."""
        return self._inner.record(layers)

    @property
    def lengths(self) -> list[int]:
        return self._inner.lengths

    def feed(self, tokens: Tensor, starts: Sequence[int], at: Sequence[int] | None = None) -> Tensor:
        if not self._prefilled:
            self._prefilled = True
            return self._inner.feed(tokens, starts, at)
        count = tokens.shape[1]
        assert count <= self._width, f"{count} tokens do not fit into a fixed width of {self._width}"
        padded = torch.nn.functional.pad(tokens, (0, self._width - count))
        with self.cache.pinned_to(self._slots):
            logits = self._inner.feed(padded, starts)[:, :count]
        if at is None:
            return logits
        return logits[torch.arange(len(at), device=logits.device), torch.tensor(at, device=logits.device)].unsqueeze(1)

    def commit(self, lengths: Sequence[int]) -> None:
        self._inner.commit(lengths)

    def select(self, rows: Sequence[int]) -> None:
        self._inner.select(rows)
