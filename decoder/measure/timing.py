"""Several ways to generate, timed on the same prompts in turn, so that a slow minute is slow for all of them.

For each repeat and each prompt every method runs once, and which one begins moves on each time. Before anything
counts, every method has run on the first prompt. The clock is the host's wall clock around the whole call, with the
device drained on both sides. Knows prompts as token ids and methods as callables; not what a method does.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch

from decoder.checks import at_least
from decoder.results import GenerationResult


@dataclass(frozen=True)
class Counts:
    """What a run of this project's own loop says of itself: counts that add up over prompts, and seconds."""

    drafted: int = 0
    accepted: int = 0
    tested: int = 0
    emitted_after_prefill: int = 0
    iterations: int = 0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    target_s: float = 0.0
    overhead_s: float = 0.0
    drafting: int = 0  # iterations in which anything was proposed

    @classmethod
    def of(cls, result: GenerationResult) -> Counts:
        rounds = result.steps[1:]
        return cls(
            result.num_draft_tokens,
            result.num_accepted_tokens,
            sum(step.tested for step in rounds),
            sum(len(step.emitted) for step in rounds),
            result.num_iterations,
            result.prefill_s,
            result.draft_s,
            result.target_s,
            result.overhead_s,
            sum(bool(step.drafted) for step in rounds),
        )

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True)
class RunOutput:
    """New token ids of one run, and its own account where there is one."""

    token_ids: tuple[int, ...]
    counts: Counts | None = None


class Method(Protocol):
    """A way to continue a prompt. `device` is drained before the clock is read."""

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> torch.device: ...

    def __call__(self, prompt: Sequence[int], seed: int) -> RunOutput: ...


@dataclass(frozen=True)
class Sample:
    """One timed run."""

    method: str
    prompt: int
    repeat: int
    wall_s: float
    token_ids: tuple[int, ...]
    counts: Counts | None = None


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def timed(method: Method, prompt: Sequence[int], seed: int) -> tuple[RunOutput, float]:
    """One run and its seconds."""
    gc.collect()  # nobody pays for another method's garbage
    synchronise(method.device)
    began = time.perf_counter()
    output = method(prompt, seed)
    synchronise(method.device)
    return output, time.perf_counter() - began


def _check(methods: Sequence[Any], prompts: Sequence[Any], repeats: int, warm_up: int) -> None:
    names = [method.name for method in methods]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"methods={names} must be at least one, each with a name of its own.")
    if not prompts:
        raise ValueError("prompts is empty; give at least one.")
    at_least("repeats", repeats, 1, "3 to start with.")
    at_least("warm_up", warm_up, 0, "0 times the first runs, too.")


def interleaved(
    methods: Sequence[Method],
    prompts: Sequence[Sequence[int]],
    *,
    repeats: int = 3,
    warm_up: int = 1,
    seed: int = 0,
    watch: Callable[[Iterable[Any], int], Iterable[Any]] | None = None,
) -> list[Sample]:
    """Every method on every prompt, `repeats` times over, after `warm_up` uncounted runs of each on the first prompt.

    All methods get the same seed for the same prompt and repeat. `watch(turns, total)` may wrap the turns in a
    progress bar.

    Raises:
        ValueError: no methods, two of one name, no prompts, or counts out of range.
    """
    _check(methods, prompts, repeats, warm_up)
    for method in methods:
        for _ in range(warm_up):
            method(prompts[0], seed)
    turns = [
        (repeat, number, (repeat * len(prompts) + number + i) % len(methods))
        for repeat in range(repeats)
        for number in range(len(prompts))
        for i in range(len(methods))
    ]
    samples = []
    for repeat, number, which in turns if watch is None else watch(turns, len(turns)):
        method = methods[which]
        output, wall_s = timed(method, prompts[number], seed + repeat)
        samples.append(Sample(method.name, number, repeat, wall_s, output.token_ids, output.counts))
    return samples
