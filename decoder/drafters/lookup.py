"""What drafters that look a continuation up have in common: rows, limits, patience, one padded proposal.

A lookup drafter holds a table per row and no model. Its proposals are functions of the row's past, so they carry no
distribution (q is one-hot) and are exact under every verifier.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from typing_extensions import Self

from decoder.checks import at_least, in_range
from decoder.drafters.patience import Patience
from decoder.types import Draft, Drafter, RandomSource, Warp, ragged


class Table(Protocol):
    """What one row knows."""

    def extend(self, context: Sequence[int]) -> None:
        """Take in the committed tokens that are new since the last call."""
        ...

    def continuation(self, context: Sequence[int], k: int) -> tuple[list[int], int]:
        """Up to k tokens to follow the context, and the kind of evidence behind them (`patience.strength`)."""
        ...


def padded_draft(found: Sequence[Sequence[int]]) -> Draft:
    """Deterministic proposals of different lengths as one `Draft`."""
    return Draft(ragged(found), [len(tokens) for tokens in found])


class LookupDrafter(Drafter):
    """Base of the drafters without a model. A subclass writes `open`.

    max_k: longest proposal; None leaves it to the caller's k.
    min_gain: tokens a proposal must bring on average, else the drafter falls silent; 0 never does.
    min_chance: a proposal ends before the first token whose chance to hold is below this; 0 never shortens.
    """

    deterministic = True

    def __init__(self, *, max_k: int | None = None, min_gain: float = 0.25, min_chance: float = 0.1) -> None:
        self.max_k = None if max_k is None else at_least("max_k", max_k, 1)
        self.min_gain = in_range("min_gain", min_gain, 0.0, float("inf"))
        self.min_chance = in_range("min_chance", min_chance, 0.0, 1.0)
        self._tables: list[Table] = []
        self._patience: list[Patience] = []

    @abstractmethod
    def open(self, context: Sequence[int]) -> Table:
        """The table of a new row with this prompt; `extend` feeds it the prompt."""

    def start(self, contexts: Sequence[Sequence[int]], warp: Warp, random: RandomSource, limit: int) -> Self:
        run = copy.copy(self)
        run._tables = [self.open(context) for context in contexts]
        run._patience = [Patience(self.min_gain, self.min_chance) for _ in contexts]
        return run

    def propose(self, contexts: Sequence[Sequence[int]], counts: Sequence[int]) -> Draft:
        return padded_draft([self._propose(b, context, counts[b]) for b, context in enumerate(contexts)])

    def _propose(self, b: int, context: Sequence[int], k: int) -> list[int]:
        table, patience = self._tables[b], self._patience[b]
        table.extend(context)
        patience.review(context)
        k = k if self.max_k is None else min(k, self.max_k)
        if k == 0:
            return []
        tokens, kind = table.continuation(context, k)
        return patience.offer(len(context), tokens, kind)

    def select(self, rows: Sequence[int]) -> None:
        self._tables = [self._tables[row] for row in rows]
        self._patience = [self._patience[row] for row in rows]
