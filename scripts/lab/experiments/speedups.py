"""Experiment 01: the speed-up of every pair and drafter that was measured, in one table.

Measures nothing: it reads the JSON files that `scripts/benchmark.py`, `examples/compare.py` and
`scripts/measure_drafters.py` wrote into the experiments' folders, and every row names its file, whose own command
stands above the table. A file of `measure_drafters.py` holds groups of prompts: its row has the median over groups
and, for an interval, the lowest and the highest group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from decoder.measure.statistics import median
from decoder.report.figures import EDGE, filling, new_figure, save
from lab.runner import Row

FOLDERS = ("01-pairs", "09-another-runtime", "10-compare", "11-drafters", "12-geometries", "16-offload", "17-packed")
NOT_OURS = ("hf", "mlx", "baseline")  # how the names of the references and of other programs' methods begin


def _works(record: Mapping[str, Any]) -> dict[str, list[list[Mapping[str, Any]]]]:
    """Work -> methods of each group of prompts; a plain comparison is one group."""
    if "methods" in record:
        return {str(record["title"]): [record["methods"]]}
    target = Path(str(record["settings"]["target"])).name
    return {f"{target}, {mode}": list(groups.values()) for mode, groups in record["groups"].items()}


def _summary(record: Mapping[str, Any], work: str, name: str) -> Row:
    """One method: its ratios, pooled acceptance; over several groups the median, and their range."""
    mine = [each for group in _works(record)[work] for each in group if each["name"] == name]
    found: Row = {"groups": len(mine)}
    for reference in ("baseline", "hf"):
        ratios = [each["speedups"][reference] for each in mine if reference in each["speedups"]]
        found[f"vs_{reference}"] = median([r["ratio"] for r in ratios]) if ratios else None
        if reference == "baseline" and ratios:
            alone = len(ratios) == 1
            found["lower"] = ratios[0]["lower"] if alone else min(r["ratio"] for r in ratios)
            found["upper"] = ratios[0]["upper"] if alone else max(r["ratio"] for r in ratios)
    counts = [each["counts"] for each in mine if each.get("counts")]
    for share, part, whole in (
        ("alpha", "accepted", "tested"),
        ("tokens_per_iteration", "emitted_after_prefill", "iterations"),
    ):
        total = sum(each[whole] for each in counts)
        found[share] = sum(each[part] for each in counts) / total if total else None
    return found


class SpeedupTable:
    number, name = "01", "speedups"
    question = "How much does speculation gain, over which pairs and with which drafters?"
    columns = ("vs_baseline", "lower", "upper", "vs_hf", "alpha", "tokens_per_iteration", "groups")

    def __init__(self, root: Path = Path("experiments")) -> None:
        """root: where the experiments' folders are."""
        self._records = {
            f"{folder}/{path.name}": record
            for folder in FOLDERS
            for path in sorted((root / folder).glob("*.json"))
            if (record := json.loads(path.read_text(encoding="utf-8"))).keys() & {"methods", "groups"}
        }
        if not self._records:
            raise ValueError(f"{root} holds no measurement to collect; run scripts/benchmark.py with --out first.")

    def points(self) -> list[Row]:
        return [
            {"work": work, "method": name, "source": source, "measured": record["environment"]["date"][:16]}
            for source, record in self._records.items()
            for work, groups in _works(record).items()
            for name in dict.fromkeys(each["name"] for group in groups for each in group)
        ]

    def measure(self, point: Row) -> Row:
        return _summary(self._records[point["source"]], point["work"], point["method"])

    def best(self, rows: Sequence[Row]) -> list[Row]:
        """Of this project's methods the one that gains most over the plain loop, for each work of each file."""
        chosen: dict[tuple[str, str], Row] = {}
        for row in rows:
            place, ratio = (row["source"], row["work"]), row["vs_baseline"]
            if row["method"].startswith(NOT_OURS) or ratio is None:
                continue
            if place not in chosen or ratio > chosen[place]["vs_baseline"]:
                chosen[place] = row
        return sorted(chosen.values(), key=lambda row: (row["source"], row["work"]))

    def draw(self, rows: Sequence[Row], folder: Path) -> list[str]:
        best = self.best(rows)[::-1]
        figure, (axes,) = new_figure(9.0, 1.2 + 0.45 * len(best))
        places = range(len(best))
        ratios = [row["vs_baseline"] for row in best]
        whiskers = [
            [max(0.0, ratio - (row["lower"] or ratio)) for row, ratio in zip(best, ratios, strict=True)],
            [max(0.0, (row["upper"] or ratio) - ratio) for row, ratio in zip(best, ratios, strict=True)],
        ]
        axes.barh(places, ratios, height=0.6, xerr=whiskers, capsize=3, **filling(2))
        axes.axvline(1.0, color=EDGE, linewidth=1, linestyle=":")
        labels = [f"{row['work'][:58]}: {row['method'].removeprefix('speculative ')}\n{row['source']}" for row in best]
        axes.set_yticks(list(places), labels, fontsize=7)
        axes.set_ylim(-0.7, len(best) - 0.3)
        axes.set_xlabel("best speed-up over our plain loop [×] (dotted: plain)")
        save(figure, folder / "speedups.png")
        return ["speedups.png"]

    def reading(self, rows: Sequence[Row]) -> str:
        best = self.best(rows)
        gaining = [row for row in best if (row["lower"] or row["vs_baseline"]) > 1.0]
        losing = [row for row in best if row["vs_baseline"] <= 1.0]
        lines = [
            f"Of {len(best)} pieces of work the best of this project's ways to draft gains in {len(gaining)} with its "
            f"whole interval above plain decoding, and loses in {len(losing)}"
            + (
                ": " + "; ".join(f"{row['work']} ({row['vs_baseline']:.2f}x, {row['source']})" for row in losing)
                if losing
                else ""
            )
            + ". Picking the best after the fact flatters a little; all methods are in the table.",
            "`lower`, `upper`: the 95 % bootstrap interval over prompts, or, where `groups` > 1, the lowest and the "
            "highest group of prompts (the ratio is then their median). `vs_hf`: over transformers' `generate`. "
            "Commands:",
            "\n".join(
                f"- [{source}](../{source}): `{record['environment']['command']}`"
                for source, record in self._records.items()
            ),
        ]
        return "\n\n".join(lines)
