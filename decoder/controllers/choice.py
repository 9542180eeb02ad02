"""L1: from the argument k to the controller of a call, and where a decoder keeps what its calls have learnt."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Literal

from decoder.types import Controller

if TYPE_CHECKING:
    from decoder.controllers.experience import Experience

Length = int | Literal["auto"]


def check_length(k: Any) -> Length:
    """k as the caller gave it.

    Raises:
        TypeError, ValueError: k is neither an integer >= 0 nor "auto".
    """
    remedy = 'use "auto" to let measurements decide, 0 for plain decoding, 4 to start with.'
    if isinstance(k, str):
        if k != "auto":
            raise ValueError(f'k={k!r} must be an integer >= 0 or "auto"; {remedy}')
        return "auto"
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f'k={k!r} must be an integer >= 0 or "auto"; {remedy}')
    if k < 0:
        raise ValueError(f"k={k} must be >= 0; {remedy}")
    return k


class Experiences:
    """One `Experience` per drafter: by its name, or, for an object, for as long as that object lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._named: dict[str, Experience] = {}
        self._objects: dict[int, tuple[weakref.ref[Any], Experience]] = {}

    def of(self, drafter: Any) -> Experience:
        """What is known of a drafter, named or an object."""
        from decoder.controllers.experience import Experience  # what measures is loaded when it is asked for

        with self._lock:
            if isinstance(drafter, str):
                return self._named.setdefault(drafter, Experience())
            held = self._objects.get(id(drafter))
            if held is None or held[0]() is not drafter:  # an id is used again once its object is gone
                self._objects = {key: item for key, item in self._objects.items() if item[0]() is not None}
                held = self._objects[id(drafter)] = (weakref.ref(drafter), Experience())
            return held[1]

    def controller(self, drafter: Any, *, reads: bool = False) -> Controller:
        """The controller of one call of k="auto"; `drafter` as the caller named it, `reads` as in `Drafter`."""
        from decoder.controllers.auto import AutoLength

        return AutoLength(self.of(drafter), reads=reads)
