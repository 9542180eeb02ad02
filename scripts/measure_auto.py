"""Does k="auto" keep its promises here? Plain decoding, fixed lengths and k="auto", interleaved on the same prompts.

    python scripts/measure_auto.py --target FOLDER --draft FOLDER --temperature 0
    python scripts/measure_auto.py --max-new-tokens 256 --temperature 0.8      # the bundled pair
    python scripts/measure_auto.py --toy --max-new-tokens 24 --repeats 1       # dry run on random toys, says nothing

Two promises are checked: with a hopeless draft (the draft's own shape, random weights) at least 0.95 of plain
decoding's speed, and with the given draft within 7 % of the best fixed length. Each is measured for a decoder that has
learnt from earlier calls and for a fresh one at every call. `--stop-below` adds early stopping by the draft's
confidence. Measure on an otherwise idle machine: k="auto" follows measured times, and so does the verdict.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM

from decoder.api import SpeculativeDecoder
from decoder.arguments import add_length, add_repeats, add_sampling, fixed_lengths
from decoder.drafters import ModelDrafter
from decoder.measure.comparison import ComparisonReport
from decoder.measure.environment import environment
from decoder.measure.methods import OwnMethod, Plan
from decoder.measure.setup import Setup
from decoder.measure.summary import MethodSummary, summarise
from decoder.measure.timing import RunOutput, interleaved
from decoder.models.packed import packed_copy
from decoder.models.toy import noisy_copy, toy_model
from decoder.types import SamplingParams
from lab.setup import SOURCE, set_up

HOPELESS_GOAL = 0.95
BEST_FIXED_GOAL = 1.07


@dataclass
class FreshDecoder:
    """k="auto" by a decoder that has learnt nothing: built anew, around the same models, for every call."""

    name: str
    make: Callable[[], SpeculativeDecoder]
    plan: Plan
    device: torch.device

    def __call__(self, prompt: Sequence[int], seed: int) -> RunOutput:
        return OwnMethod(self.name, self.make(), self.plan, "auto")(prompt, seed)


def hopeless_copy(draft: Any, seed: int = 0) -> Any:
    """A model of the draft's shape and dtype with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(copy.deepcopy(draft.config))
    return model.to(device=draft.device, dtype=draft.dtype).eval()


def methods(setup: Setup, plan: Plan, lengths: Sequence[int], thresholds: Sequence[float]) -> list[Any]:
    spec = setup.spec
    hopeless = hopeless_copy(setup.assistant)
    if spec.packed:
        hopeless = packed_copy(hopeless, "hopeless draft")
    device = torch.device(spec.target.device)

    def decoder(draft: Any) -> SpeculativeDecoder:
        return SpeculativeDecoder.from_models(spec.target_model.model, draft, tokenizer=spec.tokenizer)

    found: list[Any] = [OwnMethod("baseline", spec, plan)]
    found += [OwnMethod(f"k={k}", spec, plan, k) for k in lengths]
    found += [
        OwnMethod("auto", spec, plan, "auto"),
        FreshDecoder("auto, fresh", lambda: decoder(spec.draft_model.model), plan, device),
        OwnMethod("auto, hopeless draft", decoder(hopeless), plan, "auto"),
        FreshDecoder("auto, hopeless draft, fresh", lambda: decoder(hopeless), plan, device),
    ]
    for threshold in thresholds:
        drafter = spec.drafter
        if not isinstance(drafter, ModelDrafter):
            raise ValueError(f"--stop-below needs a draft model, and drafter={drafter.name!r} is none; leave it out.")
        unsure = drafter.stopping_below(threshold)
        found.append(OwnMethod(f"auto, stop below {threshold:g}", spec, plan, "auto", unsure))
    return found


def verdicts(summaries: Sequence[MethodSummary], lengths: Sequence[int]) -> list[str]:
    """The two promises, each against its goal, in words."""
    seconds = {summary.name: summary.seconds / summary.tokens for summary in summaries}
    best = min((f"k={k}" for k in lengths), key=seconds.__getitem__)
    if seconds["baseline"] < seconds[best]:
        best = "baseline"
    lines = []
    for suffix in ("", ", fresh"):
        share = seconds["baseline"] / seconds[f"auto, hopeless draft{suffix}"]
        word = "kept" if share >= HOPELESS_GOAL else "NOT KEPT"
        lines.append(f"hopeless draft{suffix}: {share:.3f}x plain decoding (goal {HOPELESS_GOAL}): {word}")
        excess = seconds[f"auto{suffix}"] / seconds[best]
        word = "kept" if excess <= BEST_FIXED_GOAL else "NOT KEPT"
        lines.append(f"auto{suffix}: {excess:.3f} of the time of {best} (goal {BEST_FIXED_GOAL}): {word}")
    return lines


def toys() -> Setup:
    """A random toy and a noisy copy of it: they show that the script runs, and nothing about speed."""
    target = toy_model("llama", 0)
    spec = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.1))
    prompts = [[3, 5, 7, 11], [4, 6, 9, 10, 14]]
    return Setup(spec, spec.draft, prompts, "Random toys", ("A dry run: these times say nothing.",))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    SOURCE.add_models(made)
    SOURCE.add_prompts(made, "bench")
    add_sampling(made)
    add_length(made)
    add_repeats(made)
    made.add_argument("--toy", action="store_true", help="random toy models: a dry run")
    made.add_argument("--k", type=fixed_lengths, default=[1, 2, 3, 4, 6, 8], help="fixed lengths (default 1,2,3,4,6,8)")
    made.add_argument("--stop-below", type=float, nargs="*", default=[], help="early stop thresholds to try")
    made.add_argument("--out", type=Path, help="write the report here as JSON")
    return made


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    return parser().parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    setup = toys() if args.toy else set_up(args)
    if setup.spec.draft is None:
        raise ValueError("--target without --draft leaves nothing to compare; give a draft model.")
    params = SamplingParams(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p)
    plan = Plan(args.max_new_tokens, params, repeats=args.repeats, seed=args.seed or 0)
    rivals = methods(setup, plan, args.k, args.stop_below)
    samples = interleaved(
        rivals,
        setup.ids(),
        repeats=args.repeats,
        seed=plan.seed,
        watch=lambda turns, total: tqdm(turns, total=total, disable=not sys.stderr.isatty()),
    )
    summaries = summarise(samples, ("baseline",), outputs_comparable=plan.params.greedy)
    found = verdicts(summaries, args.k)
    place = environment(setup.spec.target, setup.spec.draft)
    report = ComparisonReport(setup.title, plan, tuple(summaries), tuple(samples), place, (*setup.notes, *found))
    print(report.markdown())
    if args.out is not None:
        report.write(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
