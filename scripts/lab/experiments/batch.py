"""Experiment 07: batch size, where the target's forward stops being cheap to widen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decoder.api import SpeculativeDecoder
from decoder.measure.prompts import OWN_PROMPTS, as_ids
from decoder.measure.statistics import median
from decoder.report.figures import new_figure, save, series
from decoder.results import GenerationResult
from lab.runner import Row

SIZES = (1, 2, 4, 8, 16)
LENGTHS = (0, 2, 4)


def throughput(results: Sequence[GenerationResult]) -> float:
    """New tokens of all rows / the seconds until the last one ended."""
    return sum(len(result.token_ids) for result in results) / max(result.wall_s for result in results)


class BatchSize:
    number, name = "07", "batch-size"
    question = "How do throughput and the gain from speculation change with the batch size? (Bundled pair, T = 1.)"
    columns = (
        *("plain_tokens_per_s", "k2_tokens_per_s", "k4_tokens_per_s", "k2_speedup", "k4_speedup"),
        *("finished_percent", "padding_percent"),
    )
    hidden = ("padding_percent",)

    def __init__(self, tokens: int = 96, repeats: int = 3) -> None:
        self._tokens, self._repeats = tokens, repeats
        self._spec: SpeculativeDecoder | None = None

    @property
    def spec(self) -> SpeculativeDecoder:
        if self._spec is None:
            self._spec = SpeculativeDecoder(temperature=1.0, top_p=1.0)
        return self._spec

    def points(self) -> list[Row]:
        return [{"batch_size": size} for size in SIZES]

    def _run(self, prompts: Sequence[Any], k: int, seed: int) -> list[GenerationResult]:
        found: list[GenerationResult] = self.spec.generate(
            list(prompts),
            k=k,
            max_new_tokens=self._tokens,
            eos_token_id=None,
            seed=seed,
            batch_size=len(prompts),
        )
        return found

    def measure(self, point: Row) -> Row:
        ids = as_ids(self.spec, OWN_PROMPTS)
        prompts = [ids[i % len(ids)] for i in range(point["batch_size"])]
        speeds: dict[int, list[float]] = {k: [] for k in LENGTHS}
        idle = []
        for repeat in range(-1, self._repeats):  # the first turn warms up
            for k in LENGTHS:
                results = self._run(prompts, k, max(repeat, 0))
                if repeat >= 0:
                    speeds[k].append(throughput(results))
                if repeat >= 0 and k == 4:  # rows that ended before the slowest one
                    rounds = [result.num_iterations for result in results]
                    idle.append(100 * (1 - sum(rounds) / (len(rounds) * max(rounds))))
        plain, two, four = (median(speeds[k]) for k in LENGTHS)
        return {
            "plain_tokens_per_s": plain,
            "k2_tokens_per_s": two,
            "k4_tokens_per_s": four,
            "k2_speedup": two / plain,
            "k4_speedup": four / plain,
            "finished_percent": median(idle),
            "padding_percent": 100 * (1 - sum(map(len, prompts)) / (len(prompts) * max(map(len, prompts)))),
        }

    def draw(self, rows: Sequence[Row], folder: Path) -> list[str]:
        figure, (left, right) = new_figure(9.0, 3.8, 2)
        sizes = [row["batch_size"] for row in rows]
        for index, (name, label) in enumerate((("plain", "plain"), ("k2", "k = 2"), ("k4", "k = 4"))):
            left.plot(sizes, [row[f"{name}_tokens_per_s"] for row in rows], label=label, **series(index))
            if name != "plain":
                right.plot(sizes, [row[f"{name}_speedup"] for row in rows], label=label, **series(index))
        right.axhline(1, color="black", linewidth=1, linestyle=":")
        left.set(ylabel="throughput [tokens/s]", ylim=(0, None))
        right.set(ylabel="speed-up over plain decoding [×]", ylim=(0, None))
        for axes in (left, right):
            axes.set(xlabel="batch size [rows]", xscale="log")
            axes.set_xticks(sizes, [str(size) for size in sizes])
            axes.minorticks_off()
            axes.legend()
        save(figure, folder / "batch-size.png")
        return ["batch-size.png"]

    def reading(self, rows: Sequence[Row]) -> str:
        def names(chosen: Sequence[Row]) -> str:
            return ", ".join(str(row["batch_size"]) for row in chosen) or "none"

        best = {row["batch_size"]: max(row["k2_speedup"], row["k4_speedup"]) for row in rows}
        paying = [row for row in rows if best[row["batch_size"]] > 1.03]
        losing = [row for row in rows if best[row["batch_size"]] <= 1.0]
        last = rows[-1]
        return (
            f"The better of k = 2 and 4 gains more than 3 % at batch sizes {names(paying)}, and loses at "
            f"{names(losing)}. At batch size {last['batch_size']} a row ends {last['finished_percent']:.0f} % before "
            "the last one of its batch on average (accepted lengths differ; all rows emit the same number of tokens); "
            "it is then dropped and costs nothing. Padding is in the prefill only, "
            f"{last['padding_percent']:.0f} % of its positions: afterwards every row writes at positions of its own."
        )
