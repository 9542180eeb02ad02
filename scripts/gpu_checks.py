#!/usr/bin/env python
"""One prepared visit to a GPU, under eight minutes: tests that need CUDA, then a synthetic Llama-3.1-8B / 1B pair.

    python scripts/gpu_checks.py --out experiments/gpu
    python scripts/gpu_checks.py --dry-run --out /tmp/dry      everything, tiny and on the CPU

Writes environment, tables (eager and compiled, against transformers and the bandwidth limit) and test results to
--out as it goes, so that a visit cut short leaves what it had. A part that fails is reported and the next one runs; the
exit status is 1 then. Parts are skipped once the time is up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from decoder import SamplingParams, SpeculativeDecoder
from decoder.measure.comparison import Comparison, ComparisonReport
from decoder.measure.environment import environment
from decoder.measure.methods import Plan, named, speculative
from lab.bandwidth import copy_bandwidth, tokens_per_second_limit, weight_bytes
from lab.geometry import Geometry, synthetic_pair
from lab.setup import with_reached

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Size:
    """How big a visit is."""

    geometry: str
    device: str
    dtype: torch.dtype
    new_tokens: int
    prompts: int
    prompt_length: int
    repeats: int
    copied_bytes: int
    acceptance: float = 0.75


REAL = Size("llama-3.1-8b:llama-3.2-1b", "cuda", torch.bfloat16, 128, 3, 128, 2, 8 << 30)
DRY = Size("small-llama:smaller-llama", "cpu", torch.float32, 8, 2, 8, 1, 1 << 20)


@dataclass
class Visit:
    """The visit under way: what is left of its time, and what has gone wrong."""

    size: Size
    out: Path
    deadline: float
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def part(self, name: str, least_s: float, work: Callable[[], Any]) -> Any:
        """Run one part if there is time for it; its failure is noted and does not end the visit."""
        if self.left_s() < least_s:
            self.skipped.append(name)
            print(f"== {name}: skipped, {self.left_s():.0f} s left", flush=True)
            return None
        print(f"== {name}", flush=True)
        began = time.monotonic()
        try:
            return work()
        except Exception as error:
            traceback.print_exc()
            self.failed.append(f"{name}: {type(error).__name__}: {error}")
            return None
        finally:
            print(f"== {name}: {time.monotonic() - began:.1f} s", flush=True)

    def write(self, name: str, value: Any) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        text = value if isinstance(value, str) else json.dumps(value, indent=1, allow_nan=False)
        (self.out / name).write_text(text.rstrip("\n") + "\n")


def run_tests(visit: Visit, expression: str) -> None:
    """The tests marked cuda, in a process of their own.

    Raises:
        RuntimeError: a test failed, or the time was up.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-m", expression, "tests/test_cuda.py"]
    limit_s = min(150.0, visit.left_s())
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"the tests took longer than {limit_s:.0f} s") from error
    visit.write("cuda_tests.txt", done.stdout + done.stderr)
    print(done.stdout[-2000:], flush=True)
    if done.returncode != 0:
        raise RuntimeError(f"pytest ended with status {done.returncode}; see cuda_tests.txt")


def make_pair(visit: Visit) -> Geometry:
    size = visit.size
    return synthetic_pair(size.geometry, size.acceptance, dtype=size.dtype, device=size.device)


def limit_note(visit: Visit, pair: Geometry) -> str:
    """What memory alone would allow plain decoding."""
    bandwidth = copy_bandwidth(visit.size.device, visit.size.copied_bytes)
    limit = tokens_per_second_limit(pair.target, bandwidth)
    record = {
        "copy_bandwidth_bytes_per_s": bandwidth,
        "target_weight_bytes": weight_bytes(pair.target),
        "draft_weight_bytes": weight_bytes(pair.draft),
        "plain_limit_tokens_per_s": limit,
    }
    visit.write("bandwidth.json", record)
    return (
        f"bandwidth limit of plain decoding: {weight_bytes(pair.target) / 1e9:.3g} GB of weights at "
        f"{bandwidth / 1e9:.4g} GB/s (measured copy) = {limit:.4g} tokens/s"
    )


def timed(
    visit: Visit, pair: Geometry, spec: SpeculativeDecoder, name: str, foreign: Sequence[str], note: str
) -> ComparisonReport:
    """One comparison, written at once."""
    size = visit.size
    label = (
        f"SYNTHETIC: shapes of {size.geometry}, random weights, {size.dtype}, acceptance dialled to {size.acceptance}"
    )
    plan = Plan(size.new_tokens, SamplingParams(temperature=0.0), repeats=size.repeats)
    methods = [named(each, spec, plan) for each in [*foreign, "baseline"]]
    report = Comparison(
        spec,
        pair.prompts(size.prompts, size.prompt_length),
        plan,
        [*methods, speculative(spec, plan, 4), speculative(spec, plan, "auto")],
        f"{size.geometry}, {name}",
        [label, note] if note else [label],
    ).run()
    report = with_reached(report, size.acceptance)
    report.write(visit.out / f"{name}.json")
    print(report.markdown(), flush=True)
    return report


def visit_all(visit: Visit, tests: str | None) -> None:
    """All parts in order of worth."""
    visit.write("environment.json", environment())
    if tests is not None:
        visit.part("tests", 30, lambda: run_tests(visit, tests))
    pair = visit.part("models", 30, lambda: make_pair(visit))
    if pair is None:
        return
    note = visit.part("bandwidth", 10, lambda: limit_note(visit, pair)) or ""
    eager = SpeculativeDecoder.from_models(pair.target, pair.draft)
    visit.part("eager", 60, lambda: timed(visit, pair, eager, "eager", ["hf", "hf-assisted"], note))
    visit.part("compiled", 90, lambda: timed_compiled(visit, pair, note))


def timed_compiled(visit: Visit, pair: Geometry, note: str) -> ComparisonReport:
    """The same with compile=True. The table is written in any case.

    Raises:
        RuntimeError: something in it was not compiled after all, or not captured in a CUDA graph.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spec = SpeculativeDecoder.from_models(pair.target, pair.draft, compile=True)
        report = timed(visit, pair, spec, "compiled", ["hf"], note)
    told = [str(each.message) for each in caught if str(each.message).startswith("compile=True")]
    if told:
        raise RuntimeError("; ".join(told))
    return report


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("--out", type=Path, required=True, help="folder for tables and records")
    made.add_argument("--dry-run", action="store_true", help="everything tiny, on the CPU")
    made.add_argument("--minutes", type=float, default=8.0, help="stop starting parts after this (default 8)")
    made.add_argument("--no-tests", action="store_true", help="leave the tests out")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if not args.dry_run and not torch.cuda.is_available():
        print("gpu_checks.py: torch sees no CUDA device here; use --dry-run to rehearse on the CPU.", file=sys.stderr)
        return 2
    transformers_logging.set_verbosity_error()
    visit = Visit(DRY if args.dry_run else REAL, args.out, time.monotonic() + 60 * args.minutes)
    visit_all(visit, None if args.no_tests else "cuda")
    visit.write("outcome.json", {"failed": visit.failed, "skipped": visit.skipped, "left_s": round(visit.left_s())})
    for line in visit.failed:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if visit.failed else 0


if __name__ == "__main__":
    sys.exit(main())
