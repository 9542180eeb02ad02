"""Measuring from outside, above the decoder: comparisons, profiles, advice. `import decoder` loads none of it."""

from decoder.measure.advising import advise
from decoder.measure.comparison import Comparison, ComparisonReport
from decoder.measure.methods import Plan, named, speculative
from decoder.measure.profiling import profile
from decoder.measure.quiet import quiet

__all__ = ["Comparison", "ComparisonReport", "Plan", "advise", "named", "profile", "quiet", "speculative"]
