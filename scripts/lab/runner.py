"""An experiment is a grid of points, each measured once; the runner resumes, and writes CSV, PNG and Markdown.

A finished point is appended to `rows.csv` with the point as JSON beside what was measured, so an interrupted sweep goes
on where it stopped. The README of the folder holds the question, the command, the machine, the table and the reading.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tqdm.auto import tqdm

from decoder.files import write_text
from decoder.measure.environment import environment
from decoder.report.tables import markdown_table

Row = dict[str, Any]


class Experiment(Protocol):
    """One question.

    columns: what `measure` returns, in the table's order.   hidden: columns of points and measurements that stand in
        rows.csv only, so that the README's table stays narrow.
    """

    number: str
    name: str
    question: str

    @property
    def columns(self) -> Sequence[str]: ...

    @property
    def hidden(self) -> Sequence[str]: ...

    def points(self) -> list[Row]:
        """The grid, in the order it is measured."""
        ...

    def measure(self, point: Row) -> Row:
        """Plain numbers for one point."""
        ...

    def draw(self, rows: Sequence[Row], folder: Path) -> list[str]:
        """Write pictures into the folder; returns their file names."""
        ...

    def reading(self, rows: Sequence[Row]) -> str:
        """What the rows say, in words computed from them."""
        ...


def number(text: str) -> Any:
    """A CSV field back as int, float, None or text."""
    if text == "":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def load_rows(path: Path) -> list[Row]:
    """Rows measured so far."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as handle:
        return [{name: number(value) for name, value in row.items()} for row in csv.DictReader(handle)]


def key(point: Row) -> str:
    return json.dumps(point, sort_keys=True)


def _append(path: Path, names: Sequence[str], row: Row) -> None:
    fresh = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, names, lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow({name: row.get(name) for name in names})


def folder_of(experiment: Experiment, root: Path) -> Path:
    return root / f"{experiment.number}-{experiment.name}"


def run(experiment: Experiment, root: Path, *, progress: bool = True) -> Path:
    """Measure what is missing, then write the account; returns the experiment's folder."""
    folder = folder_of(experiment, root)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rows.csv"
    points = experiment.points()
    names = [*points[0], *experiment.columns]
    done = {key({name: row[name] for name in points[0]}) for row in load_rows(path)}
    for point in tqdm(points, desc=folder.name, disable=not progress):
        if key(point) not in done:
            _append(path, names, point | experiment.measure(point))
    wanted = {key(point) for point in points}
    rows = [row for row in load_rows(path) if key({name: row[name] for name in points[0]}) in wanted]
    _write_account(experiment, folder, rows, names)
    return folder


def _write_account(experiment: Experiment, folder: Path, rows: Sequence[Row], names: Sequence[str]) -> None:
    place = environment()
    pictures = experiment.draw(rows, folder)
    shown = [name for name in names if name not in experiment.hidden]
    lines = [
        f"# {experiment.number} {experiment.name.replace('-', ' ')}",
        "",
        experiment.question,
        "",
        experiment.reading(rows),
        "",
        *[f"![{name}]({name})" for name in pictures],
        "",
        markdown_table(shown, [[row[name] for name in shown] for row in rows]),
        "",
        f"{place['processor']}, {place['threads']} threads; torch {place['versions']['torch']}, transformers "
        f"{place['versions']['transformers']}; {place['date'][:10]}. All columns: [rows.csv](rows.csv).",
        "",
        f"    {place['command']}",
        "",
    ]
    write_text(folder / "README.md", "\n".join(lines))
