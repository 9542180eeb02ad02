"""docs/lossless.md: every claim names a test (that the tests exist, test_notes.py checks)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "lossless.md"
PROMISE = (
    "EOS, stop string, sliding window, recurrent, cache, context limit, penalty, num_beams, use_cache, dtype, "
    "streamer, interrupt, threads, 300 calls, flat time, at random, out of memory, full disk, corrupt, pickle, <script>"
)
ROWS = [
    cells
    for line in DOCUMENT.read_text().splitlines()
    if line.startswith("|") and (cells := line.strip("| ").split(" | ")) and cells[0] not in ("claim", "---|---")
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_every_claim_names_a_test(row: list[str]) -> None:
    assert len(row) == 2, "a claim and its tests"
    assert re.search(r"`tests/[\w/]+\.py::test_\w+`", row[1])


def test_no_part_of_the_promise_is_left_out() -> None:
    assert len(ROWS) >= 40
    text = DOCUMENT.read_text()
    for word in PROMISE.split(", "):
        assert word in text, f"{word} is not covered"
