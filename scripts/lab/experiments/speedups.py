"""Experiment 01: the speed-up of every pair and drafter that was measured, in one table.

Measures nothing: it reads the `summary.json` of the experiments' folders, which `scripts/summarise.py` makes of what
`specdec bench` and the measuring scripts wrote. Each piece of work has one row, with the method of this project that
gains most over plain decoding; the other methods, and the command, stand in the folder's own pages. An entry of
`measure_drafters.py` holds groups of prompts: its row is that of all prompts together.
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
SILENT = 1.01  # tokens per iteration below which next to nothing was drafted, so that a ratio is noise

Methods = list[Mapping[str, Any]]


def _works(path: Path) -> dict[str, tuple[str, str, Methods]]:
    """FOLDER/ENTRY, with the mode where there are several -> (title, date, methods over all prompts)."""
    found = {}
    for name, entry in json.loads(path.read_text(encoding="utf-8")).items() if path.exists() else ():
        source = f"{path.parent.name}/{name}"
        if "methods" in entry:
            found[source] = (entry["title"], entry["date"], entry["methods"])
        for mode, groups in entry.get("modes", {}).items():
            whole = groups.get(ALL) or next(iter(groups.values()))
            found[f"{source} {mode}"] = (f"{entry['title']}, {mode}", entry["date"], whole)
    return found


def _best(methods: Methods) -> Mapping[str, Any] | None:
    """Of this project's methods the one that gains most over plain decoding."""
    ours = [each for each in methods if not each["name"].startswith(NOT_OURS) and each.get("vs_baseline")]
    return max(ours, key=lambda each: each["vs_baseline"][0], default=None)


class SpeedupTable:
    number, name = "01", "speedups"
    question = "How much does speculation gain, over which pairs and with which drafters?"
    columns = ("best_method", "vs_plain", "lower", "upper", "vs_generate", "tokens_per_iteration")
    hidden = ("work", "measured", "tokens_per_iteration")

    def __init__(self, root: Path = Path("experiments")) -> None:
        """root: where the experiments' folders are."""
        self._works: dict[str, tuple[str, str, Methods]] = {}
        for folder in FOLDERS:
            self._works |= _works(root / folder / "summary.json")
        if not self._works:
            raise ValueError(f"{root} holds no measurement to collect; run specdec bench --out and summarise.py first.")

    def points(self) -> list[Row]:
        return [
            {"source": source, "work": title, "measured": date}
            for source, (title, date, methods) in sorted(self._works.items())
            if _best(methods) is not None
        ]

    def measure(self, point: Row) -> Row:
        best = _best(self._works[point["source"]][2])
        assert best is not None  # points() left the others out
        ratio, lower, upper = best["vs_baseline"]
        over_generate, *_ = best.get("vs_hf") or (None,)
        return {"best_method": best["name"].removeprefix("speculative "), "vs_plain": ratio, "lower": lower} | {
            "upper": upper,
            "vs_generate": over_generate,
            "tokens_per_iteration": best.get("tokens_per_iteration"),
        }

    def draw(self, rows: Sequence[Row], folder: Path) -> list[str]:
        best = rows[::-1]
        figure, (axes,) = new_figure(9.0, 1.2 + 0.45 * len(best))
        places = range(len(best))
        ratios = [row["vs_plain"] for row in best]
        whiskers = [
            [max(0.0, ratio - (row["lower"] or ratio)) for row, ratio in zip(best, ratios, strict=True)],
            [max(0.0, (row["upper"] or ratio) - ratio) for row, ratio in zip(best, ratios, strict=True)],
        ]
        axes.barh(places, ratios, height=0.6, xerr=whiskers, capsize=3, **filling(2))
        axes.axvline(1.0, color=EDGE, linewidth=1, linestyle=":")
        labels = [f"{row['work'][:58]}: {row['best_method']}\n{row['source']}" for row in best]
        axes.set_yticks(list(places), labels, fontsize=7)
        axes.set_ylim(-0.7, len(best) - 0.3)
        axes.set_xlabel("best speed-up over our plain loop [×] (dotted: plain)")
        save(figure, folder / "speedups.png")
        return ["speedups.png"]

    def reading(self, rows: Sequence[Row]) -> str:
        drafting = [row for row in rows if (row["tokens_per_iteration"] or 0) >= SILENT]
        gaining = [row for row in drafting if (row["lower"] or row["vs_plain"]) > 1.0]
        losing = [f"{row['source']} ({row['vs_plain']:.2f}x)" for row in drafting if row["vs_plain"] <= 1.0]
        return (
            f"Of {len(rows)} pieces of work the best of this project's ways to draft gains in {len(gaining)} with its "
            f"whole interval above plain decoding, and loses in {len(losing)}"
            + (f": {'; '.join(losing)}" if losing else "")
            + f". In {len(rows) - len(drafting)} it hardly drafted at all, so its ratio is noise. Picking the best "
            "after the fact flatters a little; all methods are in the folders' own pages.\n\n"
            "`source` names a folder of [experiments](../) and an entry of its `summary.json`, with the command. "
            "`vs_plain`: over plain decoding by the same loop, with a 95 % bootstrap interval over prompts, `lower` to "
            "`upper`. `vs_generate`: over transformers' `generate`. These rows collect other measurements and are no "
            "run of their own; `python scripts/experiment.py 01` writes the table anew."
        )
