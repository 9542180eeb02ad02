"""Checkpoints that a run resumes from exactly, and the curve of measurements kept with them."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


def save_checkpoint(
    path: Path, step: int, model: torch.nn.Module, optimiser: Any, rows: list[dict[str, float]]
) -> None:
    """Write model, optimiser and curve after `step` steps, atomically (an interruption leaves the old file whole)."""
    state = {"step": step, "model": model.state_dict(), "optimiser": optimiser.state_dict(), "rows": rows}
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def load_checkpoint(path: Path, model: torch.nn.Module, optimiser: Any) -> tuple[int, list[dict[str, float]]]:
    """Restore model and optimiser; returns the number of steps done and the curve so far, (0, []) without a file."""
    if not path.exists():
        return 0, []
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    return int(state["step"]), list(state["rows"])


def write_curve(path: Path, rows: Sequence[dict[str, float]]) -> None:
    """Write measurements as CSV: one row per measurement, an empty field where a column was not measured."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
