"""Any benchmark's JSON as one HTML file that needs nothing else: no network, no script, no plotting library.

What `decoder.measure` writes ("methods", "environment", "notes", ...) gets pictures and a table of its own; whatever
else the JSON holds is shown as nested tables under its own name, so that nothing is left out. All text is escaped.
Figures of `decoder.report.plots` can be put in as SVG.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from decoder.files import write_text
from decoder.report.bars import Bar, bar_chart, escaped
from decoder.report.tables import cell

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff;
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; }
h2, summary { font-size: 1.2rem; font-weight: 600; margin-top: 2.2rem; border-bottom: 1px solid #bbb; }
summary { cursor: pointer; }
table { border-collapse: collapse; margin: .6rem 0; }
th, td { border: 1px solid #ccc; padding: .25rem .6rem; text-align: left; vertical-align: top; }
th { background: #f0f0f0; font-weight: 600; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { background: #f5f5f5; padding: .6rem; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
figure { margin: 1rem 0; }
figcaption { color: #444; }
"""
_LIMIT = 60  # rows of a long list that are shown; the rest is counted
_FOLD = 8
_COLUMNS = (  # of a method: key, heading
    ("tokens_per_second", "tokens/s"),
    ("acceptance_rate", "acceptance_rate"),
    ("alpha", "alpha"),
    ("tokens_per_iteration", "tokens/iteration"),
    ("overhead_share", "overhead [share]"),
    ("tokens", "tokens"),
    ("seconds", "seconds"),
)
_HANDLED = ("title", "notes", "methods", "environment")


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _td(value: object) -> str:
    if isinstance(value, (Mapping, list, tuple)):
        return f"<td>{_any(value)}</td>"
    kind = ' class="number"' if _number(value) or value is None else ""
    return f"<td{kind}>{escaped(cell(value))}</td>"


def _table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escaped(name)}</th>" for name in headers)
    body = "".join(f"<tr>{''.join(map(_td, row))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _pairs(values: Mapping[str, Any]) -> str:
    rows = "".join(f"<tr><th>{escaped(key)}</th>{_td(value)}</tr>" for key, value in values.items())
    return f'<div class="wide"><table>{rows}</table></div>'


def _any(value: Any) -> str:
    """Any JSON value: objects as tables of pairs, lists of objects as tables, lists of plain values in a line."""
    if isinstance(value, Mapping):
        return _pairs(value) if value else "-"
    if isinstance(value, (list, tuple)):
        shown, left = list(value[:_LIMIT]), max(0, len(value) - _LIMIT)
        rest = f"<p>and {left} more</p>" if left else ""
        if shown and all(isinstance(each, Mapping) for each in shown):
            headers = list(dict.fromkeys(key for each in shown for key in each))
            return _table(headers, [[each.get(name) for name in headers] for each in shown]) + rest
        if any(isinstance(each, (Mapping, list, tuple)) for each in shown):
            return "".join(f"<div>{_any(each)}</div>" for each in shown) + rest
        return escaped(", ".join(cell(each) for each in shown)) + rest if shown else "-"
    return escaped(cell(value))


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escaped(caption)}</figcaption></figure>"


def _speed_chart(methods: Sequence[Mapping[str, Any]]) -> str:
    bars = []
    for each in methods:
        quartiles = each.get("spread") or {}
        bars.append(
            Bar(
                str(each["name"]),
                float(each["tokens_per_second"]),
                quartiles.get("lower"),
                quartiles.get("upper"),
                each["name"] in ("hf", "baseline"),
            )
        )
    caption = "Speed of each method. Whiskers: quartiles over runs. Hatched: plain decoding."
    return _figure(bar_chart(bars, "tokens per second", pattern="speed"), caption)


def _speedup_charts(methods: Sequence[Mapping[str, Any]]) -> str:
    """A chart for each reference that the methods were compared with."""
    parts = []
    references = list(dict.fromkeys(name for each in methods for name in each.get("speedups") or {}))
    for number, reference in enumerate(references):
        bars = []
        for each in methods:
            ratio = (each.get("speedups") or {}).get(reference)
            if ratio is not None:
                bars.append(Bar(str(each["name"]), float(ratio["ratio"]), ratio.get("lower"), ratio.get("upper")))
        caption = (
            f"Against {reference}. Whiskers: 95 % bootstrap interval over prompts. Dashed: as fast as {reference}."
        )
        chart = bar_chart(bars, f"speed-up over {reference} [×]", mark=1.0, pattern=f"speedup{number}")
        parts.append(_figure(chart, caption))
    return "".join(parts)


def _methods(methods: Sequence[Mapping[str, Any]]) -> str:
    known = [(key, heading) for key, heading in _COLUMNS if any(each.get(key) is not None for each in methods)]
    rows = [[each["name"], *(each.get(key) for key, _ in known)] for each in methods]
    table = _table(["method", *(heading for _, heading in known)], rows)
    timed = [each for each in methods if _number(each.get("tokens_per_second"))]
    return table + (_speed_chart(timed) if timed else "") + _speedup_charts(methods)


def _is_methods(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(x, Mapping) and "name" in x for x in value)


def _section(key: str, value: Any) -> str:
    """A part under its own name; long lists are folded."""
    if isinstance(value, list) and len(value) > _FOLD:
        return f"<details><summary>{escaped(key)} ({len(value)})</summary>{_any(value)}</details>"
    return f"<h2>{escaped(key)}</h2>{_any(value)}"


def html_report(data: Mapping[str, Any], figures: Mapping[str, str] | None = None) -> str:
    """A whole HTML document for one benchmark's JSON object.

    figures: caption -> SVG element (from `decoder.report.figures.svg`); they are trusted and put in as they are.

    Raises:
        TypeError: `data` is not an object.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"data of type {type(data).__name__} must be a JSON object, as a benchmark writes it.")
    title = str(data.get("title") or "Benchmark")
    parts = [f"<h1>{escaped(title)}</h1>"]
    notes = data.get("notes") or []
    if notes:
        parts.append("<ul>" + "".join(f"<li>{escaped(note)}</li>" for note in notes) + "</ul>")
    methods = data.get("methods")
    if _is_methods(methods):
        parts.append("<h2>Methods</h2>" + _methods(methods or []))
    parts += [_figure(svg, caption) for caption, svg in (figures or {}).items()]
    place = data.get("environment")
    if isinstance(place, Mapping):
        command = place.get("command")
        again = f"<p>Repeat it with</p><pre>{escaped(command)}</pre>" if command else ""
        parts.append(f"<h2>Where it was measured</h2>{again}{_pairs(place)}")
    for key, value in data.items():
        if key not in _HANDLED or (key == "methods" and not _is_methods(value)):
            parts.append(_section(key, value))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def write_html(source: str | Path, path: str | Path | None = None) -> Path:
    """Read a benchmark's JSON file and write the report beside it, or at `path`; returns where.

    Raises:
        ValueError: the file is not JSON.
        OSError: it cannot be read or written.
    """
    source = Path(source)
    try:
        data = json.loads(source.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{source} is not a JSON file ({error}); give what a benchmark wrote.") from error
    path = source.with_suffix(".html") if path is None else Path(path)
    write_text(path, html_report(data))
    return path
