"""L3: a drafter whose proposals stop paying falls silent, and speaks again when they would pay.

Every proposal of a table is compared with the text that really came, whether or not it was put before the target: a
lookup costs microseconds, so a silent drafter goes on proposing to itself and no verification is spent on probing.
Per kind of proposal (say, the length of the match behind it) a moving average of the tokens that agreed,

    worth <- worth + (agreed - worth) / 4,

decides: the drafter speaks while worth >= min_gain. That is a function of the committed text alone, hence of the
past, so the decision keeps the target's law; and it does not depend on what another drafter proposed in between.

Does not know what a verification costs; on hardware where checking five tokens costs much more than one, raise
`min_gain` towards (t(k + 1) - t(1)) / t(1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_WEIGHT = 0.25  # of the newest proposal in the average
_CREDIT = 2.0  # a new kind starts at this multiple of min_gain: three failures silence it


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens agree."""
    agreed = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        agreed += 1
    return agreed


@dataclass(frozen=True)
class _Open:
    """A proposal whose worth is not known yet."""

    start: int
    tokens: Sequence[int]
    kind: int


class Patience:
    """One row's account of its own proposals.

    min_gain: tokens that a proposal must bring on average; 0 never falls silent.
    """

    def __init__(self, min_gain: float) -> None:
        self._min_gain = min_gain
        self._worth: dict[int, float] = {}
        self._open: _Open | None = None

    def worth(self, kind: int) -> float:
        """Moving average of agreeing tokens a proposal."""
        return self._worth.get(kind, _CREDIT * self._min_gain)

    def review(self, context: Sequence[int]) -> None:
        """Settle the open proposal against the committed text, if that is long enough to tell."""
        if self._open is None:
            return
        came = context[self._open.start : self._open.start + len(self._open.tokens)]
        agreed = common_prefix(self._open.tokens, came)
        if agreed == len(came) < len(self._open.tokens):
            return
        old = self.worth(self._open.kind)
        self._worth[self._open.kind] = old + _WEIGHT * (agreed - old)
        self._open = None

    def offer(self, start: int, tokens: Sequence[int], kind: int) -> list[int]:
        """The proposal for position `start` if its kind pays, else nothing; either way it is on trial now."""
        if self._open is None and tokens:
            self._open = _Open(start, tuple(tokens), kind)
        return list(tokens) if self.worth(kind) >= self._min_gain else []
