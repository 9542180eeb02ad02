"""The default: match when the draft is deterministic, block verification when it was sampled, recursive rejection for
a sampled tree. Lossless."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from decoder.types import Draft, RandomSource, Verdict
from decoder.verify.block import BlockVerifier
from decoder.verify.match import MatchVerifier
from decoder.verify.token import TokenVerifier


class AutoVerifier:
    name = "auto"
    lossless = True
    trees = True

    _match, _block, _tree = MatchVerifier(), BlockVerifier(), TokenVerifier()  # none holds anything

    def __call__(self, p: Tensor, draft: Draft, random: RandomSource, starts: Sequence[int]) -> Verdict:
        """p [B, K+1, V]; whether the draft has a q depends on the drafter, never on this round's p."""
        if not draft.sampled and draft.probs is None:
            return self._match(p, draft, random, starts)
        return (self._block if draft.tree is None else self._tree)(p, draft, random, starts)
