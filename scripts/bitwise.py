"""How often does speculation change a greedy text by rounding alone, and what does one fixed shape cost?

    python scripts/bitwise.py --target FOLDER --prompts prompts.jsonl --json out.json --only 0:10

Greedy texts of each prompt, compared token for token:

    library lookup      transformers' generate with prompt lookup against its plain generate
    library assisted    the same with an assistant model: a draft, or the target's own 4-bit copy
    ours/library        our baseline against transformers' plain generate
    ours DRAFTER:K      speculative against our baseline
    invariant DRAFTER:K the same, both with invariant=True
    invariant/ours      our invariant baseline against our baseline: what the fixed shape costs and changes

Where two texts part, the gap between the target's two best logits there (computed in float32 from the same weights) is
recorded, and how many steps of the dtype that is at their size: rounding explains a few steps.

Every prompt is written to the JSON file as soon as it is done, and prompts that stand there already are not run again,
so that a long run may be stopped and taken up. Only token counts, places and seconds are written, no text. Speed-ups
are medians over prompts of the ratio of seconds of runs that follow each other.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from decoder import SpeculativeDecoder
from decoder.measure.prompts import as_ids, read_prompts
from decoder.models.loading import load_model, load_tokenizer
from decoder.models.quantize import quantized_copy

Timed = tuple[list[int], float]  # ids, seconds


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    if list(one) == list(other):
        return None
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def gap_at(exact: Any, prompt: Sequence[int], text: Sequence[int], dtype: torch.dtype) -> tuple[float, float]:
    """(difference of the two best float32 logits after the text, the same in steps of `dtype` at their size)."""
    with torch.inference_mode():
        logits = exact(torch.tensor([[*prompt, *text]], device=exact.device)).logits[0, -1].float()
    best, second = logits.topk(2).values.tolist()
    step = torch.finfo(dtype).eps * 2.0 ** int(torch.tensor(abs(best)).log2().floor())
    return best - second, (best - second) / step


def library(model: Any, ids: list[int], new: int, **options: Any) -> Timed:
    tensor = torch.tensor([ids], device=model.device)
    began = time.perf_counter()
    out = model.generate(
        tensor, attention_mask=torch.ones_like(tensor), max_new_tokens=new, do_sample=False, pad_token_id=0, **options
    )
    return out[0, len(ids) :].tolist(), time.perf_counter() - began


def ours(spec: SpeculativeDecoder, ids: list[int], new: int, **options: Any) -> Timed:
    result = spec.generate(torch.tensor(ids), max_new_tokens=new, temperature=0, **options)
    return list(result.token_ids), result.wall_s


class Bench:
    """The models and what is to be compared; `compare` runs one prompt."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        options = {"device": args.device}
        self.target = load_model("target", args.target, dtype=args.dtype, **options)
        self.target.set_attn_implementation(args.attention)
        self.exact = load_model("target", args.target, dtype="float32", **options)
        self.draft = None if args.draft is None else load_model("draft", args.draft, dtype=args.dtype, **options)
        tokenizer = load_tokenizer("target", args.target)
        self.spec = SpeculativeDecoder.from_models(self.target, self.draft, tokenizer=tokenizer, temperature=0)
        self.assistant = self.draft
        if self.draft is None and self.target.device.type == "cpu" and "assisted" in args.library:
            self.assistant = quantized_copy(self.target, 4, head_bits=8, group_size=32)

    def about(self) -> dict[str, Any]:
        """What must be the same for two pieces to belong together."""
        return {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "processor": platform.processor() or platform.machine(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "device": str(self.target.device),
            "dtype": self.args.dtype,
            "attention": self.args.attention,
            "threads": torch.get_num_threads(),
            "new_tokens": self.args.max_new_tokens,
            "target": Path(self.args.target).name,
        }

    def runs(self, ids: list[int]) -> dict[str, tuple[str, Callable[[], Timed]]]:
        """Name of the comparison -> (what it is compared with, how to run it); in an order that runs those first."""
        new, spec = self.args.max_new_tokens, self.spec
        found: dict[str, tuple[str, Callable[[], Timed]]] = {}
        if self.args.library:
            found["library"] = ("", lambda: library(self.target, ids, new))
        if "lookup" in self.args.library:
            found["library lookup"] = ("library", lambda: library(self.target, ids, new, prompt_lookup_num_tokens=10))
        if "assisted" in self.args.library and self.assistant is not None:
            found["library assisted"] = (
                "library",
                lambda: library(self.target, ids, new, assistant_model=self.assistant),
            )
        base = "ours/library" if self.args.library else "ours" if self.args.ours else ""
        if base:
            found[base] = ("library" if self.args.library else "", lambda: ours(spec, ids, new, k=0))
        fixed = "invariant/ours" if base else "invariant"
        for kind, flag, plain in (("ours", False, base), ("invariant", True, fixed)):
            if flag and self.args.invariant:
                found[plain] = (base, lambda: ours(spec, ids, new, k=0, invariant=True))
            for name in self.args.invariant if flag else self.args.ours:
                drafter, _, k = name.partition(":")
                options = {"drafter": drafter, "k": int(k), "invariant": flag}
                found[f"{kind} {name}"] = (plain, lambda options=options: ours(spec, ids, new, **options))
        return found

    def compare(self, ids: list[int]) -> dict[str, Any]:
        texts: dict[str, Timed] = {}
        record: dict[str, Any] = {}
        for name, (against, run) in self.runs(ids).items():
            texts[name] = run()
            if not against:
                continue
            (one, one_s), (other, other_s) = texts[against], texts[name]
            at = first_difference(one, other)
            record[name] = {"differ_at": at, "tokens": len(other)}
            if not self.args.no_times:
                record[name] |= {"seconds": round(other_s, 4), "against_seconds": round(one_s, 4)}
            if at is not None:
                gap, steps = gap_at(self.exact, ids, one[:at], self.target.dtype)
                record[name] |= {"gap": round(gap, 6), "gap_steps": round(steps, 3)}
        return record


def summary(prompts: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each comparison, over the prompts that have it."""
    lines = []
    for name in dict.fromkeys(name for record in prompts.values() for name in record):
        found = [record[name] for record in prompts.values() if name in record]
        apart = [each for each in found if each["differ_at"] is not None]
        ratios = [each["against_seconds"] / each["seconds"] for each in found if "seconds" in each]
        lines.append(
            {
                "comparison": name,
                "prompts": len(found),
                "identical": len(found) - len(apart),
                "gaps": sorted(each["gap"] for each in apart),
                "largest_gap_steps": max((each["gap_steps"] for each in apart), default=0.0),
                "timed": len(ratios),
                "median_speedup": round(statistics.median(ratios), 3) if ratios else None,
            }
        )
    return lines


def take_up(path: Path | None, about: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The prompts already done. A file made otherwise is refused."""
    if path is None or not path.exists():
        return {}
    held = json.loads(path.read_text())
    if held["about"] != about:
        differing = sorted(name for name in about if held["about"].get(name) != about[name])
        raise SystemExit(f"{path} was made with another {differing}; give another --json.")
    return dict(held["prompts"])


def save(path: Path | None, about: dict[str, Any], done: dict[str, dict[str, Any]]) -> None:
    if path is None:
        return
    ordered = dict(sorted(done.items(), key=lambda item: int(item[0])))
    body = {"about": about, "summary": summary(ordered), "prompts": ordered}
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(body, indent=1))
    part.replace(path)  # a run that is stopped here leaves the old file whole


def measure(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    bench = Bench(args)
    about = bench.about()
    done = take_up(args.json, about)
    prompts = as_ids(bench.spec, read_prompts(args.prompts, args.limit))
    first, _, last = args.only.partition(":")
    for number in range(int(first or 0), min(int(last or len(prompts)), len(prompts))):
        missing = set(bench.runs([])) - {"library", "ours", "invariant"} - set(done.get(str(number), {}))
        if not missing:
            continue
        began = time.perf_counter()
        done[str(number)] = bench.compare(prompts[number])
        save(args.json, about, done)
        same = sum(each["differ_at"] is None for each in done[str(number)].values())
        print(
            f"prompt {number}: {same} of {len(done[str(number)])} comparisons identical, "
            f"{time.perf_counter() - began:.0f} s",
            flush=True,
        )
    return done


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--target", required=True)
    made.add_argument("--draft", default=None)
    made.add_argument("--prompts", type=Path, required=True, help="a file of prompts")
    made.add_argument("--only", default=":", help="of these, the numbers FIRST:END, as in 0:10")
    made.add_argument("--limit", type=int, default=None)
    made.add_argument("--dtype", default="bfloat16")
    made.add_argument("--attention", default="sdpa", choices=["sdpa", "eager"])
    made.add_argument("--device", default="auto")
    made.add_argument("--max-new-tokens", type=int, default=64)
    made.add_argument("--library", nargs="*", default=["lookup", "assisted"], choices=["lookup", "assisted"])
    made.add_argument("--ours", nargs="*", default=["ngram:4", "quantized:4"], metavar="DRAFTER:K")
    made.add_argument("--invariant", nargs="*", default=["ngram:4", "suffix:8"], metavar="DRAFTER:K")
    made.add_argument("--no-times", action="store_true", help="leave seconds out: other work shares the machine")
    made.add_argument("--json", type=Path, default=None)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    for line in summary(measure(args)):
        print(
            f"{line['comparison']:24} identical {line['identical']}/{line['prompts']}  "
            f"largest gap {max(line['gaps'], default=0.0):.4f} ({line['largest_gap_steps']:.1f} steps)  "
            f"speed {line['median_speedup'] or 'not timed'}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
