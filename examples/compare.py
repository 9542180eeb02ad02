"""Plain, speculative and the library's own assisted decoding on the same work, side by side.

    python examples/compare.py                                     # the bundled pair, no network
    python examples/compare.py --target gpt2-medium --draft gpt2   # any pair of hub models or folders
    python examples/compare.py --target FOLDER --drafter ngram --prompts prompts.jsonl --temperature 0

The methods take turns on every prompt, after a warm-up; the table shows medians over all runs. Texts end after exactly
`--max-new-tokens` tokens (EOS is ignored), so that all methods do the same work. One text is printed with its tokens
marked: accepted (drafted and kept), recovered (the target's after a rejection), bonus (after full acceptance).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from decoder import SpeculativeDecoder
from decoder.drafters import DRAFTERS
from decoder.measure.comparison import Report, compare
from decoder.measure.methods import Plan
from decoder.measure.prompts import OWN_PROMPTS, as_ids, read_prompts
from decoder.report.tables import terminal_table
from decoder.report.terminal import coloured, legend, visible, wants_colour
from decoder.types import SamplingParams


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--target", default="tiny", help="hub name or folder; default: the bundled pair")
    parser.add_argument("--draft", help="hub name or folder of a draft model")
    parser.add_argument(
        "--drafter", choices=sorted(DRAFTERS), help="default: the draft model if there is one, else ngram"
    )
    parser.add_argument("--prompts", type=Path, help=".txt (a prompt a line) or .jsonl with prompt or turns")
    parser.add_argument("--limit", type=int, default=4, help="prompts used from the file (default 4)")
    parser.add_argument("--k", type=draft_length, default=4, help="drafted tokens a round, or auto (default 4)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of every method on every prompt (default 3)")
    parser.add_argument("--packed", action="store_true", help="our methods over packed matrices (CPU), hf* as loaded")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="also write the account as JSON and Markdown to this path")
    return parser.parse_args(argv)


def draft_length(text: str) -> int | str:
    return text if text == "auto" else int(text)


def table(report: Report) -> str:
    """One line a method: speed, acceptance and where the seconds of one pass over the prompts went."""
    headers = ["method", "tok/s", "speed-up", "vs hf", "accept", "alpha", "tok/iter"]
    headers += ["prefill s", "draft s", "target s", "overhead s", "greedy output"]
    rows: list[list[object]] = []
    for each in report.summaries:
        counts, runs = each.counts, len({(s.repeat) for s in report.samples})
        seconds: list[object] = [None] * 4
        if counts is not None:
            parts = (counts.prefill_s, counts.draft_s, counts.target_s, counts.overhead_s)
            seconds = [part / runs for part in parts]
        ratio = {name: interval.ratio for name, interval in each.speedups.items()}
        same = each.agreement.get("baseline")
        verdict = "-" if same is None else "identical" if same.equal == same.of else f"{same.equal}/{same.of} identical"
        rows.append(
            [
                each.name,
                each.tokens_per_second,
                ratio.get("baseline", 1.0),
                ratio.get("hf", 1.0),
                each.acceptance_rate,
                each.alpha,
                each.tokens_per_iteration,
                *seconds,
                verdict,
            ]
        )
    return terminal_table(headers, rows)


def show_one(spec: SpeculativeDecoder, prompt: Sequence[int], options: argparse.Namespace) -> None:
    """One text with every token marked by its fate."""
    result = spec.generate(
        list(prompt),
        k=options.k,
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=0,
    )
    colour = wants_colour(sys.stdout)
    print(f"\n{legend() if colour else 'accepted tokens in [brackets]'}")
    if colour:
        print(coloured(result))
        return
    pieces = zip(result.token_texts, result.fates, strict=True)
    print("".join(f"[{visible(text)}]" if fate == "accepted" else visible(text) for text, fate in pieces))


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    try:
        params = SamplingParams(temperature=options.temperature, top_p=options.top_p)
        spec = SpeculativeDecoder(
            options.target,
            options.draft,
            drafter=options.drafter,
            device=options.device,
            dtype=options.dtype,
            packed=options.packed,
            temperature=options.temperature,
            top_p=options.top_p,
        )
        prompts = as_ids(
            spec, read_prompts(options.prompts, options.limit) if options.prompts else OWN_PROMPTS[: options.limit]
        )
        rival = "hf-lookup" if spec.draft is None or options.drafter == "ngram" else "hf-assisted"
        report = compare(
            spec,
            prompts,
            Plan(options.max_new_tokens, params),
            methods=["hf", rival, "baseline"],
            drafts=[(None, options.k)],
            title=f"{Path(options.target).name}: {len(prompts)} prompts x {options.max_new_tokens} tokens",
            repeats=options.repeats,
            notes=["our methods run over packed matrices (packed=True), hf* as loaded"] if options.packed else [],
            progress=sys.stderr.isatty(),
        )
    except (ValueError, TypeError, OSError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    print(f"{report.title}, temperature {options.temperature:g}; times are seconds for one pass over the prompts\n")
    print(table(report))
    for note in report.notes:
        print(f"- {note}")
    show_one(spec, prompts[0], options)
    if options.out is not None:
        report.write(options.out)
        print(f"\nwritten: {options.out.with_suffix('.json')} and {options.out.with_suffix('.md')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
