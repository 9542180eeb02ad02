"""A_i from the ratios at drafted tokens, from verdicts where there are none, and with drafters that supply less."""

from __future__ import annotations

import random

import pytest

from decoder.controllers.acceptance import Acceptance, Supply, survival
from decoder.types import RowStep


def row(overlap: tuple[float, ...] = (), accepted: int = 0, drafted: int | None = None) -> RowStep:
    count = len(overlap) if drafted is None else drafted
    return RowStep(0, (1,) * count, accepted, (1,) * (accepted + 1), None, overlap)


def test_survival_multiplies_ratios_and_falls_back_to_the_verdict() -> None:
    assert survival(row((0.5, 1.0, 0.5))) == [0.5, 0.5, 0.25]
    assert survival(row((), accepted=2, drafted=4)) == [1.0, 1.0, 0.0, 0.0]
    assert survival(row()) == []


@pytest.mark.parametrize("greedy", [False, True])
def test_every_depth_is_estimated_without_bias(greedy: bool) -> None:
    """Acceptance that jumps with depth, rounds of several lengths in turn, averaged over time against the truth. What
    bias is allowed for comes from rarely reached depths leaning on the pooled rate."""
    rates = [0.9, 0.7, 0.8, 0.4, 0.6, 0.6]
    truth = [1.0]
    for rate in rates:
        truth.append(truth[-1] * rate)
    rng, estimate, sums, count = random.Random(3), Acceptance(6), [0.0] * 6, 0
    for number in range(6000):
        k = (2, 6, 4, 6)[number % 4]
        ratios = tuple(spread(rates[i], rng) for i in range(k))
        passed = [rng.random() < ratio for ratio in ratios]
        accepted = passed.index(False) if False in passed else k
        estimate.observe([(row(() if greedy else ratios, accepted, k), k)])
        if number > 200:
            count += 1
            sums = [total + value for total, value in zip(sums, estimate.at_least(), strict=True)]
    means = [total / count for total in sums]
    assert means == pytest.approx(truth[1:], abs=0.035)


def spread(mean: float, rng: random.Random) -> float:
    """A ratio in [0, 1] of this mean."""
    if mean < 0.5:
        return 2 * mean * rng.random()
    return 1.0 if rng.random() < 2 * mean - 1 else rng.random()


def test_ratios_are_less_noisy_than_verdicts() -> None:
    def variance(greedy: bool) -> float:
        rng, estimate, seen = random.Random(5), Acceptance(4), []
        for _ in range(2000):
            ratios = tuple(spread(0.7, rng) for _ in range(4))
            passed = [rng.random() < ratio for ratio in ratios]
            accepted = passed.index(False) if False in passed else 4
            estimate.observe([(row(() if greedy else ratios, accepted, 4), 4)])
            seen.append(sum(estimate.at_least()))
        mean = sum(seen) / len(seen)
        return sum((value - mean) ** 2 for value in seen) / len(seen)

    assert variance(greedy=False) < 0.7 * variance(greedy=True)


def test_a_seldom_drafter_is_not_taken_for_a_bad_one() -> None:
    rng, estimate = random.Random(7), Acceptance(4)
    for _ in range(400):
        found = rng.random() < 0.2
        estimate.observe([(row((0.9,) * 4 if found else ()), 4)])
    chances = estimate.at_least()
    assert chances[0] == pytest.approx(0.18, abs=0.06)
    assert chances[3] / chances[0] == pytest.approx(0.9**3, abs=0.08)
    assert estimate.alpha == pytest.approx(0.9, abs=0.02)


def test_depths_never_reached_lean_on_the_pooled_rate() -> None:
    estimate = Acceptance(8)
    for _ in range(100):
        estimate.observe([(row((0.8, 0.8)), 2)])
    assert estimate.at_least()[7] == pytest.approx(0.8**8, rel=0.05)
    assert estimate.deepest == 2


def test_softened_experience_yields_to_a_few_new_rounds() -> None:
    stubborn, softened = Acceptance(4), Acceptance(4)
    for estimate in (stubborn, softened):
        for _ in range(200):
            estimate.observe([(row((0.1,) * 4), 4)])
    softened.soften(3.0)
    assert softened.at_least()[0] == pytest.approx(stubborn.at_least()[0], abs=0.02)
    for estimate in (stubborn, softened):
        estimate.observe([(row((1.0,) * 4), 4)])
    assert softened.alpha > 0.55 > 0.3 > stubborn.alpha


def test_little_evidence_leaves_room_for_doubt() -> None:
    few, many = Acceptance(4), Acceptance(4)
    few.observe([(row((0.5, 0.5)), 2)])
    for _ in range(300):
        many.observe([(row((0.5, 0.5)), 2)])
    assert few.evidence < 8 < 50 < many.evidence
    assert few.optimistic()[0] > few.alpha + 0.1
    assert many.optimistic()[0] == pytest.approx(0.5, abs=0.07)
    assert many.optimistic()[2] == pytest.approx(many.optimistic()[0] ** 3)


def test_rows_of_a_batch_are_pooled() -> None:
    estimate = Acceptance(2)
    for _ in range(100):
        estimate.observe([(row((1.0, 1.0)), 2), (row((0.5, 1.0)), 2), (row((0.0, 1.0)), 2)])
    assert estimate.at_least()[0] == pytest.approx(0.5, abs=0.02)


def test_supply_learns_what_the_drafter_gives() -> None:
    supply = Supply(4)
    assert supply.at_least() == [1.0] * 4
    for number in range(300):
        supply.observe(4, 4 if number % 4 == 0 else 0)
    shares = supply.at_least()
    assert shares[0] == pytest.approx(0.25, abs=0.03)
    assert shares[3] == pytest.approx(shares[0], rel=0.05)  # all or nothing
