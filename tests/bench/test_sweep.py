"""The sweep's runner resumes and writes its account; the toy experiments agree with theory."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest

from decoder.bench.experiments import EXPERIMENTS
from decoder.bench.experiments.toy import ToyLength, ToyTemperature
from decoder.bench.sweep import Row, load_rows, number, sweep


class Squares:
    """Fails at one point until told otherwise."""

    number, name, question = "99", "squares", "What is n squared?"
    columns = ("square", "note")

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
        sweep(first, tmp_path, progress=False)
    assert first.measured == [0, 1]
    second = Squares()
    folder = sweep(second, tmp_path, progress=False)
    assert second.measured == [2, 3]
    assert [row["square"] for row in load_rows(folder / "rows.csv")] == [0.5, 1.5, 4.5, 9.5]
    text = (folder / "README.md").read_text()
    assert "The largest is 9.5." in text and "![picture.png](picture.png)" in text and "torch" in text
    third = Squares()
    sweep(third, tmp_path, progress=False)
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
