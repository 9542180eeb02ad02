"""Horizontal bars with whiskers as SVG text, drawn by hand so that an HTML report needs no plotting library.

Readable in greyscale: every bar says its number, and the reference is hatched.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from decoder.report.tables import cell
from decoder.report.terminal import visible

_ROW, _BAR, _LEFT, _PLOT, _RIGHT, _TOP = 30, 16, 220, 400, 90, 12
_FILL, _INK = "#7fb2d6", "#1b1b1b"


@dataclass(frozen=True)
class Bar:
    """One row: a name, a value, and optionally the interval around it."""

    name: str
    value: float
    lower: float | None = None
    upper: float | None = None
    hatched: bool = False

    @property
    def reach(self) -> float:
        return max(self.value, self.upper if self.upper is not None else self.value)


def nice_step(reach: float, wanted: int = 5) -> float:
    """A tick distance of 1, 2 or 5 times a power of ten that gives about `wanted` ticks up to `reach`."""
    raw = reach / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-12))


def escaped(text: object) -> str:
    """For HTML and SVG text and attributes; control characters are written out first, since XML forbids them."""
    return html.escape(visible(str(text)), quote=True)


def _whisker(bar: Bar, y: float, scale: float) -> str:
    if bar.lower is None or bar.upper is None:
        return ""
    low, high = _LEFT + bar.lower * scale, _LEFT + bar.upper * scale
    ends = "".join(f"M{x:.1f} {y - 4:.1f}V{y + 4:.1f}" for x in (low, high))
    return f'<path d="M{low:.1f} {y:.1f}H{high:.1f}{ends}" stroke="{_INK}" stroke-width="1.5" fill="none"/>'


def _row(bar: Bar, top: float, scale: float, pattern: str) -> str:
    middle = top + _ROW / 2
    name = bar.name if len(bar.name) <= 32 else bar.name[:31] + "…"
    fill = f"url(#{pattern})" if bar.hatched else _FILL
    return (
        f'<text x="{_LEFT - 8}" y="{middle + 4:.1f}" text-anchor="end">{escaped(name)}'
        f"<title>{escaped(bar.name)}</title></text>"
        f'<rect x="{_LEFT}" y="{middle - _BAR / 2:.1f}" width="{max(bar.value, 0) * scale:.1f}" height="{_BAR}" '
        f'fill="{fill}" stroke="{_INK}"/>'
        f"{_whisker(bar, middle, scale)}"
        f'<text x="{_LEFT + bar.reach * scale + 8:.1f}" y="{middle + 4:.1f}">{cell(float(bar.value))}</text>'
    )


def bar_chart(bars: Sequence[Bar], unit: str, *, mark: float | None = None, pattern: str = "hatch") -> str:
    """An SVG element; bars from zero, ticks in `unit`, a dashed line at `mark`.

    `pattern` names the hatching and must differ between charts of one page.

    Raises:
        ValueError: no bars, or a value that is not finite and >= 0.
    """
    if not bars:
        raise ValueError("bars is empty; give at least one.")
    for bar in bars:
        if not (math.isfinite(bar.value) and bar.value >= 0):
            raise ValueError(f"bar {bar.name!r} has the value {bar.value!r}; it must be finite and >= 0.")
    reach = max(max(bar.reach for bar in bars), mark or 0.0) or 1.0
    scale, bottom = _PLOT / reach, _TOP + _ROW * len(bars)
    parts = [
        f'<defs><pattern id="{pattern}" width="6" height="6" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="6" height="6" fill="#fff"/><path d="M0 0V6" stroke="{_INK}" '
        'stroke-width="2"/></pattern></defs>'
    ]
    step = nice_step(reach)
    for i in range(int(reach / step + 1e-9) + 1):
        x = _LEFT + i * step * scale
        parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="#ccc"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{i * step:g}</text>')
    if mark is not None:
        x = _LEFT + mark * scale
        parts.append(f'<path d="M{x:.1f} {_TOP - 6}V{bottom}" stroke="{_INK}" stroke-dasharray="5 4"/>')
    parts += [_row(bar, _TOP + _ROW * i, scale, pattern) for i, bar in enumerate(bars)]
    parts.append(f'<text x="{_LEFT + _PLOT / 2}" y="{bottom + 36}" text-anchor="middle">{escaped(unit)}</text>')
    width, height = _LEFT + _PLOT + _RIGHT, bottom + 46
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="{escaped(unit)}" font-family="sans-serif" font-size="12" fill="{_INK}">{"".join(parts)}</svg>'
    )
