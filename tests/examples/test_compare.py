"""The example that a newcomer runs first: a story, the greedy check, the table, and no noise of transformers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "compare.py"


def test_it_shows_a_story_a_check_and_a_table_and_nothing_else() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0 and done.stderr == ""
    story, told, table = re.split(r"\n\n(?=[\d.]+ tokens per target|method )", done.stdout)
    assert story.startswith("Once upon a time") and len(story.split()) > 60
    assert len(set(story.split())) > 0.5 * len(story.split()), "a greedy loop, not a story"
    assert "with and without speculation: 4 of 4" in told
    for word in ("hf", "hf-assisted", "baseline", "speculative model k=4"):
        assert f"\n{word} " in table
    assert not re.search(r"(?i)warning|deprecat|it/s|Loading", done.stdout)


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 50
