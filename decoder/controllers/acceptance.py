"""L1: how many drafted tokens survive, and how many the drafter supplies.

A_i = P(at least i of the tokens asked for are drafted and accepted), estimated from prod_{j<=i} min(1, p_j/q_j) at the
drafted tokens. Its mean over x ~ q is the chance that token verification keeps i tokens, and it is less noisy than the
verdict (Leviathan et al. 2023, arXiv 2211.17192, section 3). Block verification keeps no fewer, so there it errs on the
safe side. Where no ratio is known (greedy match) the verdict itself is used: accepted >= i.

Rounds of different length are pooled through the conditional rates a_i = A_i / A_{i-1}, both sums over the rounds that
asked for depth i, so within rounds of one length the product telescopes to the plain moving average. Rates at rarely
reached depths lean on the rate pooled over depths. A token asked for but not drafted counts as not accepted, by a share
kept apart, so that a drafter that seldom finds anything is not taken for one that guesses badly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from decoder.types import RowStep

_KEEP = 0.98  # weight left to the past after a round
_PRIOR_RATE = 0.75  # where nothing is known a draft deserves a try
_PRIOR_POSITIONS = 5.0
_LEAN = 2.0  # positions that the pooled rate counts for at each depth


def survival(row: RowStep) -> list[float]:
    """prod_{j<=i} min(1, p_j/q_j) for the drafted tokens i = 1, 2, ..."""
    if not row.overlap:
        return [float(i < row.accepted) for i in range(len(row.drafted))]
    products, product = [], 1.0
    for chance in row.overlap:
        product *= chance
        products.append(product)
    return products


class Acceptance:
    """The moving estimate of A_1 ... A_most."""

    def __init__(self, most: int) -> None:
        self._passed = [0.0] * most  # sums of prod_{j<=i}
        self._tested = [0.0] * most  # sums of prod_{j<i} where token i was drafted
        self._wanted = [0.0] * most  # the same where token i was asked for
        self._pooled = [_PRIOR_RATE * _PRIOR_POSITIONS, _PRIOR_POSITIONS]  # passed and tested over all depths
        self.deepest = 0  # asked for so far

    def observe(self, rows: Iterable[tuple[RowStep, int]]) -> None:
        """One round: each row and how many tokens were asked for it."""
        self._weigh(_KEEP)
        for row, asked in rows:
            self.deepest = max(self.deepest, asked)
            before = 1.0
            for i, product in enumerate(survival(row)[:asked]):
                self._passed[i] += product
                self._tested[i] += before
                self._wanted[i] += before
                self._pooled[0] += product
                self._pooled[1] += before
                before = product
            if len(row.drafted) < asked:
                self._wanted[len(row.drafted)] += before

    def _weigh(self, share: float) -> None:
        for sums in (self._passed, self._tested, self._wanted, self._pooled):
            sums[:] = [share * value for value in sums]

    def soften(self, positions: float) -> None:
        """Let the past count for no more than this many tested positions: something may have changed."""
        self._weigh(min(1.0, positions / max(self._pooled[1], 1e-9)))

    @property
    def alpha(self) -> float:
        """The chance of a tested token, pooled over depths."""
        return self._pooled[0] / self._pooled[1]

    @property
    def evidence(self) -> float:
        """Tested positions that still count."""
        return self._pooled[1]

    def optimistic(self) -> list[float]:
        """alpha^i with alpha one standard error up: what a few unlucky rounds may have hidden."""
        alpha = self.alpha
        alpha = min(1.0, alpha + math.sqrt(alpha * (1.0 - alpha) / (self.evidence + 1.0)))
        return [alpha**i for i in range(1, len(self._passed) + 1)]

    def at_least(self) -> list[float]:
        """A_1 ... A_most."""
        lean = _LEAN * self.alpha
        chances, chance = [], 1.0
        for passed, tested, wanted in zip(self._passed, self._tested, self._wanted, strict=True):
            chance *= (tested + 1.0) / (wanted + 1.0) * (passed + lean) / (tested + _LEAN)
            chances.append(chance)
        return chances


class Supply:
    """S_n = P(the widest row of a round holds at least n tokens | n were asked for): 1 for a draft model, less for
    a drafter that finds nothing (n-gram) or stops early."""

    def __init__(self, most: int) -> None:
        self._drafted = [1.0] * most  # one round's worth of benefit of the doubt
        self._asked = [1.0] * most

    def observe(self, asked: int, width: int) -> None:
        """At depth n + 1 only rounds that reached depth n speak: rates, chained like the A_i."""
        for n in range(min(asked, width + 1)):
            self._asked[n] = _KEEP * self._asked[n] + 1.0
            self._drafted[n] = _KEEP * self._drafted[n] + float(n < width)

    def at_least(self) -> list[float]:
        """S_1 ... S_most."""
        shares, share = [], 1.0
        for drafted, asked in zip(self._drafted, self._asked, strict=True):
            share *= drafted / asked
            shares.append(share)
        return shares
