"""What a person needs to show that a drafter, verifier or controller of their own is lossless."""

from decoder.testing.enumeration import Case, assert_exact, enumerate_law, law_error
from decoder.testing.law import exact_law, library_law, table_next, total_variation
from decoder.testing.lossless import LosslessReport, check_greedy, check_lossless
from decoder.testing.replay import ReplayRows

__all__ = [
    "Case",
    "LosslessReport",
    "ReplayRows",
    "assert_exact",
    "check_greedy",
    "check_lossless",
    "enumerate_law",
    "exact_law",
    "law_error",
    "library_law",
    "table_next",
    "total_variation",
]
