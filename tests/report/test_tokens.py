"""The picture of one generation: every letter of every token is in it, in the look of its fate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from decoder import SpeculativeDecoder, cli
from decoder.report.tokens import RETURN, layout, token_picture
from decoder.results import GenerationResult

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def result() -> GenerationResult:
    found: Any = SpeculativeDecoder(temperature=0.0).generate("Once upon a time\nthere", max_new_tokens=40, k=4)
    return found  # type: ignore[no-any-return]


def test_each_letter_stands_in_the_style_of_its_token(result: GenerationResult) -> None:
    pieces = layout(result, 40)
    assert "".join(p.text for p in pieces if p.fate != "prompt") == result.text.replace("\n", RETURN)
    for fate in ("accepted", "recovered", "bonus"):
        told = "".join(text for text, name in zip(result.token_texts, result.fates, strict=True) if name == fate)
        assert "".join(p.text for p in pieces if p.fate == fate) == told.replace("\n", RETURN)
    assert all(p.column + len(p.text.rstrip(f" {RETURN}")) <= 40 for p in pieces)
    assert sum(p.begins for p in pieces) == 1 + result.num_iterations
    assert pieces[1].line == 0 and any(p.line == 1 and p.fate == "prompt" for p in pieces)


def test_looks_differ_without_colour(result: GenerationResult) -> None:
    (axes,) = token_picture(result).axes
    framed = [box for box in axes.patches if box.get_edgecolor()[3] > 0]
    underlined = [line for line in axes.lines if line.get_linewidth() > 2]
    pieces = layout(result, 84)
    for fate, marks in (("bonus", framed), ("recovered", underlined)):
        assert len(marks) == sum(p.fate == fate for p in pieces) + 1  # and one in the legend
    shown = "".join(text.get_text() for text in axes.texts)
    assert f"recovered{result.fates.count('recovered')}" in shown
    assert f"{len(result.token_ids)} tokens from {1 + result.num_iterations} target forwards" in shown


def test_what_cannot_be_shown_is_refused(result: GenerationResult) -> None:
    with pytest.raises(ValueError, match="no text to show"):
        token_picture(GenerationResult("", "", (1,), (), "length", 0.1, result.steps[:1], True))
    with pytest.raises(ValueError, match="columns=3 must be >= 20"):
        token_picture(result, columns=3)


def test_command_writes_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens.png"
    assert cli.main(["generate", "The king", "--max-new-tokens", "8", "--picture", str(path)]) == 0
    assert path.read_bytes()[:4] == b"\x89PNG" and "wrote" in capsys.readouterr().err
