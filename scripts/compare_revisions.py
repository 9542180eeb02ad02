#!/usr/bin/env python
"""Several working trees of this project timed against each other in one process, run by run.

    git worktree add ../before <commit>
    python scripts/compare_revisions.py before=../before after=. --out experiments/08-where-time-goes/revisions

Each tree is imported as a package of its own and builds its own decoder from the same models; then every prompt is run
by every tree in turn, plain and drafted, greedy and sampled. The first tree is the reference. Ratios are medians of
pairs (same prompt, same repeat), so a slow minute of the machine hits both sides of each.
"""

from __future__ import annotations

import argparse
import csv
import gc
import importlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

NAME = "decoder"


def _forget() -> dict[str, Any]:
    """Take this project's modules out of `sys.modules`, so that another tree can be imported."""
    return {key: sys.modules.pop(key) for key in list(sys.modules) if key == NAME or key.startswith(NAME + ".")}


@dataclass
class Tree:
    """A decoder made by the code of one tree, and that code: what it imports late must be its own."""

    spec: Any
    modules: dict[str, Any]

    @contextmanager
    def imported(self) -> Iterator[Any]:
        """The decoder, while `decoder` is this tree's package."""
        before = _forget()
        sys.modules.update(self.modules)
        try:
            yield self.spec
        finally:
            self.modules = _forget()
            sys.modules.update(before)


def load(tree: Path, args: argparse.Namespace) -> Tree:
    """Import the tree's package and make a decoder."""
    before = _forget()
    sys.path.insert(0, str(tree.resolve()))
    try:
        package = importlib.import_module(NAME)
        assert Path(package.__file__).is_relative_to(tree.resolve()), f"{tree} holds no package {NAME!r}"
        spec = package.SpeculativeDecoder(args.target, args.draft, drafter=args.drafter, dtype=args.dtype, top_p=1.0)
        spec.generate([5, 6, 7], k=args.k, max_new_tokens=8)  # whatever is imported late is imported now
        spec.profile([5, 6, 7], k=args.k, max_new_tokens=2, widths=(1,), repeats=1)
    finally:
        sys.path.pop(0)
        own = _forget()
        sys.modules.update(before)
    return Tree(spec, own)


def run(spec: Any, prompt: list[int], k: int, temperature: float, new: int, seed: int) -> dict[str, Any]:
    """One run: wall seconds, and where the run itself says they went."""
    gc.collect()
    began = time.perf_counter()
    result = spec.generate(list(prompt), k=k, max_new_tokens=new, temperature=temperature, eos_token_id=None, seed=seed)
    wall_s = time.perf_counter() - began
    rounds = max(1, result.num_iterations)
    return {
        "ms_per_token": 1e3 * wall_s / len(result.token_ids),
        "draft_ms_per_drafted": 1e3 * result.draft_s / result.num_draft_tokens if result.num_draft_tokens else None,
        "target_ms_per_round": 1e3 * result.target_s / rounds,
        "overhead_ms_per_round": 1e3 * result.overhead_s / rounds,
        "overhead_percent": 100 * result.overhead_s / result.wall_s,
        "tokens_per_round": result.tokens_per_iteration,
        "token_ids": result.token_ids,
    }


COLUMNS = (
    *("ms_per_token", "draft_ms_per_drafted", "target_ms_per_round", "overhead_ms_per_round", "overhead_percent"),
    "tokens_per_round",
)


# (k, temperature, tree) -> its runs, in the same order for all
Runs = dict[tuple[int, float, str], list[dict[str, Any]]]


def measure(trees: dict[str, Tree], prompts: list[list[int]], args: argparse.Namespace) -> Runs:
    """Every tree on every prompt in every mode, interleaved."""
    found: Runs = defaultdict(list)
    names = list(trees)
    ends = time.perf_counter() + args.seconds
    for repeat in range(-1, args.repeats):  # the first turn warms up
        for number, prompt in enumerate(prompts if repeat >= 0 else prompts[:1]):
            if repeat > 0 and time.perf_counter() > ends:
                return found
            for temperature in args.temperature:
                for k in (0, args.k):
                    for i in range(len(names)):
                        name = names[(repeat + number + i) % len(names)]
                        with trees[name].imported() as spec:
                            row = run(spec, prompt, k, temperature, args.max_new_tokens, max(repeat, 0))
                        if repeat >= 0:
                            found[k, temperature, name].append(row)
    return found


def summary(found: Runs, reference: str) -> list[dict[str, Any]]:
    """A row for each mode and tree: medians over runs, and the median ratio of paired runs."""
    rows = []
    for (k, temperature, name), mine in sorted(found.items(), key=lambda item: item[0][:2]):
        pairs = list(zip(found[k, temperature, reference], mine, strict=True))
        row: dict[str, Any] = {"tree": name, "k": k, "temperature": temperature, "runs": len(mine)}
        for column in COLUMNS:
            values = [each[column] for each in mine if each[column] is not None]
            row[column] = median(values) if values else None
        row["speed_ratio"] = median([a["ms_per_token"] / b["ms_per_token"] for a, b in pairs])
        row["same_tokens"] = sum(a["token_ids"] == b["token_ids"] for a, b in pairs)
        rows.append(row)
    return rows


def phases(trees: dict[str, Tree], prompts: list[list[int]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds per iteration by phase, of drafted runs, the trees in turn (`spec.profile`)."""
    rows = []
    for temperature in args.temperature:
        pooled: dict[str, dict[str, float]] = {name: defaultdict(float) for name in trees}
        rounds: dict[str, int] = defaultdict(int)
        for prompt in prompts:
            for name, tree in trees.items():
                options = {"max_new_tokens": args.max_new_tokens, "eos_token_id": None, "temperature": temperature}
                with tree.imported() as spec:
                    profile = spec.profile(list(prompt), k=args.k, widths=(1,), repeats=1, seed=0, **options)
                rounds[name] += profile.iterations
                for phase in profile.phases:
                    pooled[name][phase.name] += 1e3 * phase.seconds
        for name, spent in pooled.items():
            each = {phase: ms / rounds[name] for phase, ms in spent.items() if phase != "prefill"}
            rows.append({"tree": name, "k": args.k, "temperature": temperature} | each)
    return rows


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("trees", nargs="+", metavar="NAME=PATH", help="the first is the reference")
    made.add_argument("--target", default="tiny")
    made.add_argument("--draft")
    made.add_argument("--drafter")
    made.add_argument("--dtype", default="auto")
    made.add_argument("--k", type=int, default=4)
    made.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    made.add_argument("--max-new-tokens", type=int, default=96)
    made.add_argument("--limit", type=int, default=4, help="prompts")
    made.add_argument("--repeats", type=int, default=9, help="at most")
    made.add_argument("--seconds", type=float, default=150.0, help="begin no repeat but the first beyond this time")
    made.add_argument("--phases", type=int, default=0, metavar="N", help="profile N prompts, too (ms per iteration)")
    made.add_argument("--out", type=Path, help="write OUT.csv, OUT.md and OUT.json")
    return made


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    trees = {name: load(Path(path), args) for name, path in (each.split("=", 1) for each in args.trees)}
    from decoder.measure.environment import environment
    from decoder.measure.prompts import OWN_PROMPTS, as_ids
    from decoder.report.tables import markdown_table

    last = list(trees.values())[-1].spec
    prompts = [list(ids) for ids in as_ids(last, OWN_PROMPTS[: args.limit])]
    rows = summary(measure(trees, prompts, args), next(iter(trees)))
    profiled = phases(trees, prompts[: args.phases], args) if args.phases else []
    place = environment(last.target, last.draft)
    tables = [markdown_table(list(each[0]), [list(row.values()) for row in each]) for each in (rows, profiled) if each]
    where = f"{place['processor']}, {place['threads']} threads; torch {place['versions']['torch']}, transformers "
    text = "\n\n".join([*tables, f"{where}{place['versions']['transformers']}; {place['date']}"])
    text += f"\n\n    {place['command']}\n"
    print(text)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.with_suffix(".md").write_text(text)
        record = {"environment": place, "rows": rows, "phases": profiled}
        args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
        with args.out.with_suffix(".csv").open("w", newline="") as handle:
            writer = csv.DictWriter(handle, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
