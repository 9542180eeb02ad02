"""Samples on disk as they are taken, so that a long measurement may be run in pieces.

The first line says what is measured; each further line is one run. Texts are not written: a run holds a checksum of
each of its token prefixes, which shows equality with another text's prefix and nothing else.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from decoder.measure.timing import Counts, Sample

Key = tuple[str, int, str, int, str]  # mode, repeat, group, number of the prompt in its group, method


def checksums(token_ids: Sequence[int]) -> tuple[int, ...]:
    """A checksum of every prefix: two texts agree as far as these do."""
    running, found = 0, []
    for token in token_ids:
        running = zlib.crc32(int(token).to_bytes(4, "little"), running)
        found.append(running)
    return tuple(found)


class Journal:
    """The samples so far.

    Raises:
        ValueError: the file was begun with other settings.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.samples: dict[Key, Sample] = {}
        if not path.exists():
            self._append(settings)
            return
        lines = path.read_text(encoding="utf-8").splitlines()
        began, now = json.loads(lines[0]), json.loads(json.dumps(settings))
        if began != now:
            changed = sorted(name for name in began.keys() | now.keys() if began.get(name) != now.get(name))
            raise ValueError(
                f"{path} was begun with other settings ({', '.join(changed)}); name another --out, or remove it to "
                "start anew."
            )
        for line in lines[1:]:
            record = json.loads(line)
            counts = None if record["counts"] is None else Counts(**record["counts"])
            self._hold(record, Sample(**record["sample"], token_ids=tuple(record["checksums"]), counts=counts))

    def _append(self, record: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    def _hold(self, record: dict[str, Any], sample: Sample) -> None:
        self.samples[record["mode"], sample.repeat, record["group"], sample.prompt, sample.method] = sample

    def add(self, mode: str, group: str, sample: Sample) -> None:
        """Write one run; its `token_ids` are checksums."""
        plain = {name: getattr(sample, name) for name in ("method", "prompt", "repeat", "wall_s")}
        counts = None if sample.counts is None else asdict(sample.counts)
        record = {"mode": mode, "group": group, "sample": plain, "counts": counts, "checksums": sample.token_ids}
        self._append(record)
        self._hold(record, sample)
