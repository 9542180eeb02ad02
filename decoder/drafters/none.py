"""L3: the drafter that proposes nothing: plain decoding is the loop with it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decoder.types import Draft, Drafter


class NoDrafter(Drafter):
    name = "none"

    def propose(self, contexts: Sequence[Sequence[int]], counts: Sequence[int]) -> Draft:
        return Draft(torch.zeros(len(contexts), 0, dtype=torch.long), [0] * len(contexts))
