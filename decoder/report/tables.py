"""Tables for the terminal and for Markdown.

Numbers are set with four significant digits and to the right; what is missing or not a number shows as "-". Text
is escaped for where it goes. Knows results; measures nothing.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence

from decoder.report.terminal import visible
from decoder.results import GenerationResult

MISSING = "-"


def cell(value: object) -> str:
    """One value as text: floats with four significant digits and no exponent between 0.001 and 1e6."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return visible(str(value)).replace("\n", "\\n").replace("\t", "\\t")
    if value == 0 or not math.isfinite(value) or not 1e-3 <= abs(value) < 1e6:
        return f"{value:.4g}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"


def width(text: str) -> int:
    """Columns the text takes in a terminal: wide characters two, combining marks none."""
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )


def _numeric(column: Sequence[object]) -> bool:
    """Set to the right: a column of numbers, gaps allowed."""
    given = [value for value in column if value is not None]
    return bool(given) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in given)


def _checked(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> list[bool]:
    """Which columns go to the right; refuses ragged rows."""
    for number, row in enumerate(rows):
        if len(row) != len(headers):
            raise ValueError(f"rows[{number}] has {len(row)} cells but headers has {len(headers)}; give one a column.")
    return [_numeric([row[i] for row in rows]) for i in range(len(headers))]


def _pad(text: str, to: int, right: bool) -> str:
    space = " " * (to - width(text))
    return space + text if right else text + space


def _lines(
    headers: Sequence[str], body: Sequence[Sequence[str]], right: Sequence[bool], least: int
) -> tuple[list[list[str]], list[int]]:
    """All rows padded to common widths, the header first."""
    table = [list(headers), *map(list, body)]
    widths = [max(least, *(width(row[i]) for row in table)) for i in range(len(headers))]
    return [[_pad(text, to, flag) for text, to, flag in zip(row, widths, right, strict=True)] for row in table], widths


def terminal_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Aligned columns under a rule.

    Raises:
        ValueError: a row with another number of cells than the header.
    """
    right = _checked(headers, rows)
    padded, widths = _lines(list(map(cell, headers)), [list(map(cell, row)) for row in rows], right, 1)
    padded.insert(1, ["-" * each for each in widths])
    return "\n".join("  ".join(row).rstrip() for row in padded)


def _markdown(value: object) -> str:
    text = cell(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("\\", "\\\\").replace("|", "\\|")


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table, padded so that its source reads well too.

    Raises:
        ValueError: a row with another number of cells than the header.
    """
    right = _checked(headers, rows)
    padded, widths = _lines(list(map(_markdown, headers)), [list(map(_markdown, row)) for row in rows], right, 3)
    rule = ["-" * (to - 1) + (":" if flag else "-") for to, flag in zip(widths, right, strict=True)]
    padded.insert(1, rule)
    return "\n".join(f"| {' | '.join(row)} |" for row in padded)


def metrics(result: GenerationResult) -> tuple[list[str], list[list[object]]]:
    """(headers, rows) with every metric of one result."""
    return ["metric", "value"], [[name, getattr(result, name)] for name in GenerationResult.METRICS]


def comparison(
    results: Mapping[str, GenerationResult], reference: str = "baseline"
) -> tuple[list[str], list[list[object]]]:
    """(headers, rows), a row for each named result; the speed-up is in tokens per second over the reference's.

    Raises:
        ValueError: no result is called `reference`.
    """
    if reference not in results:
        raise ValueError(f"reference={reference!r} is not among the results {sorted(results)}; name one of them.")
    base = results[reference].tokens_per_second
    headers = ["method", "tokens", "wall_s", "tokens/s", "speed-up ×", "acceptance_rate", "tokens/iteration"]
    rows: list[list[object]] = []
    for name, result in results.items():
        speed = result.tokens_per_second
        rows.append(
            [
                name,
                len(result.token_ids),
                result.wall_s,
                speed,
                speed / base if base else math.nan,
                result.acceptance_rate,
                result.tokens_per_iteration,
            ]
        )
    return headers, rows
