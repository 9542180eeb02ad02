"""Experiments 03a and 03b: the theory on a random toy pair, where nothing depends on what a text means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from decoder.api import SpeculativeDecoder
from decoder.measure.prediction import geometric
from decoder.models.toy import noisy_copy, toy_model
from decoder.report.figures import new_figure, save, series
from decoder.results import GenerationResult
from decoder.types import SamplingParams
from lab.experiments.overlap import distributions, overlap
from lab.runner import Row

NOISE = 0.15
TOKENS, PROMPT = 96, [5, 9, 11, 3]
TEMPERATURES = (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0)


def toy_decoder(seed: int) -> SpeculativeDecoder:
    target = toy_model("llama", seed)
    return SpeculativeDecoder.from_models(target, noisy_copy(target, NOISE, seed + 1), top_p=1.0, verifier="token")


def run(spec: SpeculativeDecoder, k: int, temperature: float, rows: int, seed: int) -> list[GenerationResult]:
    """`rows` texts of one prompt in one batch."""
    found: list[GenerationResult] = spec.generate(
        [PROMPT] * rows,
        k=k,
        temperature=temperature,
        max_new_tokens=TOKENS,
        eos_token_id=None,
        seed=seed,
        batch_size=rows,
    )
    return found


def pooled_alpha(results: Sequence[GenerationResult]) -> float:
    steps = [step for result in results for step in result.steps[1:]]
    return sum(step.accepted for step in steps) / max(1, sum(step.tested for step in steps))


def tested_overlap(spec: SpeculativeDecoder, result: GenerationResult, temperature: float) -> torch.Tensor:
    """sum min(p, q) at each position of the text that was really tested (all but bonus and plain tokens)."""
    ids = [*result.prompt_token_ids, *result.token_ids]
    if temperature == 0.0:
        logits = [model(torch.tensor([ids])).logits[0] for model in (spec.target, spec.draft)]
        agree = (logits[0].argmax(-1) == logits[1].argmax(-1)).float()
    else:
        params = SamplingParams(temperature=temperature, top_p=1.0)
        p, q = (distributions(model, ids, params, 64) for model in (spec.target, spec.draft))
        agree = overlap(p, q)
    before = len(result.prompt_token_ids) - 1
    places = [before + i for i, fate in enumerate(result.fates) if fate in ("accepted", "recovered")]
    chosen: torch.Tensor = agree[places]
    return chosen


class ToyLength:
    number, name = "03a", "toy-draft-length"
    question = "Does the geometric model predict tokens per round on a random toy pair, k = 1 ... 8?"
    columns = ("alpha", "tokens_per_iteration", "geometric", "difference")
    hidden = ()

    def points(self) -> list[Row]:
        return [{"k": k} for k in range(1, 9)]

    def measure(self, point: Row) -> Row:
        results = [r for seed in range(8) for r in run(toy_decoder(seed), point["k"], 1.0, 8, seed)]
        alpha = pooled_alpha(results)
        rounds = [step for result in results for step in result.steps[1:] if len(step.drafted) == point["k"]]
        tokens = sum(step.accepted + 1 for step in rounds) / len(rounds)  # the end of a text is cut
        model = geometric(alpha, point["k"])
        return {"alpha": alpha, "tokens_per_iteration": tokens, "geometric": model, "difference": tokens - model}

    def draw(self, rows: Sequence[Row], folder: Path) -> list[str]:
        figure, (axes,) = new_figure(6.4, 3.8)
        ks = [row["k"] for row in rows]
        axes.plot(ks, [row["tokens_per_iteration"] for row in rows], label="measured", **series(0))
        model = series(1) | {"linestyle": "--", "markerfacecolor": "white"}
        axes.plot(ks, [row["geometric"] for row in rows], label="geometric model (alpha of the same run)", **model)
        axes.set(xlabel="draft length k [tokens]", ylabel="tokens per round [tokens]", ylim=(0, None))
        axes.legend()
        save(figure, folder / "tokens-per-round.png")
        return ["tokens-per-round.png"]

    def reading(self, rows: Sequence[Row]) -> str:
        worst = max(rows, key=lambda row: abs(row["difference"]))
        return (
            f"Over {len(rows)} lengths, each with 8 random pairs pooled, the measured tokens per round differ from the "
            f"model by at most {abs(worst['difference']):.2f} (k = {worst['k']}). The model has one alpha for all "
            "positions; here it is that of the same run, and it varies a little from k to k because the texts do."
        )


class ToyTemperature:
    number, name = "03b", "toy-temperature"
    question = "Does acceptance equal the mean of 1 - TV(p, q), and what happens as T goes to 0 and to infinity?"
    columns = ("alpha", "one_minus_tv", "half_width")
    hidden = ()

    def points(self) -> list[Row]:
        return [{"temperature": t} for t in TEMPERATURES]

    def measure(self, point: Row) -> Row:
        results, overlaps = [], []
        for seed in range(8):
            spec = toy_decoder(seed)
            found = run(spec, 4, point["temperature"], 8, seed)
            results += found
            overlaps += [tested_overlap(spec, result, point["temperature"]) for result in found]
        values = torch.cat(overlaps)
        alpha = pooled_alpha(results)
        half = 1.96 * (alpha * (1 - alpha) / max(1, len(values))) ** 0.5
        return {"alpha": alpha, "one_minus_tv": float(values.mean()), "half_width": half}

    def draw(self, rows: Sequence[Row], folder: Path) -> list[str]:
        figure, (axes,) = new_figure(6.4, 3.8)
        ts = [row["temperature"] for row in rows]
        widths = [row["half_width"] for row in rows]
        axes.errorbar(ts, [row["alpha"] for row in rows], yerr=widths, capsize=3, label="measured alpha", **series(0))
        theory = series(1) | {"linestyle": "--", "markerfacecolor": "white", "markersize": 9, "zorder": 1}
        axes.plot(ts, [row["one_minus_tv"] for row in rows], label="1 - TV(p, q), mean", **theory)
        axes.set(xlabel="temperature T", ylabel="acceptance [share]", ylim=(0, 1.02))
        axes.legend()
        save(figure, folder / "acceptance-over-temperature.png")
        return ["acceptance-over-temperature.png"]

    def reading(self, rows: Sequence[Row]) -> str:
        inside = sum(abs(row["alpha"] - row["one_minus_tv"]) <= row["half_width"] for row in rows)
        return (
            f"Measured alpha lies within its 95 % interval of the mean overlap at {inside} of {len(rows)} "
            "temperatures. "
            f"At T = 0 it is the share of equal argmaxes ({rows[0]['alpha']:.3f}); as T grows both distributions go "
            f"to the uniform one and alpha to 1 ({rows[-1]['alpha']:.3f} at T = {rows[-1]['temperature']:g})."
        )
