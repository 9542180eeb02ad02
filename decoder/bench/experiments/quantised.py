"""L5: experiment 05: the same draft in float32, bfloat16, int8 and int4: what coarser weights cost in acceptance.

For any two drafts q and q' of one target, |alpha - alpha'| <= TV(q, q') at every position, since the overlap with p is
1-Lipschitz in total variation. The measured side of the bound stands beside it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from decoder.api import SpeculativeDecoder
from decoder.bench.experiments.overlap import laws, mean_and_error, overlap
from decoder.bench.measure import compare
from decoder.bench.methods import Plan
from decoder.bench.prompts import OWN_PROMPTS, as_ids
from decoder.bench.sweep import Row
from decoder.drafters import ModelDrafter
from decoder.models.hf import CausalModel
from decoder.models.quantize import quantized_copy
from decoder.report.figures import filling, new_figure, save
from decoder.types import SamplingParams

FORMS = ("float32", "bfloat16", "int8", "int4")
LENGTHS = (2, 4, 6)


def in_form(draft: Any, form: str) -> Any:
    """The draft with its weights in this form; activations in bfloat16 except for float32."""
    if form == "float32":
        return copy.deepcopy(draft).float()
    plain = copy.deepcopy(draft).bfloat16()
    return plain if form == "bfloat16" else quantized_copy(plain, bits=8 if form == "int8" else 4)


class QuantisedDrafts:
    number, name = "05", "quantised-drafts"
    question = (
        "How much acceptance does a draft lose when its weights are quantised, is |alpha16 - alpha4| <= TV(q16, q4) "
        "tight, and does the cheaper step pay? (Bundled pair, T = 1.)"
    )
    columns = (
        *("alpha", "alpha_half_width", "alpha_change", "tv_to_bfloat16", "tv_half_width", "step_ms"),
        *("best_k", "speedup", "lower", "upper"),
    )

    def __init__(self, prompts: int = 6, tokens: int = 96, repeats: int = 3) -> None:
        self._prompts, self._tokens, self._repeats = prompts, tokens, repeats
        self._spec: SpeculativeDecoder | None = None

    def points(self) -> list[Row]:
        return [{"draft_weights": form} for form in FORMS]

    @property
    def spec(self) -> SpeculativeDecoder:
        if self._spec is None:
            self._spec = SpeculativeDecoder(temperature=1.0, top_p=1.0)
        return self._spec

    def _laws_on_texts(self, prompts: Sequence[Sequence[int]], draft: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Per position of the target's own texts: sum min(p, q), and TV(q in bfloat16, q in this form)."""
        params, plain = SamplingParams(), in_form(self.spec.draft, "bfloat16")
        overlaps, distances = [], []
        for seed, prompt in enumerate([*prompts] * 4):
            result = self.spec.generate_baseline(
                list(prompt), max_new_tokens=self._tokens, eos_token_id=None, seed=seed
            )
            ids = [*result.prompt_token_ids, *result.token_ids][:-1]
            p, q, q16 = (laws(model, ids, params, 4096) for model in (self.spec.target, draft, plain))
            here = slice(len(prompt) - 1, None)
            overlaps.append(overlap(p, q)[here])
            distances.append(1 - overlap(q16, q)[here])
        return torch.cat(overlaps), torch.cat(distances).clamp(min=0)

    def measure(self, point: Row) -> Row:
        prompts = as_ids(self.spec, OWN_PROMPTS[: self._prompts])
        draft = in_form(self.spec.draft, point["draft_weights"])
        overlaps, distances = self._laws_on_texts(prompts, draft)
        plain, _ = self._laws_on_texts(prompts, in_form(self.spec.draft, "bfloat16"))
        drafter = ModelDrafter(CausalModel(draft, "draft", *self.spec._vocabulary))
        plan = Plan(self._tokens, SamplingParams())
        report = compare(
            self.spec,
            prompts,
            plan,
            methods=["baseline"],
            drafts=[(drafter, k) for k in LENGTHS],
            repeats=self._repeats,
        )
        best = max(report.summaries[1:], key=lambda each: each.speedups["baseline"].ratio)
        assert best.counts is not None
        alpha, half = mean_and_error(overlaps)
        distance, distance_half = mean_and_error(distances)
        interval = best.speedups["baseline"]
        return {
            "alpha": alpha,
            "alpha_half_width": half,
            "alpha_change": float((overlaps - plain).mean()),
            "tv_to_bfloat16": distance,
            "tv_half_width": distance_half,
            "step_ms": 1e3 * best.counts.draft_s / best.counts.drafted,
            "best_k": int(best.name.rpartition("=")[2]),
            "speedup": interval.ratio,
            "lower": interval.lower,
            "upper": interval.upper,
        }

    def draw(self, rows: Sequence[Row], folder: Path) -> list[str]:
        figure, (left, right) = new_figure(9.0, 3.8, 2)
        places = range(len(rows))
        names = [row["draft_weights"] for row in rows]
        left.bar(places, [row["alpha"] for row in rows], yerr=[r["alpha_half_width"] for r in rows], **filling(0))
        left.set(ylabel="alpha [share]", ylim=(0, 1), xlabel="weights of the draft")
        right.bar(places, [row["step_ms"] for row in rows], **filling(1))
        right.set(ylabel="one draft step [ms]", xlabel="weights of the draft")
        for axes in (left, right):
            axes.set_xticks(list(places), names)
        save(figure, folder / "quantised-drafts.png")
        return ["quantised-drafts.png"]

    def reading(self, rows: Sequence[Row]) -> str:
        by = {row["draft_weights"]: row for row in rows}
        four, plain = by["int4"], by["bfloat16"]
        used = abs(four["alpha_change"]) / max(four["tv_to_bfloat16"], 1e-9)
        best = max(rows, key=lambda row: float(row["speedup"]))
        return (
            f"int4 weights move the draft's law by TV {four['tv_to_bfloat16']:.4f} on average and alpha by "
            f"{four['alpha_change']:+.4f}: {100 * used:.0f} % of what the bound allows. A step takes "
            f"{plain['step_ms']:.2f} ms in bfloat16, {by['int8']['step_ms']:.2f} in int8, "
            f"{four['step_ms']:.2f} in int4 "
            f"and {by['float32']['step_ms']:.2f} in float32. End to end {best['draft_weights']} is best "
            f"here, {best['speedup']:.2f}x plain decoding."
        )
