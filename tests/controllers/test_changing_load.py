"""k="auto" on a machine that others use too: everything becomes twice as slow, or as fast, at times of its own."""

from __future__ import annotations

import random

import pytest
from simulated_machine import SHAPES, Machine, Outcome, best_rate, expected_tokens, play

from decoder.controllers import AutoLength, Experience
from decoder.controllers.costs import Costs


def load(seed: int, rounds: int = 4000) -> list[float]:
    """How slow each round is: 0.6 to 2.4 times as slow as usual, for 5 to 80 rounds at a time."""
    rng, trace = random.Random(seed), []
    while len(trace) < rounds:
        trace += [rng.choice((0.6, 1.0, 1.0, 1.5, 2.4))] * rng.randint(5, 80)
    return trace


def machine(shape: str, c: float, trace: list[float], noise: float = 0.0) -> Machine:
    return Machine(SHAPES[shape], c, noise=noise, speed=lambda index: trace[index])


def steady_efficiency(outcome: Outcome, steady: Machine, alpha: float) -> float:
    """The speed that the chosen lengths would have on the machine alone, over the best fixed length's."""
    seconds = sum(k * steady.c + steady.verify(k + 1) for k in outcome.lengths)
    return sum(expected_tokens(k, alpha) for k in outcome.lengths) / seconds / best_rate(steady, alpha)[0]


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("c", [0.05, 0.14, 0.4])
def test_a_hopeless_draft_costs_little_under_a_changing_load(shape: str, c: float) -> None:
    """Times that were measured in a slow moment must not make drafting look free in a fast one."""
    for seed in range(6):
        trace, experience, spent, plain = load(seed), Experience(), 0.0, 0.0
        for call in range(6):
            outcome = play(AutoLength(experience), machine(shape, c, trace[call * 128 :]), 0.0, 128, seed, greedy=True)
            spent += outcome.seconds
            plain += sum(trace[call * 128 + 1 : call * 128 + 129])
        assert spent <= plain / 0.95, (seed, plain / spent)


@pytest.mark.parametrize("shape", ["flat", "sloped", "late_cliff"])
@pytest.mark.parametrize("noise", [0.0, 0.08])
def test_a_good_draft_is_used_under_a_changing_load(shape: str, noise: float) -> None:
    found = []
    for seed in range(6):
        trace, experience, offset = load(seed), Experience(), 0
        for _ in range(5):
            watched = machine(shape, 0.14, trace[offset:], noise)
            outcome = play(AutoLength(experience), watched, 0.88, 128, seed)
            offset += len(outcome.lengths)
            found.append(steady_efficiency(outcome, watched, 0.88))
    assert sum(found[1:]) / len(found[1:]) >= 0.9
    assert min(found[1:]) >= 0.65


def test_a_slower_machine_is_slower_at_every_width() -> None:
    """What one width shows of the load holds for those not visited meanwhile."""
    costs = Costs(4)
    for _ in range(12):
        costs.observe(0, None, 1.0, 0)
        costs.observe(3, 0.3, 1.2, 0)
    for _ in range(8):
        costs.observe(3, 0.6, 2.4, 0)
    assert costs.plain_s == pytest.approx(2.0, rel=0.1)
    assert costs.round_s()[3] == pytest.approx(3.0, rel=0.1)


def test_a_single_delay_is_not_a_load() -> None:
    costs = Costs(4)
    for _ in range(12):
        costs.observe(0, None, 1.0, 0)
    costs.observe(0, None, 30.0, 0)
    costs.observe(0, None, 1.0, 0)
    costs.observe(0, None, 1.0, 0)
    assert costs.plain_s == pytest.approx(1.0, rel=0.1)


def test_no_width_is_cheaper_than_a_single_token() -> None:
    """v(m) does not fall with m, so a yardstick above another point is out of date."""
    costs = Costs(4)
    costs.observe(0, None, 1.5, 0)
    costs.observe(0, None, 1.5, 0)
    for _ in range(2):
        costs.observe(1, 0.1, 1.0, 0)
    assert costs.plain_s <= 1.05
