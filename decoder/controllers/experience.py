"""L1: what a decoder has learnt about one drafter; outlives the runs, so that the second call starts well.

Costs are properties of models and device and are kept per batch size; acceptance and supply are kept too, but
acceptance loses weight when a run begins, because the next text may be of another kind. Runs in several threads share
one `Experience`: hold its `lock` while reading or writing.

    R(k) = E_k / cost_k,   E_k = 1 + sum_{i<=k} A_i,   cost_k = sum_n P(width n | k asked) (D(n) + v(n + 1))

in tokens per row and second; for a drafter that always supplies k tokens the cost is k t_d + t_v(k + 1) + t_o.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from decoder.controllers.acceptance import Acceptance, Supply
from decoder.controllers.costs import Costs
from decoder.controllers.ledger import SAVED_ROUNDS

LONGEST = 16
FIRST_GAP = 16  # plain rounds before drafting is tried again; doubles with each try that fails
LAST_GAP = 512
_NEW_RUN_GAP = 64  # a new text deserves a try within this many rounds
_NEW_RUN_POSITIONS = 24.0  # what acceptance seen in earlier runs counts for at the start of the next


def speeds(costs: Costs, chances: Sequence[float], shares: Sequence[float]) -> list[float]:
    """R(0) ... R(most) from the A_i and the S_n."""
    round_s = costs.round_s()
    found = [1.0 / max(costs.plain_s, 1e-12)]
    tokens, narrower_s, reached = 1.0, 0.0, 1.0
    for n, (chance, share) in enumerate(zip(chances, shares, strict=True), 1):
        tokens += chance
        narrower_s += (reached - share) * round_s[n - 1]
        reached = share
        found.append(tokens / max(narrower_s + reached * round_s[n], 1e-12))
    return found


class Experience:
    """Shared by the runs of one decoder with one drafter."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.acceptance = Acceptance(LONGEST)
        self.supply = Supply(LONGEST)
        self.gap = FIRST_GAP
        self.since_draft = 0  # plain rounds since the drafter was last asked, over all runs
        self.saved_rounds = 0.0  # by speculation, over all runs, in plain rounds; no more than the ledger can use
        self._costs: dict[int, Costs] = {}

    def begin_run(self) -> None:
        self.acceptance.soften(_NEW_RUN_POSITIONS)
        self.gap = min(self.gap, _NEW_RUN_GAP)
        self.saved_rounds = max(self.saved_rounds, 0.0)  # a debt is not carried over: the allowance is each run's

    def save(self, rounds: float) -> None:
        """One round's share, negative where it has cost time."""
        self.saved_rounds = min(self.saved_rounds + rounds, SAVED_ROUNDS)

    def costs(self, rows: int) -> Costs:
        """The record that rounds of this many rows are written to."""
        return self._costs.setdefault(rows, Costs(LONGEST))

    def nearest_costs(self, rows: int) -> Costs | None:
        """The record to decide with: this batch size's, or the nearest that knows more; None: v(1) is not known."""
        ranked = sorted(self._costs.items(), key=lambda item: abs(item[0] - rows))
        known = [costs for _, costs in ranked if costs.plain_known]
        return next((costs for costs in known if costs.draft), known[0] if known else None)

    def plain_s(self, rows: int) -> float | None:
        """v(1) for this many rows, or a lower bound from other batch sizes: a round costs no less for more rows, and no
        more per row."""
        own = self._costs.get(rows)
        if own is not None and own.plain_known:
            return own.plain_s
        known = [(n, costs.plain_s) for n, costs in self._costs.items() if costs.plain_known]
        return max((seconds * min(1.0, rows / n) for n, seconds in known), default=None)
