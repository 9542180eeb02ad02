#!/usr/bin/env python
"""What `compile=True` costs once and gives back: seconds to compile each block size, and forwards eager and compiled.

    python scripts/measure_compile.py                                             the bundled target
    python scripts/measure_compile.py --model FOLDER --dtype bfloat16 --sizes 1 5

Eager and compiled forwards of a block take turns behind a prompt, in one process. The compiler begins with an empty
cache on disk, so the seconds are those of a first use ever; with --cache FOLDER it begins with what is in there, as a
second process would.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from decoder.measure.environment import environment
from decoder.models import loading
from decoder.models.compiled import CompiledModel
from decoder.models.hf import CausalModel
from decoder.models.tiny import tiny_paths


def load(name: str, dtype: str) -> Any:
    """A model by name; "tiny" and "tiny-draft" are the bundled ones."""
    paths = {"tiny": tiny_paths().target, "tiny-draft": tiny_paths().draft}
    return loading.load_model("--model", str(paths.get(name, name)), device="cpu", dtype=dtype)


def measure(module: Any, sizes: Sequence[int], context: int, repeats: int) -> list[dict[str, float]]:
    """A row for each block size: first use, and medians of `repeats` forwards of each kind, taken in turn."""
    eager, compiled = CausalModel(module, "target"), CompiledModel(module, "target")
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, min(1000, eager.vocab_size), (1, context + max(sizes)), generator=generator)
    sessions = [model.open(1, context + max(sizes)) for model in (eager, compiled)]
    rows = []
    for session in sessions:
        session.feed(tokens[:, :context], [0], [context - 1])
        session.commit([context])
    for size in sorted(sizes, reverse=True):
        block = tokens[:, context : context + size]
        for _ in range(4):  # more often than a size is padded before it is compiled
            began = time.perf_counter()
            sessions[1].feed(block, [context])
            first_s = time.perf_counter() - began
            if size in compiled.compiled_sizes:
                break
        seconds: list[list[float]] = [[], []]
        for _ in range(repeats):
            for session, taken in zip(sessions, seconds, strict=True):
                began = time.perf_counter()
                session.feed(block, [context])
                taken.append(time.perf_counter() - began)
        medians = [1000 * statistics.median(taken) for taken in seconds]
        rows.append({"m": size, "first_use_s": first_s, "eager_ms": medians[0], "compiled_ms": medians[1]})
    return rows[::-1]


def table(rows: Sequence[dict[str, float]]) -> str:
    lines = ["| m | first use (s) | eager (ms) | compiled (ms) | eager / compiled |", "|--:|--:|--:|--:|--:|"]
    for row in rows:
        eager, compiled = row["eager_ms"], row["compiled_ms"]
        lines.append(
            f"| {row['m']} | {row['first_use_s']:.1f} | {eager:.2f} | {compiled:.2f} | {eager / compiled:.2f} |"
        )
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("--model", default="tiny", help="tiny (default), tiny-draft, a hub name or a folder")
    made.add_argument("--dtype", default="float32")
    made.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 5], help="block sizes m (default 1 2 5)")
    made.add_argument("--context", type=int, default=128, help="tokens before the block (default 128)")
    made.add_argument("--repeats", type=int, default=40)
    made.add_argument("--cache", metavar="FOLDER", help="the compiler's cache; default: an empty one, thrown away")
    made.add_argument("--json", action="store_true", help="print JSON with the environment instead of a table")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    transformers_logging.set_verbosity_error()
    try:
        module = load(args.model, args.dtype)
    except ValueError as error:
        print(f"measure_compile.py: {error}", file=sys.stderr)
        return 2
    with ExitStack() as stack, torch.inference_mode():
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("error", RuntimeWarning)  # what falls back to eager is no measurement
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = args.cache or stack.enter_context(tempfile.TemporaryDirectory())
        rows = measure(module, args.sizes, args.context, args.repeats)
    if args.json:
        print(json.dumps({"rows": rows, "environment": environment(module)}, indent=1))
    else:
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
