"""L5: what a run wrote down: loss by step and held-out acceptance by checkpoint, as CSV and as a picture."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from decoder.training.loss import Tally

LOSS_FILE, ACCEPTANCE_FILE, PICTURE = "loss.csv", "acceptance.csv", "curves.png"


class Curves:
    """Rows are appended, so that a resumed run goes on with the files it finds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pending: list[list[Any]] = []

    def add(self, step: int, tokens: int, elapsed_s: float, loss: float) -> None:
        self._pending.append([step, tokens, f"{elapsed_s:.0f}", f"{loss:.4f}"])

    def measured(self, step: int, elapsed_s: float, found: Tally) -> None:
        names = ["step", "elapsed_s", "positions", "tokens_per_round", "covered"]
        depths = range(1, len(found.acceptance) + 1)
        names += [f"acceptance_{d}" for d in depths] + [f"overlap_{d}" for d in depths]
        values = [step, f"{elapsed_s:.0f}", found.positions, f"{found.tokens_per_round:.4f}"]
        values += [f"{found.covered / max(1, found.positions):.4f}"]
        values += [f"{each:.4f}" for each in (*found.acceptance, *found.mean_overlap)]
        self._append(ACCEPTANCE_FILE, names, [values])

    def write(self) -> None:
        """Flush the rows and draw, where matplotlib is installed."""
        self._append(LOSS_FILE, ["step", "tokens", "elapsed_s", "loss"], self._pending)
        self._pending = []
        try:
            import matplotlib
        except ImportError:
            return
        matplotlib.use("Agg")
        draw(self._folder)

    def _append(self, name: str, names: list[str], rows: list[list[Any]]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / name
        new = not path.is_file()
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(names)
            writer.writerows(rows)


def draw(folder: Path) -> Path:
    """Loss and acceptance over minutes, side by side."""
    from matplotlib.figure import Figure

    with (folder / LOSS_FILE).open(encoding="utf-8") as file:
        loss = list(csv.DictReader(file))
    with (folder / ACCEPTANCE_FILE).open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([float(row["elapsed_s"]) / 60 for row in loss], [float(row["loss"]) for row in loss], linewidth=0.8)
    left.set(xlabel="minutes", ylabel="loss", title="training loss, mean over unrolled steps")
    minutes = [float(row["elapsed_s"]) / 60 for row in found]
    for name in [name for name in (found[0] if found else {}) if name.startswith("acceptance_")]:
        right.plot(minutes, [float(row[name]) for row in found], marker="o", label=f"depth {name[11:]}")
    right.set(xlabel="minutes", ylabel="share of greedy guesses accepted", title="held-out texts", ylim=(0, 1))
    right.legend()
    figure.savefig(folder / PICTURE, dpi=110)
    return folder / PICTURE
