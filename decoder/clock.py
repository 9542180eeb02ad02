"""L1: clocks that tell device time without making the run wait for it.

On CUDA a lap is a pair of events, resolved when somebody reads it after the run. On MPS the queue is
drained around the call. On the CPU the call itself is the work.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from decoder.laps import Clock, Lap


@dataclass(frozen=True)
class Seconds:
    """A lap already measured."""

    seconds: float


class HostClock:
    """Wall time around a synchronous call."""

    def start(self) -> float:
        return time.perf_counter()

    def stop(self, mark: float) -> Lap:
        return Seconds(time.perf_counter() - mark)


class MpsClock(HostClock):
    """Apple's queue is asynchronous and has no cheap events, so it is drained on both sides."""

    def start(self) -> float:
        torch.mps.synchronize()
        return super().start()

    def stop(self, mark: float) -> Lap:
        torch.mps.synchronize()
        return super().stop(mark)


class CudaLap:
    """Seconds between two recorded events; the first read waits for the second event, later reads are free."""

    def __init__(self, begin: Any, end: Any) -> None:
        self._events: tuple[Any, Any] | None = (begin, end)
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        if self._events is not None:
            begin, end = self._events
            end.synchronize()
            self._seconds = begin.elapsed_time(end) / 1e3
            self._events = None
        return self._seconds


class CudaClock:
    """Events on the current stream of one device: recording costs microseconds and blocks nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def _record(self) -> Any:
        with torch.cuda.device(self._device):
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
        return event

    def start(self) -> Any:
        return self._record()

    def stop(self, mark: Any) -> Lap:
        return CudaLap(mark, self._record())


def clock_for(device: torch.device | str) -> Clock:
    """The clock of the device whose work is to be timed."""
    device = torch.device(device)
    if device.type == "cuda":
        return CudaClock(device)
    if device.type == "mps":
        return MpsClock()
    return HostClock()
