"""A controller that is told which rounds compiled something, so that it does not learn from their times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from decoder.types import Controller, Step


class Warmed:
    """compilations: how many graphs the models of the run have made so far."""

    def __init__(self, inner: Controller, compilations: Callable[[], int]) -> None:
        self._inner, self._compilations = inner, compilations
        self._seen = compilations()

    def next_length(self) -> int:
        return self._inner.next_length()

    def observe(self, step: Step) -> None:
        before, self._seen = self._seen, self._compilations()
        self._inner.observe(step if self._seen == before else replace(step, cold=True))
