"""One generation as a page of text, every token marked by its fate, for a README or a slide.

Letters stand in a grid, so a box is as wide as its token's text. Fates differ without colour: accepted tokens have a
light fill, recovered ones a thick underline, bonus tokens a frame. A short bar stands where a round began: what lies
between two bars came out of one forward of the target.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decoder.report.figures import EDGE, new_figure
from decoder.report.terminal import visible
from decoder.results import GenerationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RETURN = "\u21b5"  # shows a line break that is a token, or ends one
_FILL = {"accepted": "#cfe8d5", "recovered": "#f6d6c9", "bonus": "#d5e0f5", "plain": "#ffffff", "prompt": "#ffffff"}
_POINTS = 11.0  # of the letters
_ADVANCE = 0.602  # width of a letter of DejaVu Sans Mono, which comes with matplotlib, in sizes of the font
_LINE = 2.1  # height of a line, in sizes of the font


@dataclass(frozen=True)
class Piece:
    """A stretch of one token on one line of the grid. `begins`: the first one of its round."""

    text: str
    fate: str
    line: float
    column: int
    begins: bool = False


def _words(result: GenerationResult) -> Iterator[tuple[str, str, bool]]:
    """(text, fate, begins a round) of the prompt and of each new token."""
    before = result.full_text[: len(result.full_text) - len(result.text)]
    yield before, "prompt", False
    starts, place = set(), 0
    for step in result.steps:
        starts.add(place)
        place += len(step.emitted)
    for index, (text, fate) in enumerate(zip(result.token_texts, result.fates, strict=True)):
        yield text, fate, index in starts


def _folded(text: str, columns: int) -> Iterator[str]:
    """The prompt in pieces that a line can take whole; new tokens are such pieces already."""
    for word in text.replace(" ", "\0 ").split("\0"):
        yield from (word[i : i + columns] for i in range(0, len(word), columns))


def layout(result: GenerationResult, columns: int) -> list[Piece]:
    """Every piece of text in its place; a token is not broken unless it holds a line break or is wider than a line."""
    pieces, line, column = [], 0, 0
    for text, fate, begins in _words(result):
        shown = visible(text).expandtabs(4).replace("\n", f"{RETURN}\n" if fate != "prompt" else "\n")
        for number, part in enumerate(shown.split("\n")):
            if number:
                line, column = line + 1, 0
            for word in _folded(part, columns):
                if word != RETURN and column and column + len(word.rstrip()) > columns:
                    line, column = line + 1, 0
                pieces.append(Piece(word, fate, line, column, begins))
                column, begins = column + len(word), False
    return pieces


def _mark(axes: Axes, piece: Piece) -> None:
    """The look of one piece: fill, underline or frame, its letters, and the bar of a round."""
    from matplotlib.patches import Rectangle

    left, width, middle = piece.column, len(piece.text), -piece.line
    framed = piece.fate == "bonus"
    box = Rectangle(
        (left + 0.04, middle - 0.36),
        width - 0.08,
        0.72,
        facecolor=_FILL[piece.fate],
        edgecolor=EDGE if framed else "none",
        linewidth=1.0,
    )
    axes.add_patch(box)
    if piece.fate == "recovered":
        axes.plot([left + 0.1, left + width - 0.1], [middle - 0.36] * 2, color=EDGE, linewidth=2.2)
    if piece.begins:
        axes.plot([left] * 2, [middle - 0.46, middle + 0.46], color=EDGE, linewidth=1.0)
    look: dict[str, Any] = {"family": "DejaVu Sans Mono", "color": "#777777" if piece.fate == "prompt" else "#111111"}
    for offset, letter in enumerate(piece.text):
        if letter != " " and not unicodedata.combining(letter):
            axes.text(left + offset + 0.5, middle - 0.2, letter, ha="center", va="baseline", fontsize=_POINTS, **look)


def _legend(result: GenerationResult) -> tuple[list[Piece], str]:
    """Samples of the three looks, in a line below the text, and what was counted."""
    counts = {fate: result.fates.count(fate) for fate in ("accepted", "recovered", "bonus")}
    samples, column = [], 0
    for fate, count in counts.items():
        name = f"{fate} {count}"
        samples.append(Piece(name, fate, 0, column))
        column += len(name) + 2
    note = (
        f"{len(result.token_ids)} tokens from {1 + result.num_iterations} target forwards (the prompt's is the first); "
        f"{result.num_draft_tokens} drafted. Bars: where a round began."
    )
    return samples, note


def token_picture(result: GenerationResult, columns: int = 84) -> Figure:
    """The prompt in grey and each new token by its fate: accepted (filled), recovered (underlined), bonus (framed).

    Raises:
        ValueError: a result without text, whose tokens have no letters to show, or fewer than 20 columns.
        ImportError: without matplotlib.
    """
    if result.tokenizer is None or not result.token_ids:
        raise ValueError("the result has no text to show; generate with a tokenizer, at least one token.")
    if columns < 20:
        raise ValueError(f"columns={columns} must be >= 20; 84 suits a page.")
    pieces = layout(result, columns)
    lines = pieces[-1].line + 1
    samples, note = _legend(result)
    height = lines + 3.0  # the legend's two lines and the space above them
    figure, (axes,) = new_figure(columns * _ADVANCE * _POINTS / 72, height * _LINE * _POINTS / 72)
    figure.set_layout_engine("none")
    axes.set_position((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(-0.5, columns + 0.5), ylim=(0.7 - height, 0.7))
    for piece in pieces:
        _mark(axes, piece)
    for sample in samples:
        _mark(axes, Piece(sample.text, sample.fate, lines + 0.4, sample.column))
    axes.text(0, -lines - 1.4, note, va="center", fontsize=8, color="#333333")
    return figure
