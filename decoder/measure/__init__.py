"""L3: measuring from outside: interleaved timing, medians and intervals, profiles, advice. Ordinary runs use none."""

from decoder.measure.statistics import Interval, Spread, bootstrap_ratio, spread
from decoder.measure.timing import Counts, Method, Output, Sample, interleaved, synchronise

__all__ = [
    "Counts",
    "Interval",
    "Method",
    "Output",
    "Sample",
    "Spread",
    "bootstrap_ratio",
    "interleaved",
    "spread",
    "synchronise",
]
