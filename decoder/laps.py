"""Stretches of device time: what a clock stamps and a step holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class Lap(Protocol):
    """A stretch of device time; reading it may wait for the device."""

    @property
    def seconds(self) -> float: ...


@dataclass(frozen=True)
class Laps:
    """Several stretches as one."""

    laps: tuple[Lap, ...]

    @property
    def seconds(self) -> float:
        return sum(lap.seconds for lap in self.laps)


class Clock(Protocol):
    """Stamps phases in the time of one device."""

    def start(self) -> Any: ...

    def stop(self, mark: Any) -> Lap: ...
