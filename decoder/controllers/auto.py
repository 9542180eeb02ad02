"""L1: `k="auto"`: the draft length that measures fastest, 0 where none does, with the loss bounded by a ledger.

Each round: R(k) from measured costs and acceptance (`experience`), k* = argmax R over a few lengths.
    k = 0 unless R(k*) > 1.03 R(0); k changes only where R(k*) > 1.03 R(k).
    v(1), the yardstick, is measured in the first two rounds of a decoder's life, then again with doubling gaps.
    While k = 0, drafting is tried for three rounds with doubling gaps, or sooner where a try costs next to nothing.
    No round drafts that the ledger cannot afford (`ledger`; proof in docs/never-slower.md).
Uses past rounds only, never this round's p, so the emitted law is the target's whatever it decides. Times are read from
the past too, so with sampling the text of a seed depends on the decisions; greedy text does not.
"""

from __future__ import annotations

import math

from decoder.controllers.costs import Costs
from decoder.controllers.experience import FIRST_GAP, LAST_GAP, LONGEST, Experience, speeds
from decoder.controllers.ledger import Ledger
from decoder.types import Step

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)  # few, because each needs its v(k + 1) measured
GAIN = 1.03
CLEAR = 1.4  # a gain that no error of the yardstick is likely to turn into a loss
_FIRST = 2  # the first try, before the drafter's time is known
_READING_GUESS = 0.5  # of the target's prefill: reading the prompt, before it is measured
_STAKE = 0.04  # of plain decoding the text to come: what may be risked on it
_DEEPER = 4  # how far beyond the deepest position seen a length may reach
_HOPE = [0.75**i for i in range(1, LONGEST + 1)]  # the acceptance a try hopes for
_CHEAP = 0.1  # plain rounds: a try that is expected to lose less need not wait for the doubling gaps
_CHEAP_SHARE = 0.01  # such tries may cost this share of the time
_TRY_ROUNDS = 3
_TRY_POSITIONS = 6.0  # what older acceptance counts for when drafting is tried again after a pause
_SETTLED = 16  # rounds of drafting after which it counts as having paid
_EVIDENCE = 30.0  # tested positions below which an unpromising draft is given one standard error of credit
_DELAY = 3.0  # a round this many times its well-known cost was interrupted from outside,
_DELAY_GAP = 16  # if no other was in as many rounds of drafting before it
_STANDS = 3  # rounds for which a settled decision is not computed anew; the ledger is asked all the same


class AutoLength:
    """The controller of one run, or of several that follow each other. `experience` belongs to the decoder.

    reads: the first proposal of a run reads the prompt.
    """

    def __init__(self, experience: Experience, *, reads: bool = False) -> None:
        self._experience = experience
        self._reads = reads
        self._prefill_s = 0.0
        self._reset()

    def _reset(self) -> None:
        self._ledger = Ledger(self._experience.saved_rounds)
        self._rows = 1
        self._k = 0  # the length in force
        self._clear = False  # drafting is faster by far
        self._missed = 0  # tokens the drafter has not read
        self._proposed = False  # in this run
        self._trying = False
        self._tries_left = 0  # rounds of the try under way
        self._next_try = 0  # plain rounds from which on the next try is due
        self._drafted_rounds = 0  # in a row
        self._since_delay = _DELAY_GAP
        self._room: int | None = None  # tokens the longest-lasting row may still emit
        self._stands = 0  # rounds for which the last decision stands
        self._risk = (0.0, 0.0)  # predicted seconds of the round decided on, and of a plain one

    # ---- deciding ----

    def next_length(self) -> int:
        with self._experience.lock:
            if self._stands > 0:
                self._stands -= 1
                return self._repeat()
            k = self._decide()
            self._stands = _STANDS if self._settled(k) else 0
            return k

    def _settled(self, k: int) -> bool:
        """The next rounds would be decided alike."""
        if k:
            return k == self._k and self._drafted_rounds >= _SETTLED
        waiting = self._next_try - self._experience.since_draft
        return not self._k and waiting > _STANDS

    def _repeat(self) -> int:
        due = self._k and self._plain_due()
        return self._k if self._k and not due and self._ledger.affords(*self._risk) else 0

    def _plain_due(self) -> bool:
        """Is v(1) to be measured again? Where drafting is clearly faster, an error of a third could change nothing."""
        costs = self._experience.costs(self._rows)
        return costs.plain_overdue if self._clear else costs.plain_due

    def _decide(self) -> int:
        experience = self._experience
        costs = experience.nearest_costs(self._rows)
        self._trying, self._next_try = False, 0
        if costs is None:
            return 0
        rates = speeds(costs, experience.acceptance.at_least(), experience.supply.at_least())
        lengths = self._lengths(costs)
        best = max(lengths, key=rates.__getitem__)
        if rates[best] <= GAIN * rates[0] and experience.acceptance.evidence < _EVIDENCE:
            hopeful = speeds(costs, experience.acceptance.optimistic(), experience.supply.at_least())
            likely = max(lengths, key=hopeful.__getitem__)
            if hopeful[likely] > GAIN * hopeful[0]:
                return likely if self._affords(costs, likely, hopeful) else 0
        if rates[best] <= GAIN * rates[0]:
            self._k = 0
            return self._try(costs, rates, lengths)
        self._tries_left = 0
        if not self._k or rates[best] > GAIN * rates[self._k]:
            self._k = best
        self._clear = rates[self._k] > CLEAR * rates[0]
        if self._plain_due():
            return 0
        return self._k if self._affords(costs, self._k, rates) else 0

    def _lengths(self, costs: Costs) -> list[int]:
        reach = self._experience.acceptance.deepest + _DEEPER if costs.draft else _FIRST
        return [k for k in LENGTHS if k <= reach]

    def _affords(self, costs: Costs, k: int, rates: list[float]) -> bool:
        """The ledger, and whether what the drafter must read first can come back before the text ends."""
        if self._reads and not costs.draft and not self._worth_reading(costs):
            return False
        reading_s = costs.reading_s(self._missed)
        if reading_s and self._room is not None and reading_s > 0.5 * self._room * (costs.plain_s - 1.0 / rates[k]):
            return False
        if not self._proposed:
            reading_s = 0.0  # reading the prompt is not the ledger's: the bound names it apart
        self._risk = (costs.round_s()[k] + reading_s, self._yardstick_s(costs))
        return self._ledger.affords(*self._risk)

    def _worth_reading(self, costs: Costs) -> bool:
        """Before anything is known of the drafter: is reading the prompt a small stake beside the text to come?"""
        stake_s = _READING_GUESS * self._prefill_s
        return self._room is None or stake_s <= _STAKE * self._room * costs.plain_s

    def _yardstick_s(self, costs: Costs) -> float:
        own = self._experience.plain_s(self._rows)
        return costs.plain_s if own is None else own

    def _try(self, costs: Costs, rates: list[float], lengths: list[int]) -> int:
        """Drafting does not seem to pay: 0, or now and then a length that could show otherwise."""
        experience = self._experience
        hope = speeds(costs, _HOPE, [1.0] * LONGEST)
        k = max(lengths, key=hope.__getitem__)
        round_s = costs.round_s()[k] + costs.reading_s(self._missed)
        self._next_try = self._gap(costs, rates, k)
        due = self._tries_left > 0 or experience.since_draft >= self._next_try
        if not due or not self._ledger.affords(round_s, self._yardstick_s(costs), probe=True):
            self._tries_left = 0
            return 0
        if not self._tries_left:
            self._tries_left = _TRY_ROUNDS
            if experience.since_draft >= FIRST_GAP:
                experience.acceptance.soften(_TRY_POSITIONS)
            experience.gap = min(2 * experience.gap, LAST_GAP)
        self._tries_left -= 1
        self._trying = True
        return k

    def _gap(self, costs: Costs, rates: list[float], k: int) -> int:
        """Plain rounds before the next try: doubling, but few where a try is expected to lose next to nothing."""
        loss = (1.0 - rates[k] / rates[0]) * costs.round_s()[k] / costs.plain_s  # in plain rounds
        doubling = self._experience.gap
        if loss >= _CHEAP:
            return doubling
        return min(doubling, max(1, math.ceil(_TRY_ROUNDS * loss / _CHEAP_SHARE)))

    # ---- learning ----

    def observe(self, step: Step) -> None:
        with self._experience.lock:
            if step.is_prefill:
                self._reset()
                self._prefill_s = step.wall_s
                self._experience.begin_run()
                self._missed = max(row.length for row in step.rows)
            elif step.cold:
                self._pass_over(step)
            else:
                self._learn(step)
            live = [row for row in step.rows if row.finish_reason is None]
            if len(live) != self._rows:
                self._rows, self._stands = len(live) or 1, 0
            rooms = [row.room for row in live if row.room is not None]
            self._room = max(rooms) if rooms else None

    def _pass_over(self, step: Step) -> None:
        """A round in which something was compiled: its times are nobody's, a width seen in it is as new as before."""
        self._stands = 0
        if any(row.drafted for row in step.rows):
            self._missed, self._proposed = 0, True
        else:
            self._missed += max(len(row.emitted) for row in step.rows)

    def _learn(self, step: Step) -> None:
        experience = self._experience
        costs = experience.costs(len(step.rows))
        emitted = {row.row: len(row.emitted) for row in step.rows}
        asked = [step.k if row.room is None else min(step.k, row.room + len(row.emitted) - 1) for row in step.rows]
        draft_s = step.draft_s  # costs no wait: the verdict was read after both models' work was done
        rest_s = max(step.wall_s - draft_s, 0.0)
        if not any(asked):
            self._ledger.record(emitted, step.wall_s, rest_s)
            costs.observe(0, None, rest_s, self._missed)
            experience.since_draft += 1
            self._drafted_rounds = 0
            self._missed += max(emitted.values())
            return
        width = max(len(row.drafted) for row in step.rows)
        spent_s = self._without_delay(costs, width, step.wall_s)
        if not self._proposed and not self._trying:
            spent_s -= costs.reading_part(width, draft_s, self._missed)
        yardstick_s = experience.plain_s(len(step.rows))
        yardstick_s = rest_s if yardstick_s is None else yardstick_s
        saved_s = self._ledger.saved_s
        self._ledger.record(emitted, spent_s, yardstick_s)
        experience.save((self._ledger.saved_s - saved_s) / max(yardstick_s, 1e-12))
        costs.observe(width, draft_s, rest_s, self._missed)
        experience.acceptance.observe(zip(step.rows, asked, strict=True))
        experience.supply.observe(max(asked), width)
        experience.since_draft, self._missed, self._proposed = 0, 0, True
        self._drafted_rounds += 1
        if self._drafted_rounds == _SETTLED:
            experience.gap = FIRST_GAP

    def _without_delay(self, costs: Costs, width: int, wall_s: float) -> float:
        """A rare delay of a round whose cost is well known would have met plain decoding too, so it is not charged."""
        self._since_delay += 1
        usual_s = costs.round_s()[width]
        known = costs.drafting_known(width) and self._proposed
        if not known or wall_s <= _DELAY * usual_s or self._since_delay <= _DELAY_GAP:
            return wall_s
        self._since_delay = 0
        return usual_s
