"""L1: the ledger of one run: what speculation may still cost.

    spent - credit <= epsilon * credit + allowance          before a round may draft

`spent` is the measured time of the rounds. `credit` is what plain decoding would have needed for the same progress:
every token by which the *slowest* live row has advanced, times v(1) for the rows then live. A round that drafts nothing
is plain decoding, so its credit is its own time. The bound this gives, and its proof: docs/never-slower.md.
"""

from __future__ import annotations

from collections.abc import Mapping

EPSILON = 0.02
ALLOWANCE_ROUNDS = 4.0  # the fixed allowance, in plain rounds
SAVED_ROUNDS = 8.0  # the most that a run may lose of what earlier ones have saved


class Ledger:
    """saved_rounds: plain rounds that earlier runs have saved; they, at most `SAVED_ROUNDS`, may be lost again."""

    def __init__(self, saved_rounds: float = 0.0) -> None:
        self._allowance_rounds = ALLOWANCE_ROUNDS + min(max(saved_rounds, 0.0), SAVED_ROUNDS)
        self.spent_s = 0.0
        self.credit_s = 0.0
        self._advanced: dict[int, int] = {}  # tokens emitted per row since the prefill
        self._slowest = 0

    def record(self, emitted: Mapping[int, int], spent_s: float, plain_s: float) -> None:
        """One round: tokens per live row, its seconds, and v(1) for these rows: its own if it drafted nothing."""
        for row, count in emitted.items():
            self._advanced[row] = self._advanced.get(row, 0) + count
        slowest = max(self._slowest, min(self._advanced[row] for row in emitted))
        self.credit_s += (slowest - self._slowest) * plain_s
        self._slowest = slowest
        self.spent_s += spent_s

    @property
    def saved_s(self) -> float:
        """What speculation has saved in this run, negative where it has cost time."""
        return self.credit_s - self.spent_s

    def affords(self, round_s: float, plain_s: float, *, probe: bool = False) -> bool:
        """May a round of `round_s` seconds be risked, even if all it emits is one token a row?

        A probe is paid out of the epsilon share alone: the allowance is there to learn from and to be unlucky with.
        """
        allowance_s = 0.0 if probe else self._allowance_rounds * plain_s
        loss_s = max(self.spent_s - self.credit_s, 0.0) if probe else self.spent_s - self.credit_s
        worst_s = max(round_s - (1.0 + EPSILON) * plain_s, 0.0)
        return loss_s + worst_s <= EPSILON * self.credit_s + allowance_s
