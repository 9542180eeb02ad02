"""L5: one generation as a picture: when draft and target worked, and what became of each token.

Time runs from the end of the prefill. The gaps between bars are the host's own time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from decoder.report.figures import EDGE, filling, new_figure
from decoder.results import GenerationResult, RowRound

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LANES = {"rejected": -0.1, "emitted": 0.4, "target": 1.2, "draft": 2.1}
_MARKS = {  # fate -> marker, whether filled
    "accepted": ("o", True),
    "rejected": ("x", True),
    "recovered": ("^", False),
    "bonus": ("s", False),
    "plain": ("D", False),
}
Span = tuple[float, float]  # (start, duration) in milliseconds


def _spans(rounds: Sequence[RowRound]) -> tuple[list[Span], list[Span], list[Span]]:
    """(draft, target, whole round) spans; within a round the draft works first, and the host's time is the rest."""
    draft, target, whole = [], [], []
    now = 0.0
    for step in rounds:
        draft.append((now, 1e3 * step.draft_s))
        target.append((now + 1e3 * step.draft_s, 1e3 * step.target_s))
        whole.append((now, 1e3 * step.wall_s))
        now += 1e3 * step.wall_s
    return draft, target, whole


def token_marks(rounds: Sequence[RowRound]) -> dict[str, list[float]]:
    """fate -> times in milliseconds. A round's tokens are spread over its own span, a slot for each position, so that a
    rejected draft stands below the token that took its place."""
    marks: dict[str, list[float]] = {fate: [] for fate in _MARKS}
    _, _, whole = _spans(rounds)
    for step, (start, length) in zip(rounds, whole, strict=True):
        width = length / (max(len(step.emitted), len(step.drafted)) + 1)
        for slot, fate in enumerate(step.fates(), 1):
            marks[fate].append(start + slot * width)
        marks["rejected"] += [start + (slot + 1) * width for slot in range(step.accepted, len(step.drafted))]
    return marks


def _draw_marks(axes: Axes, rounds: Sequence[RowRound]) -> None:
    for fate, times in token_marks(rounds).items():
        if times:
            marker, filled = _MARKS[fate]
            axes.plot(
                times,
                [_LANES["rejected" if fate == "rejected" else "emitted"]] * len(times),
                linestyle="none",
                marker=marker,
                color=EDGE,
                markerfacecolor=EDGE if filled else "white",
                markersize=5,
                label=fate,
            )


def timeline(result: GenerationResult, rounds: int = 16) -> Figure:
    """Draft and target bars of the first `rounds` rounds after the prefill, and a mark for every token.

    Raises:
        ValueError: a result without rounds after its prefill, or `rounds` below 1.
        ImportError: without matplotlib.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds} must be >= 1; 16 fit well.")
    shown = result.steps[1 : rounds + 1]
    if not shown:
        raise ValueError("the result has no rounds after its prefill; generate more than one token.")
    draft, target, whole = _spans(shown)
    figure, (axes,) = new_figure(10.0, 3.0)
    for name, spans, look in (("draft", draft, 1), ("target", target, 0)):
        axes.broken_barh(
            [span for span in spans if span[1] > 0], (_LANES[name] - 0.32, 0.64), linewidth=0.5, **filling(look)
        )
    for start, _ in whole:
        axes.axvline(start, color=EDGE, alpha=0.25, linewidth=0.6)
    _draw_marks(axes, shown)
    axes.set_yticks(list(_LANES.values()), list(_LANES))
    axes.set(xlabel="time since the prefill [ms]", ylim=(-0.5, 2.6), xlim=(0, sum(whole[-1])))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=5, frameon=False)
    return figure
