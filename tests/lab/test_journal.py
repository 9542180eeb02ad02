"""A measurement in pieces: what was written is read again, and cannot be mixed with another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from decoder.measure.timing import Counts, Sample
from lab.journal import Journal, checksums

SETTINGS = {"k": 4, "limit": None, "names": ["a", "b"]}


def test_samples_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.samples.jsonl"
    journal = Journal(path, SETTINGS)
    plain = Sample("hf", 1, 0, 0.25, checksums([5, 6]))
    own = Sample("ngram", 1, 0, 0.125, checksums([5, 7]), Counts(drafted=8, accepted=3, prefill_s=0.5))
    journal.add("greedy", "qa", plain)
    journal.add("greedy", "qa", own)
    again = Journal(path, SETTINGS)
    assert again.samples == {("greedy", 0, "qa", 1, "hf"): plain, ("greedy", 0, "qa", 1, "ngram"): own}


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "run.samples.jsonl"
    Journal(path, SETTINGS)
    with pytest.raises(ValueError, match=r"other settings \(k\)"):
        Journal(path, SETTINGS | {"k": 5})


def test_checksums_agree_as_far_as_the_texts() -> None:
    one, other = checksums([4, 5, 6, 7]), checksums([4, 5, 9, 7])
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, True, False, False]
    assert checksums([]) == ()
