"""Experiment 08: the phases are the profile's, and what a drafted token costs comes in the order it must."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from lab.experiments import EXPERIMENTS
from lab.experiments.where_time_goes import SHOWN, WhereTimeGoes
from lab.runner import load_rows, run

ROOT = Path(__file__).parents[2]


class Short(WhereTimeGoes):
    def points(self):
        return [point for point in super().points() if point["dtype"] == "float32" and point["temperature"] == 1.0]


def test_the_sweep_measures_every_phase_and_writes_its_account(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = run(Short(prompts=1, tokens=16, repeats=1), tmp_path, progress=False)
    plain, drafted = load_rows(folder / "rows.csv")
    phases = [name for name in Short.columns if name.removesuffix("_ms").replace("_", " ") in SHOWN]
    assert len(phases) == len(SHOWN)
    assert all(drafted[name] > 0 for name in phases)
    assert plain["draft_forwards_ms"] == 0 and plain["draft_step_ms"] is None
    assert 0 < plain["overhead_percent"] < 100 and 0 < drafted["overhead_percent"] < 100
    assert drafted["draft_step_ms"] > 0.5 * drafted["draft_alone_ms"] > 0
    assert drafted["target_fixed_ms"] > drafted["draft_fixed_ms"] > 0
    text = (folder / "README.md").read_text()
    assert "A draft forward takes" in text and (folder / "phases.png").stat().st_size > 0


def test_it_is_a_sweep_of_the_command() -> None:
    assert EXPERIMENTS["08"]().name == "where-time-goes"


@pytest.mark.slow
def test_a_tree_compared_with_itself_gives_the_same_tokens(tmp_path: Path) -> None:
    out = tmp_path / "same"
    command = "scripts/compare_revisions.py one=. other=. --limit 1 --repeats 1 --max-new-tokens 12 --k 2".split()
    subprocess.run([sys.executable, *command, "--out", str(out)], cwd=ROOT, check=True, capture_output=True)
    with out.with_suffix(".csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert [row["tree"] for row in rows] == ["one", "other"] * 4
    assert all(row["same_tokens"] == "1" for row in rows)
    assert all(float(row["speed_ratio"]) == 1.0 for row in rows[::2])
