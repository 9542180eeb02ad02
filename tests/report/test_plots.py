"""Pictures: the numbers drawn are the numbers given, axes have units, and series differ without colour."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from decoder import SpeculativeDecoder
from decoder.measure.pictures import profile_picture
from decoder.models.toy import noisy_copy, toy_model
from decoder.report import figures
from decoder.report.plots import acceptance_by_position, speedup_over_k

matplotlib = pytest.importorskip("matplotlib")
RATES = {"k=4": [0.9, 0.7, 0.5, 0.2]}


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


def test_a_profile_is_drawn_as_measured() -> None:
    target = toy_model("llama", seed=1)
    spec = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.2), temperature=0.0)
    found = spec.profile([3, 4, 5], k=2, widths=(1, 2), repeats=1, max_new_tokens=6, eos_token_id=None)
    left, right = profile_picture(found, "a title").axes
    rows = [row for row in found.phase_rows() if row[0] != "prefill"]
    assert [bar.get_width() for bar in left.containers[0]] == pytest.approx([row[3] for row in rows])
    points = [list(each.lines[0].get_ydata()) for each in right.containers]
    assert points[0] == pytest.approx([1e3 * found.target.table[m].median for m in (1, 2)])
    assert len(points) == 2 and all("ms" in label for label in (left.get_xlabel(), right.get_ylabel()))


def test_pictures_are_written_and_repeatable(tmp_path: Path) -> None:
    path = figures.save(acceptance_by_position(RATES), tmp_path / "new" / "acceptance.png")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    one, two = (figures.svg(acceptance_by_position(RATES)) for _ in range(2))
    assert one == two and one.startswith("<svg") and one.rstrip().endswith("</svg>")


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'decoder\[plots\]'"):
        acceptance_by_position(RATES)


def test_nothing_global_changes() -> None:
    """No window system, no pyplot state."""
    before = dict(matplotlib.rcParams)
    figures.svg(acceptance_by_position({"k=1": [0.5]}))
    assert dict(matplotlib.rcParams) == before
