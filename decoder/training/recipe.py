"""L5: how a head is trained, as frozen values, and the rate's course over a run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from decoder.training.loss import LOSSES


@dataclass(frozen=True)
class Recipe:
    """Options of a training run; the defaults are those that the shipped heads were made with.

    minutes: wall time of the run, which the schedule follows.  steps: or so many optimiser steps; 0: no such end.
    unroll: steps of training-time test.  decay: weight of each step over the one before.
    tokens_per_step: of all processes together.  tokens_per_batch: in one forward.
    rate: of the matrices (Muon, scaled as for AdamW).  rate_vectors: of norms, and a head's own output and embedding.
    loss: "kl" or "tv".  vocabulary: ids that the head can propose; 0 is all.  longest: tokens of a text.
    fit_tokens: the closed form that training begins with is fitted to so many; 0 begins with noise.
    skip: tokens at a text's beginning that are not learnt; 0 learns only what the target wrote.
    """

    minutes: float = 60.0
    steps: int = 0
    unroll: int = 4
    decay: float = 0.8
    tokens_per_step: int = 6000
    tokens_per_batch: int = 1500
    rate: float = 1e-3
    rate_vectors: float = 1e-3
    weight_decay: float = 0.01
    warm_up: float = 0.03
    loss: str = "kl"
    vocabulary: int = 8192
    longest: int = 1024
    skip: int = 0
    checkpoint_minutes: float = 5.0
    depth: int = 5
    held_out: int = 48
    seed: int = 0
    copy_layer: bool = True
    fit_tokens: int = 20000
    feature_layers: tuple[int, ...] = ()
    joins: str = "input"

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ValueError(f"loss={self.loss!r} must be one of {', '.join(LOSSES)}.")
        for name in ("unroll", "tokens_per_step", "tokens_per_batch", "depth", "held_out"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must be >= 1.")
        if self.minutes <= 0 and self.steps <= 0:
            raise ValueError("give minutes or steps: without either a run has no end.")

    def progress(self, elapsed_s: float, step: int) -> float:
        """How far the run is, 0 ... 1: by time or by steps, whichever is further."""
        by_time = elapsed_s / (60 * self.minutes) if self.minutes > 0 else 0.0
        by_steps = step / self.steps if self.steps > 0 else 0.0
        return min(1.0, max(by_time, by_steps))

    def rate_factor(self, progress: float) -> float:
        """Linear warm-up, then a half cosine down to zero."""
        if progress < self.warm_up:
            return max(progress, 0.1 * self.warm_up) / self.warm_up
        return 0.5 * (1 + math.cos(math.pi * (progress - self.warm_up) / (1 - self.warm_up)))

    def weights(self) -> list[float]:
        return [self.decay**step for step in range(self.unroll)]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
