"""How often does speculation change a greedy text by rounding alone, and what does one fixed shape cost?

    python scripts/bitwise.py --target FOLDER --prompts prompts.jsonl --dtype bfloat16 --json out.json

Greedy texts of each prompt, compared token for token:

    library       transformers' generate with prompt lookup against its plain generate
    ours          speculative against our baseline (each drafter asked for)
    ours/library  our baseline against transformers' plain generate
    invariant     speculative against our baseline, both with invariant=True

Where two texts part, the gap between the two best float32 logits of the target there is recorded: rounding explains a
gap of a few steps of the dtype, and nothing else may part them. Speed-ups are medians over prompts of the ratio of wall
seconds within one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from decoder import SpeculativeDecoder
from decoder.bench.prompts import as_ids, read_prompts
from decoder.models.loading import load_model


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    if list(one) == list(other):
        return None
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def gap_at(exact: Any, prompt: list[int], text: Sequence[int], at: int) -> float:
    """Difference of the two best float32 logits after `at` tokens of the text."""
    with torch.inference_mode():
        logits = exact(torch.tensor([[*prompt, *text[:at]]], device=exact.device)).logits[0, -1].float()
    best = logits.topk(2).values
    return float(best[0] - best[1])


class Comparison:
    """Pairs of texts that should be the same."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.same: list[bool] = []
        self.gaps: list[float] = []
        self.ratios: list[float] = []

    def add(
        self, exact: Any, prompt: list[int], one: tuple[Sequence[int], float], other: tuple[Sequence[int], float]
    ) -> None:
        at = first_difference(one[0], other[0])
        self.same.append(at is None)
        if at is not None:
            self.gaps.append(gap_at(exact, prompt, one[0], at))
        self.ratios.append(one[1] / other[1])

    def record(self) -> dict[str, Any]:
        return {
            "comparison": self.name,
            "prompts": len(self.same),
            "identical": sum(self.same),
            "gaps_at_first_difference": [round(gap, 6) for gap in sorted(self.gaps)],
            "median_speedup": statistics.median(self.ratios),
        }


def library(model: Any, ids: list[int], new: int, **options: Any) -> tuple[list[int], float]:
    tensor = torch.tensor([ids], device=model.device)
    began = time.perf_counter()
    out = model.generate(
        tensor, attention_mask=torch.ones_like(tensor), max_new_tokens=new, do_sample=False, pad_token_id=0, **options
    )
    return out[0, len(ids) :].tolist(), time.perf_counter() - began


def ours(spec: SpeculativeDecoder, ids: list[int], new: int, **options: Any) -> tuple[Sequence[int], float]:
    result = spec.generate(torch.tensor(ids), max_new_tokens=new, temperature=0, **options)
    return result.token_ids, result.wall_s


def measure(
    spec: SpeculativeDecoder, exact: Any, prompts: list[list[int]], args: argparse.Namespace
) -> list[Comparison]:
    found = {name: Comparison(name) for name in ("library", "ours/library", "cost of invariant")}
    found |= {
        f"{kind} {drafter} k={k}": Comparison(f"{kind} {drafter} k={k}")
        for kind in ("ours", "invariant")
        for drafter in args.drafters
        for k in args.k
    }
    for number, ids in enumerate(prompts, 1):
        plain = library(spec.target, ids, args.max_new_tokens)
        found["library"].add(
            exact, ids, plain, library(spec.target, ids, args.max_new_tokens, prompt_lookup_num_tokens=10)
        )
        baselines = {flag: ours(spec, ids, args.max_new_tokens, k=0, invariant=flag) for flag in (False, True)}
        found["ours/library"].add(exact, ids, plain, baselines[False])
        found["cost of invariant"].add(exact, ids, baselines[False], baselines[True])
        for kind, flag in (("ours", False), ("invariant", True)):
            for drafter in args.drafters:
                for k in args.k:
                    got = ours(spec, ids, args.max_new_tokens, k=k, drafter=drafter, invariant=flag)
                    found[f"{kind} {drafter} k={k}"].add(exact, ids, baselines[flag], got)
        print(f"{number}/{len(prompts)}", *(f"{c.name}: {sum(c.same)}/{len(c.same)}" for c in found.values()), sep="  ")
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="tiny")
    parser.add_argument("--draft", default=None)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--k", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--drafters", nargs="+", default=["ngram"])
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    spec = SpeculativeDecoder(args.target, args.draft, dtype=args.dtype, device=args.device, temperature=0)
    exact = load_model("target", spec.target.name_or_path, device=args.device, dtype="float32")
    prompts = as_ids(spec, read_prompts(args.prompts, args.limit))
    records = [comparison.record() for comparison in measure(spec, exact, prompts, args)]
    for record in records:
        gaps = record["gaps_at_first_difference"]
        print(
            f"{record['comparison']:28} identical {record['identical']}/{record['prompts']}  "
            f"largest gap {max(gaps, default=0.0):.4f}  speed-up {record['median_speedup']:.2f}"
        )
    if args.json is not None:
        about = {
            "torch": torch.__version__,
            "dtype": args.dtype,
            "threads": torch.get_num_threads(),
            "new": args.max_new_tokens,
        }
        args.json.write_text(json.dumps({"about": about, "comparisons": records}, indent=1))


if __name__ == "__main__":
    main()
