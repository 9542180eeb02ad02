"""Files that are written whole or not at all.

A report is written beside its place and then moved there, so a full disk or an interrupt leaves the old file as it was.
Knows nothing of what is written, but that JSON is read by people and compared line by line.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NUMBERS = re.compile(r"\[\n\s*(-?\d[^\[\]{}\"]*?)\n\s*\]")  # numbers only; no text of JSON holds a line break


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Where to write what shall stand at `path`; it takes that place when the block ends without an error.

    Raises:
        OSError: of the same kind, naming the file and the remedy.
    """
    wanted = Path(path)
    place = Path(os.path.realpath(wanted))
    # What is no ordinary file (a terminal, a pipe) cannot be replaced and is written to directly.
    direct = place.exists() and not place.is_file()
    part = place if direct else place.with_name(f".{place.stem}.part{place.suffix}")
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        yield part
        if not direct:
            part.replace(place)
    except OSError as error:
        why = error.strerror or str(error)
        message = f"{wanted} could not be written ({why}); free some space, or name another place"
        raise type(error)(error.errno, message) from error
    finally:
        if not direct:
            part.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text, whole or not at all."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write JSON, whole or not at all: a line an entry, and a list of numbers (the ids of a text) on one line.

    Raises:
        ValueError: a number that JSON has no word for, such as NaN.
    """
    text = json.dumps(value, indent=1, allow_nan=False)
    write_text(path, _NUMBERS.sub(_on_one_line, text) + "\n")


def _on_one_line(numbers: re.Match[str]) -> str:
    return f"[{' '.join(numbers[1].split())}]"


def beside(path: str | os.PathLike[str], suffix: str) -> Path:
    """The file of another kind next to a report: a name may hold dots ("alpha-0.71"), so only a known ending goes."""
    path = Path(path)
    stem = path.with_suffix("") if path.suffix in {".json", ".md", ".html"} else path
    return stem.with_name(stem.name + suffix)
