"""Experiment 02: what the draft length buys on the bundled pair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from decoder.api import SpeculativeDecoder
from decoder.measure.comparison import Comparison
from decoder.measure.forwards import ForwardCost, forward_cost
from decoder.measure.methods import Plan, speculative
from decoder.measure.prediction import geometric, paper_speedup
from decoder.measure.prompts import OWN_PROMPTS, as_ids
from decoder.models.hf import CausalModel
from decoder.report.figures import new_figure, save, series
from decoder.report.plots import acceptance_by_position, speedup_over_k
from decoder.types import SamplingParams
from lab.runner import Row

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
SHOWN_POSITIONS = range(1, 9)


class DraftLength:
    number, name = "02", "draft-length"
    question = (
        "How do acceptance, tokens per iteration and speed change with k, and how far does the geometric model "
        "(1 - alpha^(k+1)) / (1 - alpha) carry?"
    )
    columns = (
        *("acceptance_rate", "alpha", "tokens_per_iteration", "geometric", "speedup", "lower", "upper", "predicted"),
        *(f"position_{i}" for i in SHOWN_POSITIONS),
    )
    hidden = tuple(f"position_{i}" for i in SHOWN_POSITIONS)

    def __init__(self, prompts: int = 4, tokens: int = 64, repeats: int = 2) -> None:
        self._prompts, self._tokens, self._repeats = prompts, tokens, repeats
        self._spec: SpeculativeDecoder | None = None
        self._costs: tuple[ForwardCost, ForwardCost] | None = None

    def points(self) -> list[Row]:
        return [{"temperature": t, "k": k} for t in (0.0, 1.0) for k in LENGTHS]

    @property
    def spec(self) -> SpeculativeDecoder:
        if self._spec is None:
            self._spec = SpeculativeDecoder(temperature=1.0, top_p=1.0)
        return self._spec

    def measure(self, point: Row) -> Row:
        prompts = as_ids(self.spec, OWN_PROMPTS[: self._prompts])
        params = SamplingParams(temperature=point["temperature"], top_p=1.0)
        plan = Plan(self._tokens, params, repeats=self._repeats)
        report = Comparison(self.spec, prompts, plan, ["baseline", speculative(self.spec, plan, point["k"])]).run()
        mine = report.summaries[-1]
        interval = mine.speedups["baseline"]
        alpha = mine.alpha or 0.0
        return {
            "acceptance_rate": mine.acceptance_rate,
            "alpha": alpha,
            "tokens_per_iteration": mine.tokens_per_iteration,
            "geometric": geometric(alpha, point["k"]),
            "speedup": interval.ratio,
            "lower": interval.lower,
            "upper": interval.upper,
            "predicted": self._predicted(alpha, point["k"], prompts[0]),
        } | self._positions(point, prompts)

    def _predicted(self, alpha: float, k: int, prompt: Sequence[int]) -> float:
        """What the forwards' own times and alpha promise; the forwards are timed once."""
        if self._costs is None:
            target, draft = CausalModel(self.spec.target, "target"), CausalModel(self.spec.draft, "draft")
            widths = [1, *(length + 1 for length in LENGTHS)]
            self._costs = (forward_cost(target, prompt, widths=widths), forward_cost(draft, prompt, widths=[1]))
        plain, step = (cost.seconds(1) for cost in self._costs)
        return paper_speedup(alpha, k, step / plain, self._costs[0].seconds(k + 1) / plain)

    def _positions(self, point: Row, prompts: Sequence[Sequence[int]]) -> Row:
        """Acceptance per position, pooled over prompts."""
        reached = [0] * point["k"]
        rounds = 0
        for prompt in prompts:
            result = self.spec.generate(
                list(prompt),
                k=point["k"],
                temperature=point["temperature"],
                top_p=1.0,
                max_new_tokens=self._tokens,
                eos_token_id=None,
                seed=0,
            )
            rounds += result.num_iterations
            for step in result.steps[1:]:
                for i in range(step.accepted):
                    reached[i] += 1
        return {f"position_{i}": reached[i - 1] / rounds for i in SHOWN_POSITIONS if i <= point["k"]}

    def draw(self, rows: Sequence[Row], folder: Path) -> list[str]:
        names = []
        by_temperature = {t: [row for row in rows if row["temperature"] == t] for t in (0, 1)}
        for temperature, mine in by_temperature.items():
            figure = speedup_over_k(
                {row["k"]: row["speedup"] for row in mine},
                {row["k"]: row["predicted"] for row in mine},
                {row["k"]: (row["lower"], row["upper"]) for row in mine},
            )
            figure.axes[0].set_title(f"bundled pair, T = {temperature}")
            names.append(f"speedup-T{temperature}.png")
            save(figure, folder / names[-1])
        figure, (axes,) = new_figure(6.4, 3.8)
        for index, (temperature, mine) in enumerate(by_temperature.items()):
            ks, label = [row["k"] for row in mine], f"T = {temperature}"
            axes.plot(ks, [row["tokens_per_iteration"] for row in mine], label=f"measured, {label}", **series(index))
            model = series(index) | {"markerfacecolor": "white", "linestyle": "--"}
            axes.plot(ks, [row["geometric"] for row in mine], label=f"geometric model, {label}", **model)
        axes.set(xlabel="draft length k [tokens]", ylabel="tokens per iteration [tokens]", ylim=(0, None))
        axes.legend()
        names.append("tokens-per-iteration.png")
        save(figure, folder / names[-1])
        deep = {t: next((row for row in mine if row["k"] == 8), None) for t, mine in by_temperature.items()}
        rates = {f"T = {t}, k = 8": [row[f"position_{i}"] for i in SHOWN_POSITIONS] for t, row in deep.items() if row}
        names.append("acceptance-by-position.png")
        save(acceptance_by_position(rates), folder / names[-1])
        return names

    def reading(self, rows: Sequence[Row]) -> str:
        lines = []
        for temperature in sorted({row["temperature"] for row in rows}):
            mine = [row for row in rows if row["temperature"] == temperature]
            best, last = max(mine, key=lambda row: float(row["speedup"])), mine[-1]
            worst = max(mine, key=lambda row: abs(row["tokens_per_iteration"] - row["geometric"]))
            gap = worst["tokens_per_iteration"] - worst["geometric"]
            lines.append(
                f"At T = {temperature:g} the best k is {best['k']}: {best['speedup']:.2f}x plain decoding "
                f"({best['lower']:.2f} to {best['upper']:.2f} over prompts); the forwards alone promise "
                f"{best['predicted']:.2f}x. k = {last['k']} gives {last['speedup']:.2f}x. "
                f"The geometric model is furthest off at k = {worst['k']}: measured {abs(gap):.2f} tokens per round "
                f"{'more' if gap > 0 else 'fewer'} than it says."
            )
        return "\n\n".join(lines)
