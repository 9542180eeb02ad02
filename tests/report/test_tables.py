"""Tables: alignment, escaping, and the numbers of a comparison."""

from __future__ import annotations

import math

import pytest

from decoder.report.tables import cell, comparison, markdown_table, metrics, terminal_table, width
from decoder.results import GenerationResult, RowRound


def result(wall_s: float, rounds: list[tuple[int, int]]) -> GenerationResult:
    steps = [RowRound(0, (), 0, (1,), 0.1, 0.0, 0.1)]
    for index, (drafted, accepted) in enumerate(rounds, 1):
        steps.append(RowRound(index, (3,) * drafted, accepted, (3,) * (accepted + 1), 0.1, 0.02, 0.05))
    ids = tuple(token for step in steps for token in step.emitted)
    return GenerationResult("", "", ids, (), "length", wall_s, tuple(steps), True)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (math.nan, "-"),
        (True, "yes"),
        (12, "12"),
        (1.23456, "1.235"),
        (12345.678, "12346"),
        (0.001234567, "0.001235"),
        (0.00001234, "1.234e-05"),
        (-0.5, "-0.5000"),
        (0.0, "0"),
        (math.inf, "inf"),
        ("a\x1bb\nc", "a\\x1bb\\nc"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert cell(value) == text


def test_terminal_columns_line_up() -> None:
    lines = terminal_table(["name", "seconds"], [["plain", 1.5], ["日本", 12.25], ["none", None]]).split("\n")
    assert lines == [
        "name   seconds",
        "-----  -------",
        "plain    1.500",
        "日本     12.25",
        "none         -",
    ]
    assert width("日本") == 4 and width("e\u0301") == 1


def test_markdown_is_escaped() -> None:
    lines = markdown_table(["what", "n"], [["a|b <script>", 1], ["c\\d\n", 2]]).split("\n")
    assert lines[0].startswith("| what") and lines[1].endswith("--: |")
    assert "a\\|b &lt;script&gt;" in lines[2]
    assert all(line.replace("\\|", "").count("|") == 3 for line in lines)


@pytest.mark.parametrize("table", [terminal_table, markdown_table])
def test_ragged_rows_are_refused(table: object) -> None:
    with pytest.raises(ValueError, match=r"rows\[1\] has 1 cells but headers has 2"):
        table(["a", "b"], [[1, 2], [3]])  # type: ignore[operator]


def test_a_table_without_rows_is_its_header() -> None:
    assert terminal_table(["a", "b"], []) == "a  b\n-  -"


def test_comparison_counts_tokens_per_second() -> None:
    fast, slow = result(1.0, [(4, 3), (4, 1)]), result(2.0, [(0, 0)] * 3)
    headers, rows = comparison({"baseline": slow, "k=4": fast})
    row = dict(zip(headers, rows[1], strict=True))
    assert row["tokens"] == 7 and row["tokens/s"] == 7.0
    assert row["speed-up ×"] == pytest.approx(7.0 / (4 / 2.0))
    assert row["acceptance_rate"] == 0.5 and row["tokens/iteration"] == 3.0
    assert math.isnan(dict(zip(headers, rows[0], strict=True))["acceptance_rate"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reference='hf' is not among"):
        comparison({"k=4": fast}, "hf")


def test_every_metric_is_listed() -> None:
    headers, rows = metrics(result(1.0, [(2, 1)]))
    assert [row[0] for row in rows] == GenerationResult.METRICS and headers == ["metric", "value"]
