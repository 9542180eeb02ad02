"""Time per draft step and alpha against the size of a draft's vocabulary (FR-Spec, arXiv 2502.14856).

    python scripts/measure_reduced_vocabulary.py --target MODEL --draft MODEL --prompts prompts.jsonl \
        --sizes 1024 4096 16384 --out reduced.json

Prompts are JSON lines with "turns" (the first is used) or "prompt". Tokens are ranked by frequency in the target's
own answers to the prompts that are kept out of the measurement (`--rank-on`, the first of the file), and the whole
vocabulary is always the last row. Draft steps are timed alone, interleaved over the sizes; alpha and tokens per
iteration come from generating.

An --out file that is there already keeps its rows, and only sizes it lacks are measured, so a long list can be measured
in pieces (the steps of one piece are interleaved, those of different pieces are not). It must have been begun with
the same options.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from decoder import SpeculativeDecoder
from decoder.bench.environment import environment
from decoder.drafters import ModelDrafter, ReducedVocabularyDrafter
from decoder.drafters.reduced import most_frequent
from decoder.report.tables import markdown_table


def read_prompts(path: Path, limit: int | None) -> list[str]:
    """The first turn of each line."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [line["turns"][0] if "turns" in line else line["prompt"] for line in lines][:limit]


def as_prompt(text: str, spec: SpeculativeDecoder) -> Any:
    """A chat message where the tokenizer has a template."""
    chat = getattr(spec.tokenizer, "chat_template", None) is not None
    return [{"role": "user", "content": text}] if chat else text


def step_seconds(drafters: Sequence[ModelDrafter], context: Sequence[int], repeats: int) -> list[float]:
    """Median seconds of one draft step of each drafter, all taking turns."""
    sessions = []
    with torch.inference_mode():
        for drafter in drafters:
            session = drafter.model.open(1, len(context) + 1)
            session.feed(torch.tensor([list(context)]), [0], [len(context) - 1])
            session.commit([len(context)])
            sessions.append(session)
        taken: list[list[float]] = [[] for _ in drafters]
        last = torch.tensor([[context[-1]]])
        for turn in range(repeats + 1):
            for session, seconds in zip(sessions, taken, strict=True):
                began = time.perf_counter()
                session.feed(last, [len(context)])
                if turn > 0:  # the first turn warms up
                    seconds.append(time.perf_counter() - began)
    return [median(seconds) for seconds in taken]


def pooled(results: Sequence[Any]) -> tuple[float, float]:
    """(alpha, tokens per iteration), counts pooled over prompts."""
    rounds = [step for result in results for step in result.steps[1:]]
    tested = sum(step.tested for step in rounds)
    accepted = sum(step.accepted for step in rounds)
    return accepted / tested if tested else float("nan"), sum(len(step.emitted) for step in rounds) / len(rounds)


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What makes two pieces the same measurement; without a person's folders."""
    kept = {name: value for name, value in vars(options).items() if name not in ("out", "sizes")}
    return {name: Path(value).name if isinstance(value, (str, Path)) else value for name, value in kept.items()}


def earlier_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of an earlier piece.

    Raises:
        SystemExit: it was begun with other options.
    """
    if options.out is None or not options.out.exists():
        return []
    record = json.loads(options.out.read_text(encoding="utf-8"))
    if record["options"] != settings_of(options):
        raise SystemExit(f"{options.out} was begun with other options; name another --out, or remove it.")
    rows: list[dict[str, Any]] = record["rows"]
    return rows


def measure(
    spec: SpeculativeDecoder, options: argparse.Namespace, rows: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """A row per size, the whole vocabulary last; those in `rows` are there already."""
    prompts = [as_prompt(text, spec) for text in read_prompts(options.prompts, options.limit)]
    ranking, measured = prompts[: options.rank_on], prompts[options.rank_on :]
    if not ranking or not measured:
        raise SystemExit(
            f"--rank-on {options.rank_on} leaves nothing to rank on or to measure in {len(prompts)} prompts."
        )
    call = {"max_new_tokens": options.new_tokens, "temperature": options.temperature, "seed": 0}
    answers = [spec.generate(prompt, k=options.k, **call).token_ids for prompt in ranking]
    whole = spec._target.vocab_size
    known = {row["tokens"] for row in rows}
    sizes = sorted({min(size, whole) for size in options.sizes} - {whole} - known)
    recipes = [ReducedVocabularyDrafter(most_frequent(answers, spec.tokenizer, size)) for size in sizes]
    drafters: list[ModelDrafter] = [recipe.bind(spec._target, spec._draft) for recipe in recipes]
    assert spec._draft is not None
    measured_sizes = [*sizes, *({whole} - known)]
    drafters += [ModelDrafter(spec._draft)] * (whole not in known)
    context = list(spec.generate(measured[0], k=0, max_new_tokens=1).prompt_token_ids)
    found = list(rows)
    steps_s = step_seconds(drafters, context, options.repeats)
    for size, drafter, step_s in zip(measured_sizes, drafters, steps_s, strict=True):
        results = [spec.generate(prompt, k=options.k, drafter=drafter, **call) for prompt in measured]
        alpha, tokens = pooled(results)
        found.append({"tokens": size, "draft_step_s": step_s, "alpha": alpha, "tokens_per_iteration": tokens})
    return sorted(found, key=lambda row: row["tokens"])


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--target", required=True, help="name or folder")
    made.add_argument("--draft", required=True, help="name or folder; may be the target itself")
    made.add_argument("--prompts", type=Path, required=True, help="JSON lines")
    made.add_argument("--sizes", type=int, nargs="+", default=[1024, 4096, 8192, 16384, 32768])
    made.add_argument(
        "--rank-on", type=int, default=16, help="prompts whose answers rank the tokens (default: %(default)s)"
    )
    made.add_argument("--limit", type=int, help="prompts read in all")
    made.add_argument("--k", type=int, default=4)
    made.add_argument("--new-tokens", type=int, default=128)
    made.add_argument("--temperature", type=float, default=0.0)
    made.add_argument("--repeats", type=int, default=30, help="timed draft steps a size (default: %(default)s)")
    made.add_argument("--out", type=Path, help="JSON file")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    spec = SpeculativeDecoder(options.target, options.draft, temperature=options.temperature)
    rows = measure(spec, options, earlier_rows(options))
    table = [
        [
            f"{row['tokens']:,}",
            f"{1e3 * row['draft_step_s']:.2f}",
            f"{row['alpha']:.3f}",
            f"{row['tokens_per_iteration']:.2f}",
        ]
        for row in rows
    ]
    print(markdown_table(["tokens", "draft step, ms", "alpha", "tokens per iteration"], table))
    if options.out is not None:
        record = {"rows": rows, "environment": environment(), "options": settings_of(options)}
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
