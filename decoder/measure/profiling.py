"""Where one generation's time goes, and what a forward of each model costs.

Three runs of the same prompt: one to warm up, one as it is, one with a `PhaseTimer`; then forwards of m tokens. The
difference between the second and the third is what profiling itself cost, and is reported.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from typing_extensions import Unpack

from decoder.api import SpeculativeDecoder
from decoder.asked.options import CallOptions
from decoder.asked.request import Request
from decoder.controllers import Length, check_length
from decoder.generation import Generation, Run
from decoder.loop import Parts
from decoder.measure.forwards import WIDTHS, ForwardCost, forward_cost
from decoder.measure.phases import PHASES, PhaseTimer, instrument
from decoder.measure.timing import synchronise
from decoder.results import GenerationResult

MEASURED_TOKENS = 64
_REFUSED = ("cache", "return_cache", "streamer")


@dataclass(frozen=True)
class Phase:
    """Time spent in one kind of work, less the other kinds inside it."""

    name: str
    seconds: float
    calls: int


@dataclass(frozen=True)
class Profile:
    """Where the time of one generation went. `phases` sum to `wall_s`; `plain_wall_s` is the same run unprofiled."""

    phases: tuple[Phase, ...]
    wall_s: float
    plain_wall_s: float
    drafter: str
    tokens: int
    iterations: int
    alpha: float | None
    target: ForwardCost
    draft: ForwardCost | None

    @property
    def cost_ratio(self) -> float | None:
        """c: one draft forward / one target forward, of one token each."""
        return None if self.draft is None else self.draft.seconds(1) / self.target.seconds(1)

    def seconds(self, phase: str) -> float:
        for each in self.phases:
            if each.name == phase:
                return each.seconds
        raise ValueError(f"phase={phase!r} is unknown; use one of {[each.name for each in self.phases]}.")

    def phase_rows(self) -> list[tuple[str, float, float, float, int]]:
        """(phase, seconds, share of wall, milliseconds per iteration, calls); prefill has no iteration."""
        rounds = max(1, self.iterations)
        return [
            (
                each.name,
                each.seconds,
                each.seconds / self.wall_s,
                1e3 * each.seconds / (1 if each.name == "prefill" else rounds),
                each.calls,
            )
            for each in self.phases
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain types, ready for JSON."""
        return {
            "drafter": self.drafter,
            "tokens": self.tokens,
            "iterations": self.iterations,
            "alpha": self.alpha,
            "wall_s": self.wall_s,
            "plain_wall_s": self.plain_wall_s,
            "phases": {each.name: {"seconds": each.seconds, "calls": each.calls} for each in self.phases},
            "cost_ratio": self.cost_ratio,
            "target": self.target.to_dict(),
            "draft": None if self.draft is None else self.draft.to_dict(),
        }

    def __str__(self) -> str:
        return "\n".join([*self._phase_lines(), "", *self._forward_lines()])

    def _phase_lines(self) -> list[str]:
        lines = [
            f"{self.tokens} tokens in {self.iterations} iterations, drafter {self.drafter!r}: {self.wall_s:.3f} s "
            f"profiled, {self.plain_wall_s:.3f} s unprofiled",
            f"{'phase':<16}{'seconds':>10}{'share':>9}{'ms/iteration':>14}{'calls':>8}",
        ]
        for name, seconds, share, each_ms, calls in self.phase_rows():
            lines.append(f"{name:<16}{seconds:>10.4f}{100 * share:>8.1f}%{each_ms:>14.3f}{calls:>8}")
        return lines

    def _forward_lines(self) -> list[str]:
        costs = [("target", self.target)] + ([("draft", self.draft)] if self.draft is not None else [])
        widths = sorted(set().union(*(cost.table for _, cost in costs)))
        lines = [f"ms of a forward of m tokens after {self.target.context}", f"{'m':<16}" + _row(widths, "d")]
        for role, cost in costs:
            known = [1e3 * cost.table[m].median if m in cost.table else float("nan") for m in widths]
            lines.append(f"{role:<16}" + _row(known, ".3f"))
        for role, cost in costs:
            lines.append(
                f"{role}: {1e3 * cost.fixed_s:.3f} ms per call + {1e3 * cost.per_token_s:.3f} ms per token "
                f"(the line misses the table by up to {100 * cost.worst_residual:.0f} %)"
            )
        if self.cost_ratio is not None:
            lines.append(f"one draft step costs {self.cost_ratio:.3f} of a target step")
        return lines


def _row(values: Sequence[float], form: str) -> str:
    return "".join(f"{value:>10{form}}" for value in values)


class _ProfiledGeneration(Generation):
    """An ordinary generation whose parts are wrapped once they are put together."""

    timer: PhaseTimer

    def _assemble(self) -> Parts:
        return instrument(super()._assemble(), self.timer)


def _plain(run: Run, request: Request) -> float:
    device = run.target.device
    synchronise(device)
    began = time.perf_counter()
    for _ in Generation(run, request).steps():
        pass
    synchronise(device)
    return time.perf_counter() - began


def _profiled(run: Run, request: Request) -> tuple[PhaseTimer, GenerationResult]:
    draft_device = getattr(getattr(run.drafter, "model", None), "device", "cpu")
    timer = PhaseTimer([run.target.device, torch.device(draft_device)])
    generation = _ProfiledGeneration(run, request)
    generation.timer = timer
    timer.begin()
    for _ in generation.steps():
        timer.prefilling = False
    timer.end()
    return timer, generation.results()[0]


def profile_of(run: Run, request: Request, *, widths: Sequence[int] = WIDTHS, repeats: int = 9) -> Profile:
    """Profile the one prompt of a request; forwards of `widths` tokens are timed `repeats` times each.

    Raises:
        ValueError: options that keep state beyond the run, or widths without room.
    """
    for name in _REFUSED:
        if getattr(request, name):
            raise ValueError(f"profile() does not take {name}=; it runs the prompt several times. Leave it out.")
    prompt = request.rows[0].tokens
    target = forward_cost(run.target, prompt, widths=widths, repeats=repeats)
    model: Any = getattr(run.drafter, "model", None)
    draft = forward_cost(model, prompt, widths=widths, repeats=repeats) if hasattr(model, "open") else None
    _plain(run, request)
    plain_wall_s = _plain(run, request)
    timer, result = _profiled(run, request)
    return Profile(
        phases=tuple(Phase(name, timer.seconds[name], timer.calls[name]) for name in PHASES),
        wall_s=sum(timer.seconds.values()),
        plain_wall_s=plain_wall_s,
        drafter=run.drafter.name,
        tokens=len(result.token_ids),
        iterations=result.num_iterations,
        alpha=result.alpha if result.num_draft_tokens else None,
        target=target,
        draft=draft,
    )


def profile(
    spec: SpeculativeDecoder,
    prompt: Any,
    *,
    k: Length = 4,
    widths: Sequence[int] = WIDTHS,
    repeats: int = 9,
    **options: Unpack[CallOptions],
) -> Profile:
    """Where the time of `spec.generate(prompt, k=k, ...)` goes, and what forwards of `widths` tokens cost each model.

    Takes the options of `generate` but for caches and streamers; 64 new tokens by default. Print it, or see
    `Profile.to_dict`. Ordinary runs are not slowed: one run is wrapped from outside.

    Raises:
        ValueError, TypeError: as `generate`; several prompts.
    """
    request = measured_request(spec, prompt, options, check_length(k), "profile")
    if request.many:
        raise ValueError(f"profile() takes one prompt, not {len(request.rows)}; call it for one at a time.")
    return profile_of(spec.run_for(request), request, widths=widths, repeats=repeats)


def measured_request(spec: SpeculativeDecoder, prompt: Any, options: CallOptions, k: Length, where: str) -> Request:
    """The request of `spec.generate(prompt, k=k, **options)`, of 64 new tokens where no length is given."""
    if options.get("max_new_tokens") is None and options.get("max_length") is None:
        options["max_new_tokens"] = MEASURED_TOKENS
    return Request.of(prompt, options, k, where, spec)
