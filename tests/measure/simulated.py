"""A decoder on simulated time: every cost is set by the test, so that what is measured can be checked exactly."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from decoder.results import GenerationResult, RowRound
from decoder.types import Drafter


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def install(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("timing", "forwards"):
        monkeypatch.setattr(f"decoder.measure.{module}.time", clock)
    return clock


class Model:
    """Forwards of m tokens take t(m) seconds."""

    context_length: int | None = None
    device = "cpu"

    def __init__(self, clock: Clock, seconds: Callable[[int], float]) -> None:
        self.clock, self.seconds = clock, seconds
        self.fed: list[tuple[int, list[int]]] = []

    def open(self, rows: int, limit: int, cache: Any = None) -> Any:
        return SimpleNamespace(feed=self.feed, commit=lambda lengths: None)

    def feed(self, tokens: Tensor, starts: Sequence[int], at: Sequence[int] | None = None) -> Tensor:
        self.fed.append((tokens.shape[1], list(starts)))
        self.clock.now += self.seconds(tokens.shape[1])
        return torch.zeros(1, 1, 4)


class Recipe(Drafter):
    """A drafter as the simulation sees it: its acceptance, its cost a token, how often it proposes."""

    def __init__(self, name: str, alpha: float, draft_s: float, proposes: float = 1.0) -> None:
        self.name, self.alpha, self.draft_s, self.proposes = name, alpha, draft_s, proposes


class Decoder:
    """Rounds drawn from independent acceptances, timed by the model's t(m)."""

    def __init__(self, model: Model, *, overhead_s: float = 0.0, tokens: int = 400) -> None:
        self.model, self.overhead_s, self.tokens = model, overhead_s, tokens

    def generate_baseline(self, prompt: Any, **options: Any) -> GenerationResult:
        return self._run(prompt, None, 0)

    def generate(self, prompt: Any, *, k: int, drafter: Recipe, **options: Any) -> GenerationResult:
        return self._run(prompt, drafter, k)

    def _run(self, prompt: Any, drafter: Recipe | None, k: int) -> GenerationResult:
        source = random.Random(str(prompt))
        steps = [RowRound(0, (), 0, (1,), 0.0, 0.0, 0.0)]
        done = 1
        while done < self.tokens:
            count = k if drafter is not None and source.random() < drafter.proposes else 0
            accepted = 0
            while accepted < count and source.random() < drafter.alpha:
                accepted += 1
            draft_s = count * drafter.draft_s if drafter is not None else 0.0
            target_s = self.model.seconds(1 + count)
            emitted = (1,) * min(accepted + 1, self.tokens - done)
            wall_s = draft_s + target_s + self.overhead_s
            steps.append(RowRound(len(steps), (1,) * count, accepted, emitted, wall_s, draft_s, target_s))
            done += len(emitted)
        wall_s = sum(step.wall_s for step in steps)
        self.model.clock.now += wall_s
        return GenerationResult("", "", (1,) * done, tuple(prompt), "length", wall_s, tuple(steps), True)
