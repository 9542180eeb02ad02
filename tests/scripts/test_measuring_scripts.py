"""The measuring scripts run, small, on the bundled pair; what they measure here means nothing."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from decoder.models.tiny import tiny_paths

ROOT = Path(__file__).parents[2]


def run(script: str, *arguments: str) -> int:
    main = runpy.run_path(str(ROOT / script))["main"]
    before = sys.argv
    sys.argv = [script, *arguments]
    try:
        return int(main(list(arguments)) or 0)
    finally:
        sys.argv = before


def test_offload(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = str(tiny_paths().target)
    small = ("--limit", "1", "--max-new-tokens", "6", "--repeats", "1", "--k", "2")
    assert run("scripts/measure_offload.py", "--target", folder, *small, "--out", str(tmp_path / "table")) == 0
    printed = capsys.readouterr().out
    assert "int4 copy in memory" in printed and "speculative" in printed
    assert (tmp_path / "table.json").exists()


def test_compare(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--limit", "1", "--max-new-tokens", "8", "--repeats", "1", "--k", "2", "--dtype", "float32")
    assert run("examples/compare.py", *small) == 0
    printed = capsys.readouterr().out
    for word in ("hf-assisted", "baseline", "speculative", "tok/s", "overhead s", "identical"):
        assert word in printed


def test_compare_with_another_drafter_and_sampling(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--limit", "1", "--max-new-tokens", "8", "--repeats", "1", "--temperature", "0.8")
    assert run("examples/compare.py", "--drafter", "ngram", *small) == 0
    assert "hf-lookup" in capsys.readouterr().out


def test_compare_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("examples/compare.py", "--target", "./no/such/folder") == 2
    assert "no/such/folder" in capsys.readouterr().err


def test_sweep_lists_its_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("scripts/sweep.py", "--list") == 0
    assert "quantised" in capsys.readouterr().out
