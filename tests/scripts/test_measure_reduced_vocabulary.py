"""scripts/measure_reduced_vocabulary.py in pieces, on the bundled pair; what it measures here means nothing."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from decoder.models.tiny import tiny_paths

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "measure_reduced_vocabulary.py"))


def test_sizes_are_added_to_what_was_measured_before(tmp_path, capsys) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "reduced.json"
    prompts.write_text("".join(json.dumps({"prompt": f"The {name}"}) + "\n" for name in ("fox", "hen", "cat")))
    models = ["--target", str(tiny_paths().target), "--draft", str(tiny_paths().target), "--prompts", str(prompts)]
    small = [*models, "--rank-on", "1", "--new-tokens", "6", "--repeats", "1", "--out", str(out)]
    SCRIPT["main"]([*small, "--sizes", "256"])
    first = json.loads(out.read_text())["rows"]
    assert [row["tokens"] for row in first][:1] == [256] and len(first) == 2
    assert first[-1]["alpha"] == 1.0  # the target drafts for itself with its whole head
    SCRIPT["main"]([*small, "--sizes", "64", "256"])
    rows = json.loads(out.read_text())["rows"]
    assert rows[1:] == first and rows[0]["tokens"] == 64 and rows[0]["draft_step_s"] > 0
    assert "64" in capsys.readouterr().out
    assert "The fox" not in out.read_text()
    with pytest.raises(SystemExit, match="other options"):
        SCRIPT["main"]([*small, "--k", "2"])
