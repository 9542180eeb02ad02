"""Microseconds per token of the lookup drafters, from the beginning of a long text to its end.

    python scripts/measure_lookups.py --texts book.txt ... --tokens 100000

The text is given token by token, as decoding commits it: each time the drafter takes the token in and proposes up to
--k more, with nobody to verify them. A column a tenth of the text; a flat line means that a token costs as much after
100,000 tokens of context as after ten. "rescan" is what the index spares: a search of the whole text for its last two
tokens, timed at the end of each tenth. Printed too: bytes per token that the table of the whole text holds.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decoder.drafters import NgramDrafter, SuffixDrafter
from decoder.drafters.lookup import LookupDrafter
from decoder.files import write_json
from decoder.measure.environment import environment
from decoder.models import loading
from decoder.models.tiny import tiny_paths
from decoder.report.tables import markdown_table

TENTHS = 10
RESCANS = 20


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("--texts", type=Path, nargs="+", required=True, help="text files, read one after the other")
    made.add_argument("--tokenizer", help="name or folder (default: the bundled pair's)")
    made.add_argument("--tokens", type=int, default=100_000)
    made.add_argument("--k", type=int, default=8)
    made.add_argument("--out", type=Path, help="JSON file")
    return made


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    return parser().parse_args(argv)


def paced(drafter: LookupDrafter, ids: Sequence[int], k: int) -> list[float]:
    """Seconds per token in each tenth of the text."""
    run = drafter.start([[]], None, None, len(ids))  # type: ignore[arg-type]  # lookups neither warp nor draw
    context: list[int] = []
    found = []
    size = len(ids) // TENTHS
    for tenth in range(TENTHS):
        began = time.perf_counter()
        for token in ids[tenth * size : (tenth + 1) * size]:
            context.append(token)
            run.propose([context], [k])
        found.append((time.perf_counter() - began) / size)
    return found


def held(drafter: LookupDrafter, ids: Sequence[int]) -> float:
    """Bytes per token of the table over the whole text."""
    context = list(ids)
    tracemalloc.start()
    run = drafter.start([context], None, None, len(ids))  # type: ignore[arg-type]
    run.propose([context], [1])
    found = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return found / len(ids)


def rescanned(ids: Sequence[int]) -> list[float]:
    """Seconds of one search of the text so far for its last two tokens, at the end of each tenth."""
    found = []
    for tenth in range(1, TENTHS + 1):
        text = list(ids[: tenth * len(ids) // TENTHS])
        began = time.perf_counter()
        for _ in range(RESCANS):
            [at for at in range(len(text) - 2) if text[at : at + 2] == text[-2:]]
        found.append((time.perf_counter() - began) / RESCANS)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    tokenizer = loading.load_tokenizer("--tokenizer", options.tokenizer or str(tiny_paths().tokenizer))
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in options.texts)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][: options.tokens]
    if len(ids) < options.tokens:
        raise SystemExit(f"--texts hold {len(ids)} tokens, fewer than --tokens {options.tokens}; give more texts.")
    drafters = {"ngram": NgramDrafter(), "suffix": SuffixDrafter()}
    seconds = {name: paced(drafter, ids, options.k) for name, drafter in drafters.items()}
    seconds["rescan"] = rescanned(ids)
    marks = [f"{(tenth + 1) * len(ids) // TENTHS:,}" for tenth in range(TENTHS)]
    rows: list[list[Any]] = [[name, *[f"{1e6 * each:.1f}" for each in found]] for name, found in seconds.items()]
    print(markdown_table(["us per token, up to token", *marks], rows))
    bytes_held = {name: held(drafter, ids) for name, drafter in drafters.items()}
    print("\n".join(f"{name}: {size:.0f} bytes per token" for name, size in bytes_held.items()))
    if options.out is not None:
        record = {
            "seconds": seconds,
            "bytes_per_token": bytes_held,
            "tokens": len(ids),
            "k": options.k,
            "environment": environment(),
        }
        write_json(options.out, record)
    return 0


if __name__ == "__main__":
    main()
