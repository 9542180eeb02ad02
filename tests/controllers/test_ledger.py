"""The ledger alone, over random histories: credit never exceeds plain decoding's time, and the rule bounds the loss."""

from __future__ import annotations

import random

import pytest

from decoder.controllers.ledger import ALLOWANCE_ROUNDS, EPSILON, Ledger


def plain_time(lengths: list[int], round_s: list[float]) -> float:
    """Plain decoding: one round for each token of the longest row, priced by the rows still live."""
    return sum(round_s[sum(length >= n for length in lengths)] for n in range(1, max(lengths) + 1))


def random_history(rng: random.Random, gate: bool) -> tuple[Ledger, float, float]:
    """A run whose drafting rounds cost and emit at random: (ledger, plain time, worst excess of a drafting round)."""
    lengths = [rng.randint(1, 60) for _ in range(rng.randint(1, 5))]
    round_s = [0.0]
    for _ in lengths:  # y(B) does not fall with B
        round_s.append(max(round_s[-1], 1.0) + rng.random() * 0.3)
    done = [0] * len(lengths)
    ledger, worst = Ledger(), 0.0
    while any(have < want for have, want in zip(done, lengths, strict=True)):
        live = [b for b, want in enumerate(lengths) if done[b] < want]
        plain_s = round_s[len(live)]
        cost_s = plain_s * rng.choice([0.7, 1.1, 2.0, 6.0])
        predicted_s = cost_s if rng.random() < 0.7 else plain_s
        drafts = rng.random() < 0.8 and (not gate or ledger.affords(predicted_s, plain_s))
        emitted = {b: min(rng.randint(1, 4) if drafts else 1, lengths[b] - done[b]) for b in live}
        for b, count in emitted.items():
            done[b] += count
        ledger.record(emitted, cost_s if drafts else plain_s, plain_s)
        if drafts:
            worst = max(worst, cost_s - (1.0 + EPSILON) * plain_s)
    return ledger, plain_time(lengths, round_s), max(worst, 0.0)


@pytest.mark.parametrize("gate", [True, False])
def test_credit_never_exceeds_plain_decoding(gate: bool) -> None:
    rng = random.Random(1)
    for _ in range(300):
        ledger, plain_s, _ = random_history(rng, gate)
        assert ledger.credit_s <= plain_s * (1 + 1e-12)


def test_the_rule_bounds_the_time() -> None:
    rng = random.Random(2)
    broken = 0
    for _ in range(300):
        ledger, plain_s, worst_s = random_history(rng, gate=True)
        allowance_s = ALLOWANCE_ROUNDS * (1.0 + 5 * 0.3)
        assert ledger.spent_s <= (1 + EPSILON) * plain_s + allowance_s + worst_s + 1e-9
        free, plain_s, worst_s = random_history(rng, gate=False)
        broken += free.spent_s > (1 + EPSILON) * plain_s + allowance_s + worst_s
    assert broken > 10  # without the rule the same histories break the bound, so the rule is what keeps it


def test_without_surprises_one_row_stays_within_epsilon_and_allowance() -> None:
    ledger = Ledger()
    for _ in range(500):
        drafts = ledger.affords(3.0, 1.0)
        ledger.record({0: 1}, 3.0 if drafts else 1.0, 1.0)
    assert ledger.credit_s == pytest.approx(500.0)
    assert ledger.spent_s <= (1 + EPSILON) * 500 + ALLOWANCE_ROUNDS + 1e-9
    assert ledger.spent_s > 500 + 8  # and what it allows is used


def test_a_plain_round_is_its_own_credit() -> None:
    ledger = Ledger()
    for seconds in (1.0, 7.0, 0.2):
        ledger.record({0: 1, 1: 1}, seconds, seconds)
    assert ledger.spent_s == ledger.credit_s == pytest.approx(8.2)


def test_credit_follows_the_slowest_row() -> None:
    ledger = Ledger()
    ledger.record({0: 1, 1: 5}, 2.0, 1.0)
    assert ledger.credit_s == 1.0
    ledger.record({0: 4, 1: 1}, 2.0, 1.0)
    assert ledger.credit_s == 5.0
    ledger.record({1: 1}, 2.0, 0.5)  # row 0 has ended; row 1 is at 7 tokens
    assert ledger.credit_s == 6.0


def test_a_probe_may_not_use_the_allowance_nor_past_gains() -> None:
    ledger = Ledger()
    assert ledger.affords(4.0, 1.0) and not ledger.affords(4.0, 1.0, probe=True)
    for _ in range(20):
        ledger.record({0: 5}, 1.0, 1.0)  # a gain of 80 seconds
    assert ledger.affords(2.9, 1.0, probe=True)  # 2 % of the 100 s of credit
    assert not ledger.affords(3.1, 1.0, probe=True)
