"""Muon for the hidden matrices, AdamW for everything else, one learning-rate schedule for both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .presets import Stage


class StackedMuon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024): each matrix moves along its momentum, made orthogonal by Newton-Schulz steps.

    The update rule of torch.optim.Muon; matrices of one shape are stacked and orthogonalised together in float32,
    which on two cores takes two thirds of the time for models as thin as these.
    """

    def __init__(self, matrices: Iterable[torch.nn.Parameter], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Apply one update; every matrix must have a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.nn.Parameter]] = {}
            for matrix in group["params"]:
                by_shape.setdefault(matrix.shape, []).append(matrix)
            for (rows, columns), matrices in by_shape.items():
                moves = orthogonal(torch.stack([self._momentum(m, group["momentum"]) for m in matrices]))
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                for matrix, move in zip(matrices, moves, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(move, alpha=-rate)

    def _momentum(self, matrix: torch.nn.Parameter, momentum: float) -> torch.Tensor:
        """Update the running mean of the gradients and return its Nesterov look-ahead, same shape as the matrix."""
        state = self.state[matrix]
        if "mean" not in state:
            state["mean"] = torch.zeros_like(matrix)
        state["mean"].lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(state["mean"], momentum)


def orthogonal(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Bring the singular values of each matrix (n, rows, columns) near 1 by `steps` quintic Newton-Schulz steps."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.mT if tall else x


class PairedOptimiser:
    """Muon (Jordan et al. 2024) on the 2-D matrices inside the layers, AdamW on embeddings and norms.

    Both follow the same schedule: linear warm-up, then linear decay to zero (arXiv 2502.15938).
    """

    def __init__(self, model: torch.nn.Module, stage: Stage) -> None:
        inner = [p for n, p in model.named_parameters() if p.ndim == 2 and ".layers." in n]
        chosen = {id(p) for p in inner}
        outer = [p for p in model.parameters() if id(p) not in chosen]
        self._stage = stage
        self._parts: list[tuple[torch.optim.Optimizer, float]] = [
            (StackedMuon(inner, lr=stage.muon_rate, momentum=0.95, weight_decay=0.1), stage.muon_rate),
            (torch.optim.AdamW(outer, lr=stage.adam_rate, betas=(0.9, 0.95), weight_decay=0.0), stage.adam_rate),
        ]
        self._parameters = list(model.parameters())

    def step(self, step: int) -> float:
        """Apply the gradients at the rate of `step` (from 0) and clear them; returns their norm before clipping."""
        scale = schedule(step, self._stage)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for optimiser, rate in self._parts:
            for group in optimiser.param_groups:
                group["lr"] = rate * scale
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        return float(norm)

    def state_dict(self) -> dict[str, Any]:
        """The state of both optimisers: tensors, numbers and names only."""
        return {"parts": [optimiser.state_dict() for optimiser, _ in self._parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        for (optimiser, _), part in zip(self._parts, state["parts"], strict=True):
            optimiser.load_state_dict(part)


def schedule(step: int, stage: Stage) -> float:
    """Share of the peak rate at `step` (0-based): rises over `warmup` steps, then falls linearly towards zero."""
    if step < stage.warmup:
        return (step + 1) / stage.warmup
    return (stage.steps - step) / max(1, stage.steps - stage.warmup)
