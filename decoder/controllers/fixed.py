"""L1: the same draft length every round."""

from __future__ import annotations

from decoder.types import Step


class FixedLength:
    """k tokens a round; 0 is plain decoding."""

    def __init__(self, k: int) -> None:
        self.k = k

    def next_length(self) -> int:
        return self.k

    def observe(self, step: Step) -> None:
        pass
