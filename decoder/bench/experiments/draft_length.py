"""L5: experiment 02: what the draft length buys on the bundled pair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from decoder.api import SpeculativeDecoder
from decoder.bench.measure import compare
from decoder.bench.methods import Plan
from decoder.bench.prediction import geometric
from decoder.bench.prompts import OWN_PROMPTS, as_ids
from decoder.bench.sweep import Row
from decoder.report.figures import new_figure, save, series
from decoder.report.plots import speedup_over_k
from decoder.types import SamplingParams

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)


class DraftLength:
    number, name = "02", "draft-length"
    question = (
        "How do acceptance, tokens per iteration and speed change with k, and how far does the geometric model "
        "(1 - alpha^(k+1)) / (1 - alpha) carry?"
    )
    columns = (
        *("acceptance_rate", "alpha", "tokens_per_iteration", "geometric", "speedup", "lower", "upper", "vs_hf"),
        *(f"position_{i}" for i in (1, 2, 3, 4, 8)),
    )

    def __init__(self, prompts: int = 6, tokens: int = 96, repeats: int = 3) -> None:
        self._prompts, self._tokens, self._repeats = prompts, tokens, repeats
        self._spec: SpeculativeDecoder | None = None

    def points(self) -> list[Row]:
        return [{"temperature": t, "k": k} for t in (0.0, 1.0) for k in LENGTHS]

    @property
    def spec(self) -> SpeculativeDecoder:
        if self._spec is None:
            self._spec = SpeculativeDecoder(temperature=1.0, top_p=1.0)
        return self._spec

    def measure(self, point: Row) -> Row:
        prompts = as_ids(self.spec, OWN_PROMPTS[: self._prompts])
        plan = Plan(self._tokens, SamplingParams(temperature=point["temperature"], top_p=1.0))
        report = compare(self.spec, prompts, plan, drafts=[(None, point["k"])], repeats=self._repeats)
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
            "vs_hf": mine.speedups["hf"].ratio,
        } | self._positions(point, prompts)

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
        return {f"position_{i}": reached[i - 1] / rounds for i in (1, 2, 3, 4, 8) if i <= point["k"]}

    def draw(self, rows: Sequence[Row], folder: Path) -> list[str]:
        names = []
        for temperature in sorted({row["temperature"] for row in rows}):
            mine = [row for row in rows if row["temperature"] == temperature]
            figure = speedup_over_k(
                {row["k"]: row["speedup"] for row in mine},
                intervals={row["k"]: (row["lower"], row["upper"]) for row in mine},
            )
            names.append(f"speedup-T{temperature:g}.png")
            save(figure, folder / names[-1])
        figure, (axes,) = new_figure(6.4, 3.8)
        for index, temperature in enumerate(sorted({row["temperature"] for row in rows})):
            mine = [row for row in rows if row["temperature"] == temperature]
            ks = [row["k"] for row in mine]
            axes.plot(ks, [r["tokens_per_iteration"] for r in mine], label=f"T = {temperature:g}", **series(2 * index))
            axes.plot(
                ks,
                [r["geometric"] for r in mine],
                "--",
                label=f"geometric model, T = {temperature:g}",
                **series(2 * index + 1),
            )
        axes.set(xlabel="draft length k [tokens]", ylabel="tokens per iteration [tokens]")
        axes.legend()
        names.append("tokens-per-iteration.png")
        save(figure, folder / names[-1])
        return names

    def reading(self, rows: Sequence[Row]) -> str:
        lines = []
        for temperature in sorted({row["temperature"] for row in rows}):
            mine = [row for row in rows if row["temperature"] == temperature]
            best = max(mine, key=lambda row: float(row["speedup"]))
            gap = max(abs(row["tokens_per_iteration"] - row["geometric"]) for row in mine)
            lines.append(
                f"At T = {temperature:g} the best k is {best['k']}: {best['speedup']:.2f}x plain decoding, "
                f"{best['vs_hf']:.2f}x transformers' generate; k = {mine[-1]['k']} gives {mine[-1]['speedup']:.2f}x. "
                f"The geometric model is off by at most {gap:.2f} tokens a round."
            )
        return "\n".join(lines)
