"""How far a lookup's proposal is worth verifying: cut where it will hardly hold, silent where it does not pay.

Every proposal of a table is compared with the text that really came, whether or not it was put before the target: a
lookup costs microseconds, so a silent drafter goes on proposing to itself and no verification is spent on probing. Per
kind of evidence two moving averages are kept, the share of proposals whose first token held and the share of further
tokens that held after it,

    first <- first + (held - first) W,   further <- further + (held - further) W,

so token i of a proposal holds with chance first * further^(i-1). It is proposed while that is at least `min_chance`,
and the whole proposal only if the chances of what is left of it sum to `min_gain`. Both are functions of the committed
text alone, hence of the past, so the decision keeps the output distribution; and they do not depend on what another
drafter proposed in between.

The hopes that each kind begins with are what longest matches were worth in 256 greedy tokens of SmolLM2-135M-Instruct
on each of forty prompts of six kinds: they matter for the first dozen proposals of a text.

Does not know what a verification costs; on hardware where checking five tokens costs much more than one, raise
`min_gain` towards (t(k + 1) - t(1)) / t(1), and `min_chance` towards the price of one token more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_WEIGHT = 0.15  # W: of the newest outcome in an average
_LENGTHS = (1, 2, 3, 5, 8)  # least tokens of a match of strength 1, 2, ...
# What `first` and `further` begin with, by strength.
_HOPES = (
    (0.15, 0.5),
    (0.3, 0.6),
    (0.45, 0.65),
    (0.6, 0.75),
    (0.75, 0.85),
    (0.93, 0.95),
)  # (first, further) by strength
_DIVIDED = 0.5  # share of a context's occurrences below which its best continuation is as good as a guess


def strength(matched: int, share: float = 1.0) -> int:
    """The kind of evidence behind a proposal: a match of so many tokens, followed so in this share of its occurrences.

    0 where the occurrences disagree, else 1 to 5 by the length of the match.
    """
    return 0 if share < _DIVIDED else sum(matched >= least for least in _LENGTHS)


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
    min_chance: least chance of a token that is proposed, the first apart; 0 never shortens.
    """

    def __init__(self, min_gain: float, min_chance: float = 0.0) -> None:
        self._min_gain, self._min_chance = min_gain, min_chance
        self._first: dict[int, float] = {}
        self._further: dict[int, float] = {}
        self._open: _Open | None = None

    def chances(self, kind: int, count: int) -> list[float]:
        """Of the first `count` tokens of a proposal to hold."""
        hope = _HOPES[min(kind, len(_HOPES) - 1)]
        chance, further = self._first.get(kind, hope[0]), self._further.get(kind, hope[1])
        found = []
        for _ in range(count):
            found.append(chance)
            chance *= further
        return found

    def review(self, context: Sequence[int]) -> None:
        """Settle the open proposal against the committed text, if that is long enough to tell."""
        if self._open is None:
            return
        came = context[self._open.start : self._open.start + len(self._open.tokens)]
        agreed = common_prefix(self._open.tokens, came)
        if agreed == len(came) < len(self._open.tokens):
            return
        self._learn(self._open.kind, agreed, len(self._open.tokens))
        self._open = None

    def _learn(self, kind: int, agreed: int, count: int) -> None:
        first, further = _HOPES[min(kind, len(_HOPES) - 1)]
        old = self._first.get(kind, first)
        self._first[kind] = old + _WEIGHT * (float(agreed > 0) - old)
        if agreed == 0:
            return
        further = self._further.get(kind, further)
        for held in [1.0] * (agreed - 1) + [0.0] * (agreed < count):
            further += _WEIGHT * (held - further)
        self._further[kind] = further

    def offer(self, start: int, tokens: Sequence[int], kind: int) -> list[int]:
        """As much of the proposal for position `start` as pays, perhaps nothing; either way it is on trial now."""
        if self._open is None and tokens:
            self._open = _Open(start, tuple(tokens), kind)
        chances = self.chances(kind, len(tokens))
        worth = [chance for i, chance in enumerate(chances) if i == 0 or chance >= self._min_chance]
        return list(tokens[: len(worth)]) if sum(worth) >= self._min_gain else []
