"""L5: the command `scripts/benchmark.py`: compare ways to generate on the same prompts.

    benchmark.py                                                        the bundled pair against the library
    benchmark.py --target gpt2-large --draft distilgpt2 --k 2 4 auto    real models
    benchmark.py --target NAME --drafter ngram --prompts FILE.jsonl --category rag --method hf --method hf-lookup
    benchmark.py --geometry gpt2-large:distilgpt2 --acceptance 0.71 --dtype bfloat16 --draft-bits 8 --k auto

Methods take turns, run by run, in one process after a warm-up; every run emits exactly --max-new-tokens tokens unless
--stop-at-eos. The table shows medians, quartiles over runs, and a bootstrap interval over prompts for each speed-up.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers.utils import logging as library_logging

from decoder.api import SpeculativeDecoder
from decoder.bench.measure import Report, compare
from decoder.bench.methods import FOREIGN, Plan, label
from decoder.bench.prediction import predict
from decoder.bench.setup import Setup, add_model_options, add_work_options, lengths, sampling, set_up
from decoder.drafters import DRAFTERS


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="benchmark.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_model_options(made)
    add_work_options(made)
    group = made.add_argument_group("methods")
    group.add_argument(
        "--method",
        action="append",
        choices=[*FOREIGN, "baseline"],
        help="repeatable; default: hf, baseline, and hf-assisted with a draft model",
    )
    group.add_argument(
        "--drafter",
        action="append",
        choices=sorted(set(DRAFTERS) - {"none"}),
        help="speculative runs; repeatable; default: the draft model if there is one, else ngram",
    )
    group.add_argument("--k", nargs="+", default=["4"], help="draft lengths to run: integers, auto (default 4)")
    group.add_argument("--compile", action="store_true", help="run baseline and speculative with compile=True, too")
    group.add_argument("--assistant-tokens", type=int, help="fixed draft length of hf-assisted; default: the library's")
    group.add_argument("--stop-at-eos", action="store_true", help="let texts end at EOS; speeds are then per token")
    group.add_argument("--predict", action="store_true", help="time forwards too and set theory beside each fixed k")
    group.add_argument("--repeats", type=int, default=3, help="timed runs of each method on each prompt (default 3)")
    group.add_argument("--warm-up", type=int, default=1, help="untimed runs of each method first (default 1)")
    group.add_argument("--out", type=Path, help="write PATH.json and PATH.md")
    return made


def _drafters(args: argparse.Namespace, setup: Setup) -> list[str]:
    if args.drafter:
        return list(args.drafter)
    return [setup.spec.drafter.name]


def _methods(args: argparse.Namespace, setup: Setup) -> list[str]:
    methods = args.method or ["hf", *(["hf-assisted"] if setup.assistant is not None else []), "baseline"]
    if args.geometry is not None and "hf-lookup" in methods:
        raise ValueError("--method hf-lookup means nothing with --geometry: its random text never repeats itself.")
    return list(dict.fromkeys(methods))


def run(args: argparse.Namespace) -> Report:
    """The comparison the options ask for.

    Raises:
        ValueError: naming the option.
    """
    chosen = lengths(args.k)
    setup = set_up(args)
    drafts: list[tuple[Any, int | str]] = [(name, k) for name in _drafters(args, setup) for k in chosen]
    plan = Plan(args.max_new_tokens, sampling(args), args.stop_at_eos)
    report = compare(
        setup.spec,
        setup.prompts,
        plan,
        methods=_methods(args, setup),
        drafts=drafts,
        assistant=setup.assistant,
        assistant_tokens=args.assistant_tokens,
        title=setup.title + (", greedy" if plan.params.greedy else f", T = {plan.params.temperature:g}"),
        repeats=args.repeats,
        warm_up=args.warm_up,
        seed=args.seed,
        notes=setup.notes,
        progress=sys.stderr.isatty(),
        compiled=_compiled(setup.spec) if args.compile else None,
    )
    if args.geometry is not None:
        report = _with_reached(report, args.acceptance)
    if not args.predict:
        return report
    fixed = {label(name, k): k for name, k in drafts if isinstance(k, int) and name == "model"}
    predictions = predict(setup.spec, setup.prompts, report.summaries, report.samples, fixed)
    extra = {"predictions": predictions.to_dict()}
    return replace(report, extra=report.extra | extra, appendix=predictions.markdown())


def _compiled(spec: SpeculativeDecoder) -> SpeculativeDecoder:
    """The same models, compiled; the warm-up runs pay for it."""
    target = spec.target_model.model  # packed once for both, where asked for
    draft = None if spec.draft_model is None else spec.draft_model.model
    return SpeculativeDecoder.from_models(target, draft, tokenizer=spec.tokenizer, compile=True)


def _with_reached(report: Report, dialled: float) -> Report:
    """A note with the acceptance that was really reached, per position tested."""
    reached = [each.alpha for each in report.summaries if each.alpha is not None]
    text = ", ".join(f"{value:.3f}" for value in reached)
    extra = {"acceptance_dialled": dialled, "acceptance_reached": reached}
    note = f"acceptance (alpha) dialled {dialled:g}, reached {text or 'nothing drafted'}"
    return replace(report, notes=(*report.notes, note), extra=report.extra | extra)


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    library_logging.set_verbosity_error()
    try:
        report = run(args)
        print(report.markdown())
        if args.out is not None:
            report.write(args.out)
    except (ValueError, TypeError, OSError) as error:
        print(f"benchmark.py: {error}", file=sys.stderr)
        return 2
    return 0
