"""The default: match when the draft is deterministic, block verification when it was sampled. Lossless."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from decoder.types import Draft, RandomSource, Verdict
from decoder.verify.block import BlockVerifier
from decoder.verify.match import MatchVerifier


class AutoVerifier:
    name = "auto"
    lossless = True

    _match, _block = MatchVerifier(), BlockVerifier()  # neither holds anything

    def __call__(self, p: Tensor, draft: Draft, random: RandomSource, starts: Sequence[int]) -> Verdict:
        """p [B, K+1, V]; whether the draft has a q depends on the drafter, never on this round's p."""
        chosen = self._block if draft.sampled or draft.probs is not None else self._match
        return chosen(p, draft, random, starts)
