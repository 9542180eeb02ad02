"""Measuring from outside: interleaved timing, medians and intervals, profiles, advice. Ordinary runs use none."""

from decoder.measure.statistics import Interval, Spread, bootstrap_ratio, spread
from decoder.measure.timing import Counts, Method, RunOutput, Sample, interleaved, synchronise

__all__ = [
    "Counts",
    "Interval",
    "Method",
    "RunOutput",
    "Sample",
    "Spread",
    "bootstrap_ratio",
    "interleaved",
    "spread",
    "synchronise",
]
