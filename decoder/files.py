"""L1: files that are written whole or not at all.

A report is written beside its place and then moved there, so a full disk or an interrupt leaves the old file as it was.
Knows nothing of what is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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


def beside(path: str | os.PathLike[str], suffix: str) -> Path:
    """The file of another kind next to a report: a name may hold dots ("alpha-0.71"), so only a known ending goes."""
    path = Path(path)
    stem = path.with_suffix("") if path.suffix in {".json", ".md", ".html"} else path
    return stem.with_name(stem.name + suffix)
