"""What every picture shares: matplotlib on demand, marks that survive greyscale, figures as files and as SVG.

Figures are made without pyplot, so nothing global changes and no window opens. matplotlib comes with the `plots` extra.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoder.files import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Neighbours differ in lightness, and every series has its own marker and hatch besides.
COLOURS = ("#1b4965", "#e07a1f", "#7fb2d6", "#5b8c3a", "#b23a48", "#c9c9c9")
MARKERS = ("o", "s", "^", "D", "v", "P")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++")
EDGE = "#222222"


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of this size in inches with a row of axes.

    Raises:
        ImportError: matplotlib is not installed; says how to get it.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Pictures need matplotlib, which is not installed; pip install 'decoder[plots]'.") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    grid: Any = figure.subplots(1, columns, squeeze=False)
    for axes in grid[0]:
        axes.grid(alpha=0.3, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, list(grid[0])


def series(index: int) -> dict[str, Any]:
    """Colour and marker of the index-th line."""
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}


def filling(index: int) -> dict[str, Any]:
    """Colour, hatch and edge of the index-th group of bars."""
    return {
        "facecolor": COLOURS[index % len(COLOURS)],
        "hatch": HATCHES[index % len(HATCHES)],
        "edgecolor": EDGE,
    }


def save(figure: Figure, path: str | Path) -> Path:
    """Write the figure in the format of the file's ending (png, svg, pdf)."""
    path = Path(path)
    with whole_file(path) as part:
        figure.savefig(part, dpi=150)
    return path


def svg(figure: Figure) -> str:
    """The figure as an SVG element, to stand inside HTML; equal figures give equal text."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "decoder", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
