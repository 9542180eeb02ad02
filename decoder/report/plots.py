"""Pictures of acceptance and speed-up. Each function takes plain numbers and returns a matplotlib figure.

Axes carry units. Predictions are dashed lines beside measured points, never instead of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from decoder.report.figures import EDGE, filling, new_figure, series

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def acceptance_by_position(rates: Mapping[str, Sequence[float]], alpha: float | None = None) -> Figure:
    """Bars: the share of rounds that accepted at least i tokens, i = 1, 2, ..., for each named series.

    rates: e.g. {"k=4": result.acceptance_per_position}.   alpha: draws the independent model alpha^i beside them.

    Raises:
        ValueError: nothing to draw.
        ImportError: without matplotlib.
    """
    depth = max((len(values) for values in rates.values()), default=0)
    if depth == 0:
        raise ValueError("rates holds no acceptance per position; give results of runs that drafted (k >= 1).")
    figure, (axes,) = new_figure(6.4, 3.8)
    width = 0.8 / len(rates)
    for index, (name, values) in enumerate(rates.items()):
        left = [i + 1 - 0.4 + (index + 0.5) * width for i in range(len(values))]
        axes.bar(left, list(values), width, label=name, **filling(index))
    if alpha is not None:
        from matplotlib.patheffects import withStroke

        positions = list(range(1, depth + 1))
        axes.plot(
            positions,
            [alpha**i for i in positions],
            "k--",
            marker="D",
            markersize=5,
            markerfacecolor="white",
            path_effects=[withStroke(linewidth=4, foreground="white")],  # to be seen on dark bars
            label=f"alpha^i, alpha={alpha:.3f}",
        )
    axes.set(
        xlabel="position i in the round [tokens]", ylabel="rounds that accepted ≥ i tokens [share]", ylim=(0, 1.02)
    )
    axes.set_xticks(range(1, depth + 1))
    axes.legend()
    return figure


def speedup_over_k(
    measured: Mapping[int, float],
    predicted: Mapping[int, float] | None = None,
    intervals: Mapping[int, tuple[float, float]] | None = None,
) -> Figure:
    """Measured speed-up against draft length, with the predicted curve and the line at 1 below which drafting loses.

    intervals: k -> (lower, upper), drawn as whiskers.

    Raises:
        ValueError: nothing was measured.
        ImportError: without matplotlib.
    """
    if not measured:
        raise ValueError("measured is empty; give the speed-up of at least one draft length.")
    figure, (axes,) = new_figure(6.4, 3.8)
    ks = sorted(measured)
    heights = [measured[k] for k in ks]
    errors = None
    if intervals is not None:
        bounds = [intervals.get(k, (measured[k], measured[k])) for k in ks]
        errors = [
            [max(0.0, height - low) for height, (low, _) in zip(heights, bounds, strict=True)],
            [max(0.0, high - height) for height, (_, high) in zip(heights, bounds, strict=True)],
        ]
    axes.errorbar(ks, heights, yerr=errors, capsize=3, label="measured", **series(0))
    if predicted:
        shown = sorted(predicted)
        axes.plot(shown, [predicted[k] for k in shown], "--", markerfacecolor="white", label="predicted", **series(1))
    axes.axhline(1.0, color=EDGE, linewidth=1, linestyle=":", label="plain decoding")
    axes.set(xlabel="draft length k [tokens]", ylabel="speed-up over plain decoding [×]")
    axes.set_xticks(ks)
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure
