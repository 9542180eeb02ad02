"""The sweep's runner resumes and writes its account; the toy experiments agree with theory."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from decoder.measure.prompts import OWN_PROMPTS, as_ids
from lab.experiments import EXPERIMENTS
from lab.experiments.quantised import QuantisedDrafts, in_form
from lab.experiments.sequence_length import BUNDLED, SequenceLength
from lab.experiments.speedups import SpeedupTable
from lab.experiments.toy import ToyLength, ToyTemperature
from lab.experiments.verifiers import TokenAgainstBlock
from lab.runner import Row, load_rows, number, run


class Squares:
    """Fails at one point until told otherwise."""

    number, name, question = "99", "squares", "What is n squared?"
    columns, hidden = ("square", "note"), ("note",)

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.measured: list[int] = []

    def points(self) -> list[Row]:
        return [{"n": n} for n in range(4)]

    def measure(self, point: Row) -> Row:
        if point["n"] == self.fails_at:
            raise KeyboardInterrupt
        self.measured.append(point["n"])
        return {"square": point["n"] ** 2 + 0.5, "note": None}

    def draw(self, rows: Sequence[Row], folder: Path) -> list[str]:
        (folder / "picture.png").write_bytes(b"png")
        return ["picture.png"]

    def reading(self, rows: Sequence[Row]) -> str:
        return f"The largest is {max(row['square'] for row in rows)}."


def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    first = Squares(fails_at=2)
    with pytest.raises(KeyboardInterrupt):
        run(first, tmp_path, progress=False)
    assert first.measured == [0, 1]
    second = Squares()
    folder = run(second, tmp_path, progress=False)
    assert second.measured == [2, 3]
    assert [row["square"] for row in load_rows(folder / "rows.csv")] == [0.5, 1.5, 4.5, 9.5]
    text = (folder / "README.md").read_text()
    assert "The largest is 9.5." in text and "![picture.png](picture.png)" in text and "torch" in text
    assert "| square |" in text and "note" not in text and "square,note" in (folder / "rows.csv").read_text()
    third = Squares()
    run(third, tmp_path, progress=False)
    assert third.measured == []


def test_fields_come_back_as_they_were() -> None:
    assert [number(text) for text in ("3", "0.25", "", "int4")] == [3, 0.25, None, "int4"]


def test_every_experiment_has_a_question_and_points() -> None:
    for key, make in EXPERIMENTS.items():
        experiment = make()
        assert key.startswith(experiment.number[:2]) and experiment.question.endswith((")", "?"))
        assert len({str(point) for point in experiment.points()}) == len(experiment.points()) >= 3


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs the plots extra")
@pytest.mark.parametrize("k", [2, 5])
def test_tokens_a_round_follow_the_geometric_model(k: int, tmp_path: Path) -> None:
    experiment = ToyLength()
    row = {"k": k} | experiment.measure({"k": k})
    assert abs(row["difference"]) < 0.35 and 0.3 < row["alpha"] < 0.95
    assert experiment.draw([row], tmp_path) and (tmp_path / "tokens-per-round.png").stat().st_size > 1000
    assert "differ from the model" in experiment.reading([row])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_acceptance_is_the_mean_overlap(temperature: float) -> None:
    row = ToyTemperature().measure({"temperature": temperature})
    assert abs(row["alpha"] - row["one_minus_tv"]) <= 2 * row["half_width"]


def test_narrow_weights_move_the_law_within_the_bound() -> None:
    """What is compared is what drafts: the packed weights, which a whole text fed at once would pass by."""
    experiment = QuantisedDrafts(tokens=12)
    experiment._sample_texts(as_ids(experiment.spec, OWN_PROMPTS[:1]))
    plain, same = experiment._overlaps_on_texts(in_form(experiment.spec.draft, "bfloat16"))
    narrow, distance = experiment._overlaps_on_texts(in_form(experiment.spec.draft, "int4"))
    assert narrow.shape == (4, 12) and float(same.max()) < 1e-5
    assert float(distance.mean()) > 0.01
    assert bool(((narrow - plain).abs() <= distance + 1e-5).all())


def test_block_is_measured_against_token() -> None:
    row = TokenAgainstBlock(rows=8, seeds=3, tokens=40).measure({"pair": "toy, noise 0.1", "k": 1})
    assert row["gain_percent"] == pytest.approx(0.0, abs=1e-9) and 0.3 < row["alpha"] < 1  # one rule at k = 1


def test_lengths_continue_one_place_of_a_text(tmp_path: Path) -> None:
    text = "The fox went over the hill and looked at the moon. " * 200
    (tmp_path / "book.txt").write_text(text)
    experiment = SequenceLength([tmp_path / "book.txt"], tokens=8)
    points = experiment.points()
    assert [point["context"] for point in points] == list(BUNDLED)
    (short,), (long,) = experiment.prompts(points[0]), experiment.prompts(points[-1])
    assert len(short) == BUNDLED[0] and len(long) == BUNDLED[-1] and long[-len(short) :] == short
    rows = [point | experiment.measure(point) for point in points[:2]]
    assert all(row["plain_ms_per_token"] > 0 and 0 <= row["alpha"] <= 1 for row in rows)
    reading = experiment.reading([rows[0] | {"speedup": 0.9}, rows[1] | {"speedup": 1.2}])
    assert "between 32 and 64" in reading and "faster at 64" in reading
    with pytest.raises(ValueError, match="name files with --texts"):
        SequenceLength().prompts(points[0])
    (tmp_path / "short.txt").write_text("Once upon a time. " * 20)
    with pytest.raises(ValueError, match="fewer than 448"):
        SequenceLength([tmp_path / "short.txt"]).prompts(points[-1])


def _method(name: str, ratio: float, pace: float | None = None) -> Row:
    found: Row = {"name": name, "vs_baseline": [ratio, ratio - 0.1, ratio + 0.1], "vs_hf": [3.0, 2.0, 4.0]}
    return found | {"tokens_per_iteration": pace}


def test_the_table_of_speedups_repeats_its_sources(tmp_path: Path) -> None:
    place = {"date": "2026-01-01", "command": "specdec bench --out y"}
    methods = [_method("a", 1.5, 1.5), _method("speculative b", 2.0, 2.5), _method("hf-lookup", 3.0)]
    groups = {"chat": [{"name": "n", "vs_baseline": 0.7}], "all": [_method("n", 0.8, 1.2)]}
    entries = {
        "01-pairs": {"title": "pair, greedy", **place, "methods": methods},
        "09-another-runtime": {"title": "plain only", **place, "methods": [_method("baseline", 1.0)]},
        "10-compare": {"title": "silent", **place, "methods": [_method("quiet", 1.3, 1.0)]},
        "11-drafters": {"title": "big", **place, "modes": {"greedy": groups}},
    }
    for folder, entry in entries.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "summary.json").write_text(json.dumps({"run": entry, "other": {"rows": [], **place}}))
    folder = run(SpeedupTable(tmp_path), tmp_path, progress=False)
    rows = {row["work"]: row for row in load_rows(folder / "rows.csv")}
    assert {work: row["best_method"] for work, row in rows.items()} == {"pair, greedy": "b", "silent": "quiet"} | {
        "big, greedy": "n"
    }
    whole = rows["big, greedy"]
    assert [whole[name] for name in ("vs_plain", "lower", "upper", "vs_generate")] == pytest.approx(
        [0.8, 0.7, 0.9, 3.0]
    )
    text = (folder / "README.md").read_text()
    assert "gains in 1 " in text and "loses in 1: 11-drafters/run greedy (0.80x). In 1 it hardly drafted" in text
    assert "| 01-pairs/run " in text and "| 11-drafters/run greedy " in text
    with pytest.raises(ValueError, match="no measurement to collect"):
        SpeedupTable(tmp_path / "elsewhere")
