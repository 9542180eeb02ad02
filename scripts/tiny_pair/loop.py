"""The training loop that both models share: steps, measurements, checkpoints, progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from tqdm import tqdm

from .checkpoint import load_checkpoint, save_checkpoint, write_curve
from .optimiser import PairedOptimiser
from .presets import Stage

Row = dict[str, float]


def run_stage(
    model: torch.nn.Module,
    stage: Stage,
    folder: Path,
    tokens_per_step: int,
    loss_at: Callable[[int], torch.Tensor],
    measure: Callable[[], Row],
) -> list[Row]:
    """Train `model` in place for stage.steps steps and return the curve.

    loss_at(step) must depend on nothing but the step and the weights: then a run resumed from folder/checkpoint.pt
    repeats an uninterrupted one exactly. Every stage.evaluate_every steps a row is added (step, tokens, loss as the
    mean since the last row, what `measure` gives, and seconds of training alone), and folder/checkpoint.pt and
    folder/curve.csv are written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    optimiser = PairedOptimiser(model, stage)
    done, rows = load_checkpoint(folder / "checkpoint.pt", model, optimiser)
    seconds = rows[-1]["seconds"] if rows else 0.0
    losses: list[torch.Tensor] = []
    bar = tqdm(range(done, stage.steps), initial=done, total=stage.steps, desc=folder.name, mininterval=5.0)
    for step in bar:
        began = time.monotonic()
        loss = loss_at(step)
        loss.backward()
        optimiser.step(step)
        losses.append(loss.detach())
        seconds += time.monotonic() - began
        if (step + 1) % stage.evaluate_every == 0 or step + 1 == stage.steps:
            row: Row = {"step": step + 1, "tokens": (step + 1) * tokens_per_step}
            row |= {"loss": float(torch.stack(losses).mean())} | measure() | {"seconds": round(seconds, 1)}
            rows.append(row)
            losses = []
            bar.set_postfix({k: f"{v:.3f}" for k, v in row.items() if k not in ("step", "tokens", "seconds")})
            save_checkpoint(folder / "checkpoint.pt", step + 1, model, optimiser, rows)
            write_curve(folder / "curve.csv", rows)
    return rows
