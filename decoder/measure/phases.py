"""A timer of where time goes, kept by wrapping the parts of one run from outside.

Every wrapped call charges its own time, less that of the wrapped calls inside it, to its phase; what no wrapped call
covers is the host's. The phases therefore sum to the wall time by construction. The devices are drained on both sides
of each wrapped call, so that their work is charged where it was asked for: a profiled run is a little slower than an
ordinary one, which carries none of this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from decoder.loop import Parts
from decoder.measure.timing import synchronise
from decoder.types import Drafter

PHASES = (
    "prefill",
    "draft forwards",
    "drafting",
    "target forwards",
    "cache",
    "warping",
    "verification",
    "controller",
    "host",
)


class PhaseTimer:
    """Seconds and calls by phase."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = [device for device in dict.fromkeys(devices) if device.type != "cpu"]
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.calls = dict.fromkeys(PHASES, 0)
        self._open = ["host"]
        self._mark = time.perf_counter()
        self.prefilling = True

    def _charge(self) -> None:
        """Time since the last mark belongs to the phase that is open now."""
        for device in self._devices:
            synchronise(device)
        now = time.perf_counter()
        self.seconds[self._open[-1]] += now - self._mark
        self._mark = now

    def begin(self) -> None:
        """The run starts now."""
        self._mark = time.perf_counter()

    def end(self) -> None:
        self._charge()

    def run(self, phase: str, call: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """Make a call in a phase. While the prompt is processed every forward is prefill."""
        if self.prefilling and phase.endswith("forwards"):
            phase = "prefill"
        self._charge()
        self._open.append(phase)
        self.calls[phase] += 1
        try:
            return call(*args, **keywords)
        finally:
            self._charge()
            self._open.pop()


class Wrapped:
    """Stands for `inner`; calls of the methods named in `phases` are charged, all else passes through."""

    def __init__(self, inner: Any, timer: PhaseTimer, phases: dict[str, str]) -> None:
        self._inner, self._timer, self._phases = inner, timer, phases

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        phase = self._phases.get(name)
        if phase is None:
            return value
        return lambda *args, **keywords: self._timer.run(phase, value, *args, **keywords)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._timer.run(self._phases["__call__"], self._inner, *args, **keywords)


def session(inner: Any, timer: PhaseTimer, forwards: str) -> Wrapped:
    """A model session; the layers of its cache are wrapped too, and charged out of the forwards they are part of."""
    cache = getattr(inner, "cache", None)
    for part in [cache, *getattr(cache, "layers", ())]:
        for name in ("update", "place", "commit", "select"):
            method = None if part is None else getattr(type(part), name, None)
            if method is not None and not (part is cache and name == "update"):
                setattr(part, name, _charged(timer, "cache", getattr(part, name)))
    return Wrapped(inner, timer, {"feed": forwards, "commit": "cache", "select": "cache"})


def _charged(timer: PhaseTimer, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **keywords: timer.run(phase, call, *args, **keywords)


def _is_session(value: Any) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("feed", "commit", "select"))


def open_sessions(drafter: Drafter, timer: PhaseTimer) -> None:
    """Wrap the model sessions a started drafter holds, those of drafters inside it included."""
    for name, value in list(vars(drafter).items()):
        if isinstance(value, Drafter):
            open_sessions(value, timer)
        elif isinstance(value, (list, tuple)) and any(isinstance(each, Drafter) for each in value):
            for each in value:
                if isinstance(each, Drafter):
                    open_sessions(each, timer)
        elif _is_session(value) and not isinstance(value, Wrapped):
            setattr(drafter, name, session(value, timer, "draft forwards"))


class WrappedRecipe(Wrapped):
    """A drafter whose start is prefill, and whose run is wrapped as well."""

    def __init__(self, inner: Drafter, timer: PhaseTimer) -> None:
        phases = {"propose": "drafting", "keep": "cache", "learn": "drafting", "finish": "drafting", "select": "cache"}
        super().__init__(inner, timer, phases)

    def start(self, *args: Any) -> WrappedRecipe:
        run = self._timer.run("prefill", self._inner.start, *args)
        open_sessions(run, self._timer)
        return WrappedRecipe(run, self._timer)


def instrument(parts: Parts, timer: PhaseTimer) -> Parts:
    """Wrap what a run is made of. The parts belong to this run alone, so nothing needs to be undone."""
    parts.target = session(parts.target, timer, "target forwards")
    parts.drafter = WrappedRecipe(parts.drafter, timer)  # type: ignore[assignment]
    same = parts.draft_warp is parts.warp
    phases = {"scores": "warping", "probs": "warping"}
    parts.warp = Wrapped(parts.warp, timer, phases)
    parts.draft_warp = parts.warp if same else Wrapped(parts.draft_warp, timer, phases)
    parts.verifier = Wrapped(parts.verifier, timer, {"__call__": "verification"})
    parts.controller = Wrapped(parts.controller, timer, {"next_length": "controller", "observe": "controller"})
    return parts
