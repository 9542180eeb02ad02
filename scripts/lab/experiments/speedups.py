"""Experiment 01: the speed-up of every pair and drafter that was measured, in one table.

Measures nothing: it reads the `summary.json` of the experiments' folders, which `scripts/summarise.py` makes of what
`specdec bench` and the measuring scripts wrote, and every row names its entry, whose own command stands above the
table. An entry of `measure_drafters.py` holds groups of prompts: its row is that of all prompts together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from decoder.report.figures import EDGE, filling, new_figure, save
from lab.runner import Row

FOLDERS = ("01-pairs", "09-another-runtime", "10-compare", "11-drafters", "12-geometries", "16-offload", "17-packed")
NOT_OURS = ("hf", "mlx", "baseline")  # how the names of plain methods and of other programs' begin
ALL = "all"  # the group of every prompt


def _works(entry: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Work -> its methods; of groups of prompts, those of all together."""
    if "methods" in entry:
        return {str(entry["title"]): entry["methods"]}
    return {
        f"{entry['title']}, {mode}": groups.get(ALL) or next(iter(groups.values()))
        for mode, groups in entry["modes"].items()
    }


def _row(entry: Mapping[str, Any], work: str, name: str) -> Row:
    """One method: its speed-ups and acceptance."""
    found = next(each for each in _works(entry)[work] if each["name"] == name)
    ratio, lower, upper = found.get("vs_baseline") or (None, None, None)
    over_hf, *_ = found.get("vs_hf") or (None,)
    return {"vs_baseline": ratio, "lower": lower, "upper": upper, "vs_hf": over_hf} | {
        share: found.get(share) for share in ("alpha", "tokens_per_iteration")
    }


class SpeedupTable:
    number, name = "01", "speedups"
    question = "How much does speculation gain, over which pairs and with which drafters?"
    columns = ("vs_baseline", "lower", "upper", "vs_hf", "alpha", "tokens_per_iteration")

    def __init__(self, root: Path = Path("experiments")) -> None:
        """root: where the experiments' folders are."""
        self._entries: dict[str, Mapping[str, Any]] = {}
        for folder in FOLDERS:
            path = root / folder / "summary.json"
            found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            held = {f"{folder}/{name}": entry for name, entry in found.items() if entry.keys() & {"methods", "modes"}}
            self._entries |= held
        if not self._entries:
            raise ValueError(f"{root} holds no measurement to collect; run specdec bench --out and summarise.py first.")

    def points(self) -> list[Row]:
        return [
            {"work": work, "method": each["name"], "source": source, "measured": entry["date"]}
            for source, entry in self._entries.items()
            for work, methods in _works(entry).items()
            for each in methods
        ]

    def measure(self, point: Row) -> Row:
        return _row(self._entries[point["source"]], point["work"], point["method"])

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
            "`lower`, `upper`: the 95 % bootstrap interval over prompts. `vs_hf`: over transformers' `generate`. "
            "Commands:",
            "\n".join(
                f"- [{source}](../{source.partition('/')[0]}/summary.json): `{entry['command']}`"
                for source, entry in self._entries.items()
            ),
        ]
        return "\n\n".join(lines)
