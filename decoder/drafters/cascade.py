"""Several drafters in order: each row of a round is served by the first that offers enough.

For instance a suffix lookup where the text repeats itself, and the draft model everywhere else: a round is one
proposal still, and each row's q is honest. A sampled proposal brings its own q; next to it a deterministic one
is a one-hot row. Which drafter serves may depend on the past and on deterministic offers only: an offer that was
sampled is never set aside for another, because choosing by what was drawn would change its distribution.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from decoder.checks import at_least
from decoder.drafters.model import ModelDrafter
from decoder.drafters.recycle import RecycleDrafter
from decoder.drafters.suffix import SuffixDrafter
from decoder.types import Draft, Drafter, ModelSession, RandomSource, Warp
from decoder.verify.chain import one_hot


@dataclass(frozen=True)
class _Share:
    """One drafter's part in a round: the rows it serves."""

    drafter: Drafter
    draft: Draft
    rows: frozenset[int]


def merge(shares: Sequence[_Share], rows: int, sampled: bool) -> Draft:
    """The shares as one proposal; rows nobody serves draft nothing."""
    counts = [0] * rows
    for share in shares:
        for b in share.rows:
            counts[b] = share.draft.counts[b]
    served = {b for b, n in enumerate(counts) if n}
    for share in shares:
        if share.rows >= served and share.draft.counts == counts:  # one drafter serves all: nothing to put together
            return replace(share.draft, sampled=sampled)
    width = max(counts, default=0)
    laws = [share.draft.probs for share in shares if share.draft.probs is not None and share.rows]
    home = laws[0].device if laws else next((s.draft.tokens.device for s in shares if s.rows), torch.device("cpu"))
    tokens = torch.zeros(rows, width, dtype=torch.long, device=home)  # [B, K]
    probs = laws[0].new_zeros(rows, width, laws[0].shape[-1]) if laws else None  # [B, K, V]
    finite = torch.ones(rows, dtype=torch.bool, device=home)
    for share in shares:
        for b in share.rows:
            n, draft = counts[b], share.draft
            tokens[b, :n] = draft.tokens[b, :n]
            if probs is not None:
                probs[b, :n] = one_hot(tokens[b, :n], probs) if draft.probs is None else draft.probs[b, :n]
            if draft.finite is not None:
                finite[b] = draft.finite[b]
    return Draft(tokens, counts, probs, finite if any(s.draft.finite is not None for s in shares) else None, sampled)


class CascadeDrafter(Drafter):
    """Drafters in order of preference, the most expensive last.

    enough: a deterministic offer of fewer tokens is passed over for the next drafter's, as far as more were asked for.
    """

    name = "cascade"

    def __init__(self, drafters: Sequence[Drafter], *, enough: int = 1) -> None:
        drafters = list(drafters)
        if not drafters or not all(isinstance(drafter, Drafter) for drafter in drafters):
            raise TypeError(f"drafters={drafters!r} must be a non-empty list of Drafter objects.")
        self.drafters = drafters
        self.enough = at_least("enough", enough, 1)
        self._sampled = False
        self._asked: list[_Share] = []

    @classmethod
    def for_models(cls, target: Any, draft: Any) -> CascadeDrafter:
        """Suffix lookup, then the draft model; without one, Token Recycling."""
        if draft is None:
            return cls([SuffixDrafter(), RecycleDrafter()])
        return cls([SuffixDrafter(min_match=4, min_prob=0.5), ModelDrafter(draft)])

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        return all(drafter.deterministic for drafter in self.drafters)

    @property
    def learns(self) -> bool:  # type: ignore[override]
        return any(drafter.learns for drafter in self.drafters)

    @property
    def reads(self) -> bool:  # type: ignore[override]
        return any(drafter.reads for drafter in self.drafters)

    @property
    def model(self) -> Any:
        """The first draft model among the drafters, or None."""
        return next((drafter.model for drafter in self.drafters if drafter.model is not None), None)

    @property
    def device(self) -> Any:
        """Where its draft model is."""
        return next((drafter.device for drafter in self.drafters if drafter.model is not None), "cpu")

    @property
    def can_batch(self) -> bool:  # type: ignore[override]
        return all(drafter.can_batch for drafter in self.drafters)

    def _with(self, drafters: Sequence[Drafter]) -> Self:
        twin = copy.copy(self)
        twin.drafters = list(drafters)
        return twin

    def bind(self, target: Any, draft: Any) -> Self:
        return self._with([drafter.bind(target, draft) for drafter in self.drafters])

    def attach(self, target: ModelSession) -> Self:
        return self._with([drafter.attach(target) for drafter in self.drafters])

    def greedy(self) -> Self:
        return self._with([drafter.greedy() for drafter in self.drafters])

    def deferred(self) -> Self:
        return self._with([drafter.deferred() for drafter in self.drafters])

    def start(self, contexts: Sequence[Sequence[int]], warp: Warp, random: RandomSource, limit: int) -> Self:
        run = self._with([drafter.start(contexts, warp, random, limit) for drafter in self.drafters])
        run._sampled = not warp.greedy and not self.deterministic
        run._asked = []
        return run

    def propose(self, contexts: Sequence[Sequence[int]], counts: Sequence[int]) -> Draft:
        open_rows = {b for b, k in enumerate(counts) if k > 0}
        shares: list[_Share] = []
        for drafter in self.drafters:
            if not open_rows:
                break
            draft = drafter.propose(contexts, [k if b in open_rows else 0 for b, k in enumerate(counts)])
            served = frozenset(b for b in open_rows if self._serves(draft, b, counts[b]))
            shares.append(_Share(drafter, draft, served))
            open_rows -= served
        self._asked = shares = self._second_best(shares, open_rows)
        return merge(shares, len(contexts), self._sampled)

    def _serves(self, draft: Draft, b: int, asked: int) -> bool:
        least = 1 if draft.probs is not None else min(self.enough, asked)
        return draft.counts[b] >= least

    @staticmethod
    def _second_best(shares: Sequence[_Share], rows: set[int]) -> list[_Share]:
        """Rows to which nobody offered enough take the longest offer there was, the earlier drafter's on a tie."""
        chosen: dict[int, int] = {}
        for b in rows:
            chosen[b] = max(range(len(shares)), key=lambda i: (shares[i].draft.counts[b], -i))
        return [
            _Share(share.drafter, share.draft, share.rows | {b for b, at in chosen.items() if at == i})
            for i, share in enumerate(shares)
        ]

    def keep(self, accepted: Sequence[int]) -> None:
        """Each drafter that proposed hears what became of *its* proposal: nothing, where another one's was used."""
        for share in self._asked:
            if any(share.draft.counts):
                share.drafter.keep([n if b in share.rows else 0 for b, n in enumerate(accepted)])
        self._asked = []

    def learn(self, contexts: Sequence[Sequence[int]], draft: Draft, logits: Tensor) -> None:
        for drafter in self.drafters:
            if drafter.learns:
                drafter.learn(contexts, draft, logits)

    def finish(self, contexts: Sequence[Sequence[int]], ended: Sequence[int]) -> None:
        for drafter in self.drafters:
            drafter.finish(contexts, ended)

    def select(self, rows: Sequence[int]) -> None:
        for drafter in self.drafters:
            drafter.select(rows)
