"""Experiment 05: the same draft in float32, bfloat16, int8 and int4: what coarser weights cost in acceptance.

For any two drafts q and q' of one target, |alpha - alpha'| <= TV(q, q') at every position, since the overlap with p is
1-Lipschitz in total variation. Both sides are computed from the models' whole distributions at every position of the
target's own texts, fed a few tokens at a time as in decoding. Intervals are over texts, whose positions are not
independent.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from decoder.api import SpeculativeDecoder
from decoder.drafters import ModelDrafter
from decoder.measure.comparison import Comparison
from decoder.measure.methods import Plan, speculative
from decoder.measure.prompts import OWN_PROMPTS, as_ids
from decoder.measure.timing import Method
from decoder.models.hf import CausalModel
from decoder.models.quantize import quantized_copy
from decoder.report.figures import filling, new_figure, save
from decoder.types import SamplingParams
from lab.experiments.overlap import in_steps, mean_and_error, overlap
from lab.runner import Row

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
        *("alpha", "alpha_half_width", "alpha_change", "change_half_width", "mean_abs_change", "tv_to_bfloat16"),
        *("tv_half_width", "step_ms", "best_k", "speedup", "lower", "upper"),
    )
    hidden = ("alpha_half_width", "mean_abs_change", "tv_half_width")

    def __init__(self, prompts: int = 4, tokens: int = 96, repeats: int = 3) -> None:
        self._prompts, self._tokens, self._repeats = prompts, tokens, repeats
        self._spec: SpeculativeDecoder | None = None
        self._texts: list[tuple[int, list[int]]] = []  # (tokens of the prompt, ids), the target's own

    def points(self) -> list[Row]:
        return [{"draft_weights": form} for form in FORMS]

    @property
    def spec(self) -> SpeculativeDecoder:
        if self._spec is None:
            self._spec = SpeculativeDecoder(temperature=1.0, top_p=1.0)
        return self._spec

    def _sample_texts(self, prompts: Sequence[Sequence[int]]) -> None:
        """Four texts of the target for each prompt, the same for every form of the draft."""
        for seed in range(4):
            results = self.spec.generate_baseline(
                [list(prompt) for prompt in prompts], max_new_tokens=self._tokens, eos_token_id=None, seed=seed
            )
            for result in results:
                ids = [*result.prompt_token_ids, *result.token_ids]
                self._texts.append((len(result.prompt_token_ids), ids[:-1]))

    def _overlaps_on_texts(self, draft: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Per position of the target's own texts: sum min(p, q), and TV(q in bfloat16, q in this form)."""
        params, plain = SamplingParams(temperature=1.0, top_p=1.0), in_form(self.spec.draft, "bfloat16")
        overlaps, distances = [], []
        for length, ids in self._texts:
            p, q, q16 = (in_steps(model, ids, length, params) for model in (self.spec.target, draft, plain))
            overlaps.append(overlap(p, q))
            distances.append(1 - overlap(q16, q))
        return torch.stack(overlaps), torch.stack(distances).clamp(min=0)  # [texts, tokens] each

    def measure(self, point: Row) -> Row:
        prompts = as_ids(self.spec, OWN_PROMPTS[: self._prompts])
        draft = in_form(self.spec.draft, point["draft_weights"])
        if not self._texts:
            self._sample_texts(prompts)
        overlaps, distances = self._overlaps_on_texts(draft)
        plain, _ = self._overlaps_on_texts(in_form(self.spec.draft, "bfloat16"))
        target = self.spec.target_model
        drafter = ModelDrafter(CausalModel(draft, "draft", target.vocab_size, target.banned))
        plan = Plan(self._tokens, SamplingParams(temperature=1.0, top_p=1.0), repeats=self._repeats)
        methods: list[Method | str] = ["baseline", *(speculative(self.spec, plan, k, drafter) for k in LENGTHS)]
        report = Comparison(self.spec, prompts, plan, methods).run()
        best = max(report.summaries[1:], key=lambda each: each.speedups["baseline"].ratio)
        assert best.counts is not None
        alpha, half = mean_and_error(overlaps.mean(-1))
        change, change_half = mean_and_error((overlaps - plain).mean(-1))
        distance, distance_half = mean_and_error(distances.mean(-1))
        interval = best.speedups["baseline"]
        return {
            "alpha": alpha,
            "alpha_half_width": half,
            "alpha_change": change,
            "change_half_width": change_half,
            "mean_abs_change": float((overlaps - plain).abs().mean()),
            "tv_to_bfloat16": distance,
            "tv_half_width": distance_half,
            "step_ms": 1e3 * best.counts.draft_s / best.counts.drafted,
            "best_k": int(best.name.rpartition("=")[2]),
            "speedup": interval.ratio,
            "lower": interval.lower,
            "upper": interval.upper,
        }

    def draw(self, rows: Sequence[Row], folder: Path) -> list[str]:
        figure, panels = new_figure(11.0, 3.6, 3)
        places = range(len(rows))
        panels[0].bar(places, [row["alpha"] for row in rows], yerr=[r["alpha_half_width"] for r in rows], **filling(2))
        panels[0].set(ylabel="alpha [share]", ylim=(0, 1))
        names = {
            "tv_to_bfloat16": "bound: mean TV",
            "mean_abs_change": "mean |Δ alpha|",
            "alpha_change": "|mean Δ alpha|",
        }
        for index, (name, label) in enumerate(names.items()):
            shifted = [place + 0.27 * (index - 1) for place in places]
            panels[1].bar(shifted, [abs(row[name]) for row in rows], 0.27, label=label, **filling(index))
        panels[1].set(ylabel="against the bfloat16 draft [probability]")
        panels[1].legend(loc="upper center")
        panels[2].bar(places, [row["step_ms"] for row in rows], **filling(2))
        panels[2].set(ylabel="one draft step [ms]")
        for axes in panels:
            axes.set_xticks(list(places), [row["draft_weights"] for row in rows])
            axes.set_xlabel("weights of the draft")
        save(figure, folder / "quantised-drafts.png")
        return ["quantised-drafts.png"]

    def reading(self, rows: Sequence[Row]) -> str:
        by = {row["draft_weights"]: row for row in rows}
        four, bound = by["int4"], max(float(by["int4"]["tv_to_bfloat16"]), 1e-9)
        best = max(rows, key=lambda row: float(row["speedup"]))
        steps = ", ".join(f"{row['step_ms']:.2f} ms in {row['draft_weights']}" for row in rows)
        ends = ", ".join(
            f"{row['draft_weights']} {row['speedup']:.2f} ({row['lower']:.2f} to {row['upper']:.2f}; k = "
            f"{row['best_k']})"
            for row in rows
        )
        return (
            f"**Answer.** int4 weights change alpha by {four['alpha_change']:+.4f} ± {four['change_half_width']:.4f}, "
            f"while the draft's distribution moves by TV {bound:.4f} ± {four['tv_half_width']:.4f}: alpha uses "
            f"{100 * abs(four['alpha_change']) / bound:.0f} % of what the bound allows. The bound is an average over "
            f"positions; there the changes have both signs, {four['mean_abs_change']:.4f} in size on average "
            f"({100 * four['mean_abs_change'] / bound:.0f} % of it), and mostly cancel. (Were the draft the target "
            "itself, the bound would be an equality.)\n\n"
            f"A draft step, its sampling included, takes {steps}. Speed-up over plain decoding at each one's best k "
            f"(of {', '.join(map(str, LENGTHS))}): {ends}; best here: {best['draft_weights']}."
        )
