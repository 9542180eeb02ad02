"""L5: experiment 06: token against block verification, by k and by how well the draft agrees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from decoder.api import SpeculativeDecoder
from decoder.bench.experiments.toy import TOKENS, pooled_alpha
from decoder.bench.sweep import Row
from decoder.models.toy import noisy_copy, toy_model
from decoder.report.figures import new_figure, save, series
from decoder.results import GenerationResult

NOISES = (0.05, 0.1, 0.15, 0.25)
LENGTHS = (1, 2, 4, 8)
ROWS, SEEDS = 32, 6


class TokenAgainstBlock:
    number, name = "06", "token-against-block"
    question = "How many more tokens does block verification accept than token verification? (Sampled, T = 1.)"
    columns = ("alpha", "token_accepted", "block_accepted", "gain_percent", "half_width_percent")

    def points(self) -> list[Row]:
        return [{"noise": noise, "k": k} for noise in NOISES for k in LENGTHS]

    def _accepted(self, point: Row, verifier: str) -> tuple[list[float], list[GenerationResult]]:
        """Mean accepted tokens of a full-length round, for each seed."""
        means, results = [], []
        for seed in range(SEEDS):
            target = toy_model("llama", seed)
            spec = SpeculativeDecoder.from_models(
                target, noisy_copy(target, point["noise"], seed + 1), top_p=1.0, verifier=verifier
            )
            found = spec.generate(
                [[5, 9, 11, 3]] * ROWS,
                k=point["k"],
                max_new_tokens=TOKENS,
                eos_token_id=None,
                seed=seed,
                batch_size=ROWS,
            )
            rounds = [s for result in found for s in result.steps[1:] if len(s.drafted) == point["k"]]
            means.append(sum(s.accepted for s in rounds) / len(rounds))
            results += found
        return means, results

    def measure(self, point: Row) -> Row:
        token, results = self._accepted(point, "token")
        block, _ = self._accepted(point, "block")
        gains = [100 * (b / t - 1) for b, t in zip(block, token, strict=True)]
        mean = sum(gains) / SEEDS
        spread = (sum((gain - mean) ** 2 for gain in gains) / (SEEDS - 1)) ** 0.5
        return {
            "alpha": pooled_alpha(results),
            "token_accepted": sum(token) / SEEDS,
            "block_accepted": sum(block) / SEEDS,
            "gain_percent": mean,
            "half_width_percent": 2.57 * spread / SEEDS**0.5,  # t quantile, 5 degrees of freedom
        }

    def draw(self, rows: Sequence[Row], folder: Path) -> list[str]:
        figure, (axes,) = new_figure(6.4, 3.8)
        for index, noise in enumerate(sorted({row["noise"] for row in rows})):
            mine = [row for row in rows if row["noise"] == noise]
            alpha = sum(row["alpha"] for row in mine) / len(mine)
            widths = [row["half_width_percent"] for row in mine]
            axes.errorbar(
                [row["k"] for row in mine],
                [row["gain_percent"] for row in mine],
                yerr=widths,
                capsize=3,
                label=f"alpha ≈ {alpha:.2f}",
                **series(index),
            )
        axes.axhline(0, color="black", linewidth=1, linestyle=":")
        axes.set(xlabel="draft length k [tokens]", ylabel="more accepted tokens than token verification [%]")
        axes.legend()
        save(figure, folder / "block-gain.png")
        return ["block-gain.png"]

    def reading(self, rows: Sequence[Row]) -> str:
        best = max(rows, key=lambda row: float(row["gain_percent"]))
        lost = [row for row in rows if row["gain_percent"] + row["half_width_percent"] < 0]
        return (
            f"The largest gain is {best['gain_percent']:.1f} % (k = {best['k']}, alpha {best['alpha']:.2f}); at k = 1 "
            f"the two rules are the same rule. Points where block accepts significantly fewer: {len(lost)} of "
            f"{len(rows)}. Both cost the same target forward, so the gain in accepted tokens is the gain in speed."
        )
