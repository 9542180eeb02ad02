"""A drafter under watch: what a law cannot show, or would show only as a riddle, is said in words.

Around the drafter of a run: texts given to it must come back as they were (the loop goes on with these very lists), and
a proposal must have the shape that `types.Draft` describes, with laws that sum to one and tokens that can be drawn
from them. Knows nothing of what is proposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from decoder.types import Draft, Drafter, RandomSource, Warp

_SUM = 1e-3  # laws may be of half precision


class WatchedDrafter(Drafter):
    """Asks `inner` and objects with an AssertionError."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.name, self.deterministic, self.learns = inner.name, inner.deterministic, inner.learns

    @contextmanager
    def _unchanged(self, contexts: Sequence[Sequence[int]], method: str) -> Iterator[None]:
        before = [list(context) for context in contexts]
        yield
        for row, (was, context) in enumerate(zip(before, contexts, strict=True)):
            assert was == list(context), (
                f"{self.name}: {method} changed contexts[{row}] from {was} to {list(context)}; "
                "the text belongs to the loop, take a copy"
            )

    def chains(self) -> WatchedDrafter:
        return WatchedDrafter(self._inner.chains())

    def start(self, contexts: Sequence[Sequence[int]], warp: Warp, random: RandomSource, limit: int) -> WatchedDrafter:
        with self._unchanged(contexts, "start"):
            return WatchedDrafter(self._inner.start(contexts, warp, random, limit))

    def propose(self, contexts: Sequence[Sequence[int]], counts: Sequence[int]) -> Draft:
        with self._unchanged(contexts, "propose"):
            draft = self._inner.propose(contexts, list(counts))
        self._check_shape(draft, len(contexts))
        for row, (got, asked) in enumerate(zip(draft.counts, counts, strict=True)):
            assert 0 <= got <= asked, (
                f"{self.name}: row {row} proposes {got} tokens where at most {asked} were asked for"
            )
        if draft.probs is not None:
            self._check_law(draft, draft.probs)
        if draft.tree is not None:
            sizes = [len(parents) for parents in draft.tree.parents]
            assert sizes == draft.counts, f"{self.name}: the trees have {sizes} nodes where counts are {draft.counts}"
        return draft

    def _check_shape(self, draft: Draft, rows: int) -> None:
        shape = tuple(draft.tokens.shape)
        assert len(shape) == 2 and shape[0] == rows == len(draft.counts) and max(draft.counts, default=0) <= shape[1], (
            f"{self.name}: tokens must be [B, K] with B = {rows} rows and counts must say how many of each row are "
            f"real; these are tokens of shape {shape} and counts {draft.counts}"
        )
        assert draft.tokens.dtype == torch.long, f"{self.name}: tokens are {draft.tokens.dtype}, not torch.long"

    def _check_law(self, draft: Draft, probs: Tensor) -> None:
        width = draft.tokens.shape[1]
        assert probs.dim() == 3 and probs.shape[:2] == draft.tokens.shape, (
            f"{self.name}: probs must be [B, K, V] beside tokens {tuple(draft.tokens.shape)}, not {tuple(probs.shape)}"
        )
        real = torch.arange(width) < torch.tensor(draft.counts)[:, None]  # [B, K]
        sums = probs.double().sum(-1).cpu()[real]
        assert bool(((sums - 1.0).abs() < _SUM).all()), (
            f"{self.name}: probs must be probabilities over the vocabulary; they sum to {sums.tolist()[:4]}"
        )
        drawn = probs.gather(-1, draft.tokens.to(probs.device).unsqueeze(-1)).squeeze(-1).cpu()[real]
        assert bool((drawn > 0).all()), f"{self.name}: a token was proposed to which probs gives no chance"

    def keep(self, accepted: Sequence[int]) -> None:
        self._inner.keep(accepted)

    def keep_paths(self, paths: Sequence[Sequence[int]]) -> None:
        self._inner.keep_paths(paths)

    def learn(self, contexts: Sequence[Sequence[int]], draft: Draft, logits: Tensor) -> None:
        with self._unchanged(contexts, "learn"):
            self._inner.learn(contexts, draft, logits)

    def finish(self, contexts: Sequence[Sequence[int]], ended: Sequence[int]) -> None:
        with self._unchanged(contexts, "finish"):
            self._inner.finish(contexts, ended)

    def select(self, rows: Sequence[int]) -> None:
        self._inner.select(rows)
