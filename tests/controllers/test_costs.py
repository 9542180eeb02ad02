"""Measured costs: medians per point, honest estimates between and beyond, reading kept apart, the yardstick renewed."""

from __future__ import annotations

import pytest

from decoder.controllers.costs import Costs, Curve


def filled(points: dict[int, float], *, proportional: bool, most: int = 8) -> Curve:
    curve = Curve(most, proportional=proportional)
    for n, seconds in points.items():
        curve.add(n, seconds)
        curve.add(n, seconds)
    return curve


def test_a_point_is_the_median_of_its_latest_samples() -> None:
    curve = Curve(4, proportional=False)
    for seconds in [9.0] * 17 + [1.0] * 9:
        curve.add(2, seconds)
    assert curve.table()[2] == 1.0
    curve.add(2, 50.0)  # one delay changes nothing
    assert curve.table()[2] == 1.0


def test_one_slow_first_call_condemns_nothing() -> None:
    curve = filled({1: 1.0, 3: 1.2}, proportional=False)
    curve.add(5, 40.0)
    assert not curve.measured(5) and curve.table()[5] == 1.2
    curve.add(5, 1.4)
    assert curve.measured(5) and curve.table()[5] == pytest.approx(1.2 + 0.2 * 2 / 5)  # a step is believed by and by
    for _ in range(3):
        curve.add(5, 1.4)
    assert curve.table()[5] == 1.4


def test_what_lies_before_a_cliff_is_not_hidden_by_a_line() -> None:
    table = filled({1: 1.0, 5: 1.8}, proportional=False).table()
    assert table[2:5] == [1.0, 1.0, 1.0]
    assert table[6:] == [1.8, 1.8, 1.8]


def test_draft_steps_are_proportional() -> None:
    assert filled({2: 0.4}, proportional=True).table() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6])
    curve = filled({2: 0.5, 4: 0.7}, proportional=True)
    assert curve.table()[8] == pytest.approx(1.4, abs=0.1)  # a fixed part is doubted at first,
    for _ in range(50):
        curve.add(2, 0.5)
        curve.add(4, 0.7)
    assert curve.table()[2:5] == pytest.approx([0.5, 0.6, 0.7], abs=0.02)
    assert curve.table()[8] == pytest.approx(1.1, abs=0.1)  # and shows where two points are well known


def test_a_lucky_point_is_no_cheaper_than_what_lies_before_it() -> None:
    """Two quick samples at 5 do not make five tokens cheaper to verify than three: they share what was seen of both."""
    curve = filled({1: 1.0, 3: 1.3}, proportional=False)
    for _ in range(4):
        curve.add(3, 1.3)
    curve.add(5, 1.0)
    curve.add(5, 1.0)
    assert curve.table()[3] == curve.table()[5] == pytest.approx((6 * 1.3 + 2 * 1.0) / 8)
    assert curve.table()[1] == 1.0


def test_a_drafter_that_found_nothing_yet_still_has_a_cost() -> None:
    assert filled({0: 0.01}, proportional=True).table() == pytest.approx([0.01] * 9)


def test_points_not_visited_for_long_are_forgotten_but_not_the_yardstick() -> None:
    curve = filled({1: 1.0, 4: 3.0}, proportional=False)
    for _ in range(1300):
        curve.add(2, 1.1)
    assert not curve.measured(4) and curve.measured(1)


def test_an_empty_curve_costs_nothing() -> None:
    assert Curve(3, proportional=True).table() == [0.0] * 4 and not Curve(3, proportional=True)


def test_a_round_is_drafting_plus_verification() -> None:
    costs = Costs(4)
    for _ in range(2):
        costs.observe(0, None, 1.0, 0)
        costs.observe(3, 0.6, 1.5, 0)
    assert costs.plain_s == 1.0
    assert costs.round_s()[3] == pytest.approx(2.1)
    assert costs.round_s()[1] == pytest.approx(0.2 + 1.0)  # v(2) not measured: the left neighbour's


def test_reading_the_prompt_is_not_taken_for_drafting() -> None:
    costs = Costs(4)
    costs.observe(2, 50.4, 1.0, missed=100)
    assert not costs.draft and costs.reading_part(2, 50.4, 100) == 50.4  # not to be told apart yet
    costs.observe(2, 0.4, 1.0, missed=0)
    assert costs.draft.table()[2] == 0.4
    assert costs.reading_s(200) == pytest.approx(100.0)
    assert costs.reading_s(2) == 0.0
    assert costs.reading_part(2, 20.4, 40) == pytest.approx(20.0)


def test_the_yardstick_may_wait_where_little_depends_on_it() -> None:
    costs = Costs(4)
    for _ in range(2):
        costs.observe(0, None, 1.0, 0)
    for number in range(1, 33):
        costs.observe(2, 0.2, 1.0, 0)
        assert costs.plain_due == (number >= 8) and costs.plain_overdue == (number >= 32)


def test_the_yardstick_is_renewed_with_doubling_gaps() -> None:
    costs = Costs(4)
    costs.observe(0, None, 1.0, 0)
    assert not costs.plain_known
    costs.observe(0, None, 1.0, 0)
    assert costs.plain_known
    gaps, since = [], 0
    for _ in range(600):
        if costs.plain_due:
            costs.observe(0, None, 1.0, 0)
            gaps.append(since)
            since = 0
        else:
            costs.observe(2, 0.2, 1.0, 0)
            since += 1
    assert gaps == [8, 16, 32, 64, 128, 128, 128]
