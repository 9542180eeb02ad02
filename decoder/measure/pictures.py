"""A profile as a picture: time by phase on the left, forwards by tokens fed on the right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decoder.measure.profiling import Profile
from decoder.report.figures import filling, new_figure, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _phases(axes: Axes, profile: Profile) -> None:
    """Bars of milliseconds per iteration; the prefill happens once and is left out."""
    rows = [row for row in profile.phase_rows() if row[0] != "prefill"]
    names = [row[0] for row in rows]
    axes.barh(names, [row[3] for row in rows], **filling(0))
    for place, row in enumerate(rows):
        axes.annotate(f" {100 * row[2]:.1f} %", (row[3], place), va="center", fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("ms per iteration (share of the whole run)")


def _forwards(axes: Axes, profile: Profile) -> None:
    """Medians with quartiles, and the fitted line dashed."""
    costs = [("target", profile.target)] + ([("draft", profile.draft)] if profile.draft is not None else [])
    for index, (role, cost) in enumerate(costs):
        widths = sorted(cost.table)
        medians = [1e3 * cost.table[m].median for m in widths]
        below = [1e3 * (cost.table[m].median - cost.table[m].lower) for m in widths]
        above = [1e3 * (cost.table[m].upper - cost.table[m].median) for m in widths]
        look = series(index)
        axes.errorbar(widths, medians, yerr=[below, above], linestyle="none", capsize=2, label=role, **look)
        fit = [1e3 * (cost.fixed_s + cost.per_token_s * m) for m in (widths[0], widths[-1])]
        text = f"{1e3 * cost.fixed_s:.3g} + {1e3 * cost.per_token_s:.3g} m"
        axes.plot([widths[0], widths[-1]], fit, linestyle="--", linewidth=1, color=look["color"], label=text)
    axes.set_xlabel(f"tokens m fed in one forward, after {profile.target.context}")
    axes.set_ylabel("ms a forward")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)


def profile_picture(profile: Profile, title: str = "") -> Figure:
    """Both panels.

    Raises:
        ImportError: without matplotlib.
    """
    figure, (left, right) = new_figure(10.0, 4.0, 2)
    _phases(left, profile)
    _forwards(right, profile)
    figure.suptitle(title, fontsize=10)
    return figure
