"""The drafter that proposes nothing: plain decoding is the loop with it."""

from __future__ import annotations

from collections.abc import Sequence

from decoder.types import Draft, Drafter


class NoDrafter(Drafter):
    name = "none"

    def propose(self, contexts: Sequence[Sequence[int]], counts: Sequence[int]) -> Draft:
        return Draft.nothing(len(contexts))
