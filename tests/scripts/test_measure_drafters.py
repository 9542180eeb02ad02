"""scripts/measure_drafters.py in pieces, on the bundled pair; what it measures here means nothing."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "measure_drafters.py"))


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"category": group, "prompt": f"The {group} was"} for group in ("fox", "hen")]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [
        *("--by-category", str(prompts), "--drafters", "ngram", "model", "--modes", "greedy", "--repeats", "1"),
        *("--max-new-tokens", "6", "--out", str(tmp_path / "pair")),
    ]


def samples(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "pair.samples.jsonl").read_text().splitlines()[1:]]


def test_a_piece_stops_in_time_and_the_next_one_goes_on(small, tmp_path, capsys) -> None:
    SCRIPT["main"]([*small, "--seconds", "0"])
    assert samples(tmp_path) == []
    assert "10 runs are left" in capsys.readouterr().out
    SCRIPT["main"](small)
    first = samples(tmp_path)
    assert len(first) == 10 and len({(each["group"], each["sample"]["method"]) for each in first}) == 10
    assert "runs are left" not in capsys.readouterr().out
    SCRIPT["main"](small)
    assert samples(tmp_path) == first  # nothing was run again
    record = json.loads((tmp_path / "pair.json").read_text())
    assert [each["name"] for each in record["groups"]["greedy"]["fox"]] == [
        *("hf", "hf-lookup", "baseline", "ngram", "model")
    ]
    assert "The fox" not in (tmp_path / "pair.json").read_text() + (tmp_path / "pair.samples.jsonl").read_text()


def test_other_settings_do_not_mix(small, tmp_path) -> None:
    SCRIPT["main"]([*small, "--seconds", "0"])
    with pytest.raises(ValueError, match="max_new_tokens"):
        SCRIPT["main"]([*small, "--max-new-tokens", "7"])


def test_the_measurement_becomes_a_summary_with_tables(small, tmp_path) -> None:
    SCRIPT["main"](small)
    summarise = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "summarise.py"))
    entry = summarise["reduce"](json.loads((tmp_path / "pair.json").read_text()))
    groups = entry["modes"]["greedy"]
    rows = summarise["groups_table"](groups).splitlines()
    assert [cell.strip() for cell in rows[0].strip("|").split("|")] == ["over plain", "fox", "hen"]
    rows = summarise["overall_table"](groups["all"]).splitlines()
    assert [row.split("|")[1].strip() for row in rows[2:]] == ["hf", "hf-lookup", "baseline", "ngram", "model"]


def test_a_draft_of_another_tokenizer(small, tmp_path) -> None:
    """The target alone, drafted for by the bundled draft through text."""
    options = [each if each != "model" else "crosstokenizer" for each in small]
    SCRIPT["main"]([*options, "--foreign-draft", "tiny"])
    mine = [each for each in samples(tmp_path) if each["sample"]["method"] == "crosstokenizer"]
    assert len(mine) == 2 and all(len(each["checksums"]) == 6 for each in mine)
