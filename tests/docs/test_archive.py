"""experiments/: pages, pictures and small summaries only; links lead somewhere; marked tables are the summaries'."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
FOLDERS = sorted(path for path in EXPERIMENTS.iterdir() if path.is_dir())
PAGES = sorted(EXPERIMENTS.rglob("*.md"))
WRITTEN_BY_TRAINING = {"figures.json", "target_curve.csv", "draft_curve.csv"}
DATA_LIMIT = 200_000  # bytes of all summaries together


def load_summarise() -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("summarise", ROOT / "scripts" / "summarise.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def data_files() -> list[Path]:
    return [path for path in EXPERIMENTS.rglob("*") if path.suffix in (".json", ".csv", ".jsonl")]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_holds_pages_pictures_and_a_summary(folder: Path) -> None:
    names = {path.name for path in folder.iterdir() if path.suffix not in (".md", ".png")}
    assert (folder / "README.md").is_file()
    assert names and names <= {"summary.json", "rows.csv"} | WRITTEN_BY_TRAINING
    assert f"({folder.name}/)" in (EXPERIMENTS / "README.md").read_text(encoding="utf-8")


def test_the_data_is_small_and_holds_no_samples() -> None:
    assert sum(path.stat().st_size for path in data_files()) < DATA_LIMIT
    for path in data_files():
        assert not re.search(r'"(token_ids|samples)"', path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(EXPERIMENTS)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!\w+:)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert not [target for target in targets if not (page.parent / target).exists()]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs" / "drafters.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_marked_tables_are_those_of_the_summaries(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert load_summarise().with_tables(text) == text, f"run: python scripts/summarise.py {page.relative_to(ROOT)}"


def record(**method: Any) -> dict[str, Any]:
    """A measurement as a report is written, with one method beside `generate`."""
    spread = {"median": 2.0, "lower": 1.0, "upper": 3.0, "count": 6}
    speedups = {"hf": {"ratio": 1.23456789, "lower": 1.0, "upper": 1.5}}
    rates = {"acceptance_rate": 0.5, "alpha": 0.6, "tokens_per_iteration": 2.5, "overhead_share": 0.02}
    mine = {"name": "ours", "tokens_per_second": 2.0, "spread": spread, "speedups": speedups, **rates, "agreement": {}}
    return {
        "title": "a title",
        "plan": {"max_new_tokens": 8, "params": {"temperature": 0.0}},
        "environment": {
            "command": "specdec bench",
            "date": "2026-01-01T00:00:00",
            "processor": "one",
            "threads": 2,
            "cores": 2,
            "versions": {"torch": "2", "transformers": "5"},
        },
        "notes": ["a note", "ours differs from hf in 1 of 2 outputs"],
        "methods": [mine | method],
        "samples": [{"token_ids": [1, 2]}],
    }


def test_a_summary_keeps_the_figures_and_drops_the_samples() -> None:
    summarise = load_summarise()
    entry = summarise.reduce(record())
    (ours,) = entry["methods"]
    assert ours["vs_hf"] == [1.23457, 1.0, 1.5] and ours["overhead_percent"] == 2.0 and ours["runs"] == 6
    assert entry["command"] == "specdec bench" and entry["notes"] == ["a note"]
    assert "token_ids" not in summarise.text({"run": entry})
    with pytest.raises(ValueError, match="neither `methods` nor `groups`"):
        summarise.reduce({"rows": []})


def test_a_new_measurement_replaces_its_entry_and_reaches_the_table(tmp_path: Path, monkeypatch: Any) -> None:
    summarise = load_summarise()
    monkeypatch.setattr(summarise, "EXPERIMENTS", tmp_path)
    folder = tmp_path / "99-trial"
    folder.mkdir()
    page = folder / "README.md"
    page.write_text("# 99\n\n<!-- table: 99-trial/run -->\n<!-- end -->\n\nafter\n")
    for speed in (7.0, 4.0):
        (tmp_path / "run.json").write_text(json.dumps(record(tokens_per_second=speed)))
        summarise.main([str(folder), str(tmp_path / "run.json")])
    assert "4.000" in page.read_text() and "7.000" not in page.read_text() and page.read_text().endswith("after\n")
    assert list(json.loads((folder / "summary.json").read_text())) == ["run"]
