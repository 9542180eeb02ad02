"""What may be said of a handful of timings: medians, quartiles, and an interval for a ratio.

The interval of a speed-up is a percentile bootstrap over prompts (Efron 1979): prompts differ far more than repeats of
one prompt, so it is prompts that are drawn again, with all that was measured on them. Numbers in, numbers out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2000


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie, interpolated between neighbours."""
    if not values:
        raise ValueError("values is empty; a quantile needs at least one value.")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of `count` values."""

    median: float
    lower: float
    upper: float
    count: int


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), quantile(values, 0.25), quantile(values, 0.75), len(values))


@dataclass(frozen=True)
class Interval:
    """A ratio and the interval that holds it with probability `level`; None where one prompt is all there was."""

    ratio: float
    lower: float | None
    upper: float | None
    level: float = 0.95


def bootstrap_ratio(
    numerators: Sequence[float], denominators: Sequence[float], *, level: float = 0.95, seed: int = 0
) -> Interval:
    """sum(numerators) / sum(denominators), one pair a prompt, with a percentile interval over prompts drawn again.

    Raises:
        ValueError: no prompts, or sequences of different lengths.
    """
    if not numerators or len(numerators) != len(denominators):
        raise ValueError(
            f"{len(numerators)} numerators and {len(denominators)} denominators; give one of each for every prompt."
        )
    ratio = sum(numerators) / sum(denominators)
    count = len(numerators)
    if count == 1:
        return Interval(ratio, None, None, level)
    source = random.Random(seed)
    ratios = []
    for _ in range(RESAMPLES):
        drawn = source.choices(range(count), k=count)
        ratios.append(sum(numerators[i] for i in drawn) / sum(denominators[i] for i in drawn))
    tail = (1 - level) / 2
    return Interval(ratio, quantile(ratios, tail), quantile(ratios, 1 - tail), level)
