"""Pictures: the numbers drawn are the numbers given, axes have units, and series differ without colour."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.models.toy import noisy_copy, toy_model
from decoder.report import figures
from decoder.report.laws import laws_of_text
from decoder.report.plots import acceptance_by_position, probability_agreement, speedup_over_k
from decoder.report.timeline import timeline, token_marks
from decoder.results import GenerationResult, RowRound
from decoder.types import SamplingParams

matplotlib = pytest.importorskip("matplotlib")


def result() -> GenerationResult:
    steps = (
        RowRound(0, (), 0, (1,), 0.5, 0.1, 0.4),
        RowRound(1, (2, 3, 4), 3, (2, 3, 4, 5), 0.060, 0.020, 0.030),
        RowRound(2, (2, 3, 4), 1, (2, 9), 0.050, 0.020, 0.030),
        RowRound(3, (), 0, (7,), 0.030, 0.0, 0.028),
    )
    ids = tuple(token for step in steps for token in step.emitted)
    return GenerationResult("", "", ids, (), "length", 0.7, steps, True)


def units(axes: object) -> list[str]:
    return [axes.get_xlabel(), axes.get_ylabel()]  # type: ignore[attr-defined]


def test_acceptance_bars_have_the_given_heights() -> None:
    rates = {"k=4": [0.9, 0.7, 0.5, 0.2], "k=2": [0.8, 0.6]}
    (axes,) = acceptance_by_position(rates, alpha=0.5).axes
    groups = axes.containers
    assert [bar.get_height() for group in groups for bar in group] == [0.9, 0.7, 0.5, 0.2, 0.8, 0.6]
    assert groups[0][0].get_hatch() != groups[1][0].get_hatch()
    assert axes.lines[0].get_ydata() == pytest.approx([0.5, 0.25, 0.125, 0.0625])
    assert all("[" in label for label in units(axes))


def test_acceptance_without_drafts_is_refused() -> None:
    with pytest.raises(ValueError, match="no acceptance per position"):
        acceptance_by_position({"baseline": ()})


def test_speedup_shows_measured_predicted_and_the_break_even() -> None:
    figure = speedup_over_k({4: 1.8, 2: 1.4}, {1: 1.1, 2: 1.5, 4: 1.9}, {4: (1.6, 2.1)})
    (axes,) = figure.axes
    measured, predicted, even = axes.containers[0].lines[0], axes.lines[-2], axes.lines[-1]
    assert list(measured.get_xdata()) == [2, 4] and list(measured.get_ydata()) == [1.4, 1.8]
    assert list(predicted.get_ydata()) == [1.1, 1.5, 1.9] and predicted.get_linestyle() == "--"
    assert set(even.get_ydata()) == {1.0}
    assert measured.get_marker() != predicted.get_marker()
    with pytest.raises(ValueError, match="measured is empty"):
        speedup_over_k({})


def test_timeline_draws_seconds_as_milliseconds() -> None:
    (axes,) = timeline(result()).axes
    draft, target = (
        [(path.get_extents().x0, path.get_extents().width) for path in lane.get_paths()] for lane in axes.collections
    )
    assert draft == [pytest.approx((0, 20)), pytest.approx((60, 20))]
    assert target == [pytest.approx((20, 30)), pytest.approx((80, 30)), pytest.approx((110, 28))]
    assert axes.get_xlim() == pytest.approx((0, 140)) and "[ms]" in axes.get_xlabel()


def test_timeline_marks_every_token_with_its_fate() -> None:
    marks = token_marks(result().steps[1:])
    assert {fate: len(times) for fate, times in marks.items()} == {
        "accepted": 4,
        "rejected": 2,
        "recovered": 1,
        "bonus": 1,
        "plain": 1,
    }
    assert marks["accepted"][:3] == pytest.approx([12, 24, 36]) and marks["bonus"] == pytest.approx([48])
    assert marks["recovered"] == marks["rejected"][:1] == pytest.approx([60 + 2 * 12.5])  # in the place of the first
    shapes = [line.get_marker() for line in timeline(result()).axes[0].lines if line.get_marker() not in ("", "None")]
    assert len(shapes) == len(set(shapes)) == 5


def test_timeline_can_be_cut_and_needs_rounds() -> None:
    assert len(timeline(result(), rounds=1).axes[0].collections[1].get_paths()) == 1
    with pytest.raises(ValueError, match="no rounds after its prefill"):
        timeline(GenerationResult("", "", (1,), (), "length", 0.1, result().steps[:1], True))
    with pytest.raises(ValueError, match="rounds=0 must be >= 1"):
        timeline(result(), rounds=0)


def test_agreement_shows_the_overlap() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    q = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    left, right = probability_agreement(p, q).axes
    assert sorted(left.lines[0].get_xdata()) == pytest.approx([0.2, 0.3, 0.5, 1.0])
    assert right.lines[0].get_xdata()[0] == pytest.approx((0.5 + 1.0) / 2)
    with pytest.raises(ValueError, match=r"must both be \[N, V\]"):
        probability_agreement(p, q[:1])
    assert left.get_title() == ""
    wide = torch.softmax(torch.randn(4, 2000, generator=torch.Generator().manual_seed(0)), -1)
    assert "4000 tokens with the largest" in probability_agreement(wide, wide).axes[0].get_title()


def test_laws_are_those_of_the_models() -> None:
    target = toy_model("llama", 0)
    spec = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.1), temperature=0.7, top_p=1.0)
    ids = [5, 6, 7, 8]
    p, q = laws_of_text(spec, ids)
    with torch.no_grad():
        expected = torch.softmax(target(torch.tensor([ids])).logits[0] / 0.7, -1)
    assert torch.allclose(p, expected, atol=1e-6) and not torch.allclose(p, q, atol=1e-3)
    with pytest.raises(ValueError, match="temperature=0"):
        laws_of_text(spec, ids, SamplingParams(temperature=0.0))
    with pytest.raises(ValueError, match="no draft model"):
        laws_of_text(SpeculativeDecoder.from_models(target), ids)


def test_pictures_are_written_and_repeatable(tmp_path: Path) -> None:
    path = figures.save(timeline(result()), tmp_path / "new" / "timeline.png")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    one, two = (figures.svg(timeline(result())) for _ in range(2))
    assert one == two and one.startswith("<svg") and one.rstrip().endswith("</svg>")


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'decoder\[plots\]'"):
        timeline(result())


def test_nothing_global_changes() -> None:
    """No window system, no pyplot state."""
    before = dict(matplotlib.rcParams)
    figures.svg(acceptance_by_position({"k=1": [0.5]}))
    assert dict(matplotlib.rcParams) == before
