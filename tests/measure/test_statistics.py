"""Medians, quartiles and bootstrap intervals, against numpy and against their own meaning."""

from __future__ import annotations

import random

import numpy
import pytest

from decoder.measure.statistics import bootstrap_ratio, quantile, spread


def test_quantiles_are_numpy_s() -> None:
    source = random.Random(1)
    for count in (1, 2, 3, 10, 31):
        values = [source.gauss(0, 3) for _ in range(count)]
        for share in (0.0, 0.1, 0.25, 0.5, 0.9, 1.0):
            assert quantile(values, share) == pytest.approx(numpy.quantile(values, share))


def test_a_spread_holds_median_and_quartiles() -> None:
    found = spread([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (found.lower, found.median, found.upper, found.count) == (2.0, 3.0, 4.0, 5)


def test_no_values_no_quantile() -> None:
    with pytest.raises(ValueError, match="at least one"):
        quantile([], 0.5)


def test_the_ratio_is_that_of_the_sums() -> None:
    assert bootstrap_ratio([1.0, 9.0], [1.0, 3.0]).ratio == pytest.approx(2.5)


def test_equal_prompts_leave_no_doubt_and_one_prompt_no_interval() -> None:
    same = bootstrap_ratio([2.0] * 5, [1.0] * 5)
    assert (same.lower, same.ratio, same.upper) == (2.0, 2.0, 2.0)
    alone = bootstrap_ratio([2.0], [1.0])
    assert (alone.ratio, alone.lower, alone.upper) == (2.0, None, None)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """40 prompts a trial, true ratio 1.5: 95 % intervals miss in some 5 of 100 trials; 15 would be out of line."""
    source = random.Random(3)
    missed = 0
    for trial in range(100):
        below = [source.uniform(0.5, 1.5) for _ in range(40)]
        above = [1.5 * each * source.uniform(0.6, 1.4) for each in below]
        found = bootstrap_ratio(above, below, seed=trial)
        assert found.lower is not None and found.upper is not None
        missed += not found.lower <= 1.5 <= found.upper
    assert 1 <= missed <= 15


def test_pairs_are_needed() -> None:
    with pytest.raises(ValueError, match="1 numerators and 2"):
        bootstrap_ratio([1.0], [1.0, 2.0])
