"""Experiment 06: token against block verification, by k and by how well the draft agrees.

On the toy pairs many texts are cheap, so accepted lengths are resolved; the bundled pair adds the seconds, both rules
interleaved run by run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decoder.api import SpeculativeDecoder
from decoder.measure.methods import OwnMethod, Plan
from decoder.measure.prompts import OWN_PROMPTS, as_ids
from decoder.measure.statistics import Interval
from decoder.measure.summary import speedup
from decoder.measure.timing import interleaved
from decoder.models.toy import noisy_copy, toy_model
from decoder.report.figures import new_figure, save, series
from decoder.results import GenerationResult
from decoder.types import SamplingParams
from lab.experiments.toy import TOKENS, pooled_alpha
from lab.runner import Row

NOISES = (0.05, 0.1, 0.15, 0.25)
BUNDLED = "bundled pair"
LENGTHS = (1, 2, 4, 8)
STUDENT = {3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36}  # t quantile of 95 %, by the number of seeds


class TokenAgainstBlock:
    number, name = "06", "token-against-block"
    question = "How many more tokens does block verification accept than token verification? (Sampled, T = 1.)"
    columns = (
        *("alpha", "token_accepted", "block_accepted", "gain_percent", "half_width_percent", "tokens_percent"),
        *("block_speedup", "lower", "upper"),
    )
    hidden = ("lower", "upper")

    def __init__(self, rows: int = 32, seeds: int = 6, tokens: int = TOKENS, repeats: int = 2) -> None:
        self._rows, self._seeds, self._tokens, self._repeats = rows, seeds, tokens, repeats
        self._bundled: dict[str, SpeculativeDecoder] = {}

    def points(self) -> list[Row]:
        toys = [{"pair": f"toy, noise {noise:g}", "k": k} for noise in NOISES for k in LENGTHS]
        return [*toys, *({"pair": BUNDLED, "k": k} for k in LENGTHS[1:])]

    def _decoder(self, pair: str, verifier: str, seed: int) -> SpeculativeDecoder:
        if pair == BUNDLED:
            if verifier not in self._bundled:
                self._bundled[verifier] = SpeculativeDecoder(temperature=1.0, top_p=1.0, verifier=verifier)
            return self._bundled[verifier]
        target = toy_model("llama", seed)
        draft = noisy_copy(target, float(pair.rpartition(" ")[2]), seed + 1)
        return SpeculativeDecoder.from_models(target, draft, top_p=1.0, verifier=verifier)

    def _accepted(self, point: Row, verifier: str) -> tuple[list[float], list[GenerationResult]]:
        """Mean accepted tokens of a full-length round, for each seed."""
        means, results = [], []
        for seed in range(self._seeds):
            spec = self._decoder(point["pair"], verifier, seed)
            prompts: Any = [[5, 9, 11, 3]] * self._rows
            if point["pair"] == BUNDLED:
                ids = as_ids(spec, OWN_PROMPTS)
                prompts = [ids[row % len(ids)] for row in range(max(1, self._rows // 2))]
            found = spec.generate(
                prompts,
                k=point["k"],
                max_new_tokens=self._tokens,
                eos_token_id=None,
                seed=seed,
                batch_size=self._rows,
            )
            rounds = [s for result in found for s in result.steps[1:] if len(s.drafted) == point["k"]]
            means.append(sum(s.accepted for s in rounds) / len(rounds))
            results += found
        return means, results

    def _seconds(self, k: int) -> Interval:
        """Speed of block over token verification on the bundled pair, one text at a time."""
        plan = Plan(self._tokens, SamplingParams(temperature=1.0, top_p=1.0))
        methods = [OwnMethod(name, self._decoder(BUNDLED, name, 0), plan, k) for name in ("token", "block")]
        prompts = as_ids(methods[0].spec, OWN_PROMPTS)
        samples = interleaved(methods, prompts, repeats=self._repeats)
        token, block = ([each for each in samples if each.method == name] for name in ("token", "block"))
        return speedup(block, token)

    def measure(self, point: Row) -> Row:
        token, results = self._accepted(point, "token")
        block, _ = self._accepted(point, "block")
        gains = [100 * (b / t - 1) for b, t in zip(block, token, strict=True)]
        mean, tokens = (sum(values) / self._seeds for values in (gains, token))
        spread = (sum((gain - mean) ** 2 for gain in gains) / (self._seeds - 1)) ** 0.5
        found = {
            "alpha": pooled_alpha(results),
            "token_accepted": tokens,
            "block_accepted": sum(block) / self._seeds,
            "gain_percent": mean,
            "half_width_percent": STUDENT[self._seeds] * spread / self._seeds**0.5,
            "tokens_percent": 100 * (sum(block) / self._seeds - tokens) / (1 + tokens),
        }
        if point["pair"] != BUNDLED:
            return found
        ratio = self._seconds(point["k"])
        return found | {"block_speedup": ratio.ratio, "lower": ratio.lower, "upper": ratio.upper}

    def draw(self, rows: Sequence[Row], folder: Path) -> list[str]:
        figure, (axes,) = new_figure(6.4, 4.0)
        pairs = list(dict.fromkeys(row["pair"] for row in rows))
        for index, pair in enumerate(pairs):
            mine = [row for row in rows if row["pair"] == pair]
            alpha = sum(row["alpha"] for row in mine) / len(mine)
            axes.errorbar(
                [row["k"] + 0.12 * (index - len(pairs) / 2) for row in mine],  # side by side, so that whiskers show
                [row["gain_percent"] for row in mine],
                yerr=[row["half_width_percent"] for row in mine],
                capsize=3,
                label=f"{pair}: alpha ≈ {alpha:.2f}",
                **series(index),
            )
        axes.axhline(0, color="black", linewidth=1, linestyle=":")
        axes.set(xlabel="draft length k [tokens]", ylabel="extra accepted tokens with block [%]")
        axes.set_xticks(LENGTHS)
        axes.legend(loc="upper left", fontsize=8)
        save(figure, folder / "block-gain.png")
        return ["block-gain.png"]

    def reading(self, rows: Sequence[Row]) -> str:
        best = max(rows, key=lambda row: float(row["gain_percent"]))
        lost = [row for row in rows if row["gain_percent"] + row["half_width_percent"] < 0]
        seconds = "; ".join(
            f"k = {row['k']}: {row['gain_percent']:+.1f} ± {row['half_width_percent']:.1f} % accepted tokens, "
            f"{row['tokens_percent']:+.1f} % tokens per round, speed {row['block_speedup']:.3f}x "
            f"({row['lower']:.3f} to {row['upper']:.3f})"
            for row in rows
            if row["block_speedup"] is not None
        )
        return (
            f"The largest gain is {best['gain_percent']:.1f} ± {best['half_width_percent']:.1f} % more accepted tokens "
            f"({best['pair']}, k = {best['k']}, alpha {best['alpha']:.2f}); at k = 1 the two rules are the same rule. "
            f"Points where block accepts significantly fewer: {len(lost)} of {len(rows)}. Each round also emits one "
            "token that was not drafted, so tokens per round, and with them the speed, gain less: column "
            f"`tokens_percent`.\n\nThe bundled pair, block against token: {seconds}."
        )
