"""The speed-up theory predicts, beside the one measured.

    (1 - alpha^(k+1)) / ((1 - alpha) (k c + t_v(k+1) / t_v(1)))

(Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8, with verification's measured cost in place of 1): alpha from
the runs, c and t_v from bare forwards in the order of a round. The equation is about rounds, so the measured speed-up
beside it is that of the text after the prompt: prefills and the token they yield are left out on both sides. The
loop's own time is in what is measured and not in the equation, so their ratio is what the implementation makes of the
theory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from decoder.api import SpeculativeDecoder
from decoder.measure.comparison import ComparisonReport
from decoder.measure.forwards import ForwardCost, forward_cost, round_cost
from decoder.measure.summary import speedup
from decoder.measure.timing import Sample
from decoder.models.hf import CausalModel
from decoder.report.tables import markdown_table


def geometric(alpha: float, k: int) -> float:
    """Tokens per round if every drafted token passes with chance alpha, independently (equation 1 there)."""
    return k + 1.0 if alpha >= 1.0 else (1 - alpha ** (k + 1)) / (1 - alpha)


def paper_speedup(alpha: float, k: int, cost_ratio: float, verify_ratio: float) -> float:
    """The equation above; at alpha = 1 its limit."""
    return geometric(alpha, k) / (k * cost_ratio + verify_ratio)


@dataclass(frozen=True)
class Prediction:
    """Theory and measurement for one method, both after the prompt. `reached` = measured / predicted.

    cost_ratio, verify_ratio: c and t_v(k+1) / t_v(1), the forwards of a round timed in its order.
    """

    method: str
    k: int
    alpha: float
    cost_ratio: float
    verify_ratio: float
    predicted: float
    measured: float

    @property
    def reached(self) -> float:
        return self.measured / self.predicted


@dataclass(frozen=True)
class Predictions:
    target: ForwardCost
    draft: ForwardCost
    rows: tuple[Prediction, ...]

    def markdown(self) -> str:
        """The predictions and the forwards they are made of."""
        names = ["method", "k", "alpha", "c", "t_v(k+1)/t_v(1)", "predicted ×", "measured ×", "reached %"]
        rows: list[list[object]] = [
            [r.method, r.k, r.alpha, r.cost_ratio, r.verify_ratio, r.predicted, r.measured, 100 * r.reached]
            for r in self.rows
        ]
        widths = sorted(self.target.table)
        forwards: list[list[object]] = [
            [role, *[1e3 * cost.seconds(m) for m in widths], 1e3 * cost.fixed_s, 1e3 * cost.per_token_s]
            for role, cost in (("target", self.target), ("draft", self.draft))
        ]
        heads = ["ms of a forward, alone", *[f"m={m}" for m in widths], "fixed", "per token"]
        return markdown_table(names, rows) + "\n\n" + markdown_table(heads, forwards) + "\n"

    def to_dict(self) -> dict[str, Any]:
        rows = [asdict(row) | {"reached": row.reached} for row in self.rows]
        return {"target": self.target.to_dict(), "draft": self.draft.to_dict(), "rows": rows}


def after_prompt(samples: Sequence[Sample], method: str) -> list[Sample]:
    """The runs of one method of this project, without their prefills and the token that each of them yields."""
    found = []
    for sample in samples:
        if sample.method == method and sample.counts is not None:
            behind = sample.token_ids[len(sample.token_ids) - sample.counts.emitted_after_prefill :]
            found.append(replace(sample, wall_s=sample.wall_s - sample.counts.prefill_s, token_ids=behind))
    return found


def predict(
    spec: SpeculativeDecoder,
    prompts: Sequence[Sequence[int]],
    report: ComparisonReport,
    lengths: dict[str, int],
    *,
    repeats: int = 9,
) -> Predictions:
    """Time forwards of both models and set the theory beside each method of `lengths` (name -> fixed k).

    Raises:
        ValueError: no draft model, or no runs of 'baseline' among the samples.
    """
    if spec.draft_model is None:
        raise ValueError("a prediction needs a draft model whose forwards can be timed; give one.")
    prompt = sorted(prompts, key=len)[len(prompts) // 2]
    models = CausalModel(spec.target_model.model, "target"), CausalModel(spec.draft_model.model, "draft")
    costs = [forward_cost(model, prompt, repeats=repeats) for model in models]
    plain = after_prompt(report.samples, "baseline")
    if not plain:
        raise ValueError("a prediction is of the speed-up over 'baseline'; run that method too.")
    rows = []
    for each in report.summaries:
        k = lengths.get(each.name)
        if k is None or each.alpha is None:
            continue
        cost = round_cost(models[0], models[1], prompt, k, repeats=2 * repeats)
        ratio, verify = cost.draft_s / cost.plain_s, cost.verify_s / cost.plain_s
        predicted = paper_speedup(each.alpha, k, ratio, verify)
        measured = speedup(after_prompt(report.samples, each.name), plain).ratio
        rows.append(Prediction(each.name, k, each.alpha, ratio, verify, predicted, measured))
    return Predictions(costs[0], costs[1], tuple(rows))
