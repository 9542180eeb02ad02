"""Token Recycling: reuse what the target said after a token the last time it read that token.

Every forward of the target yields its likeliest next token after each token it read, drafted and rejected ones
included. They fill an adjacency table token -> token, and the draft is the chain

    x_1 = M[last committed],  x_{i+1} = M[x_i]

(Luo et al. 2024, arXiv 2408.08696; there the table holds the top k and the draft is a tree: a chain reads the
first column only, so only that is kept). The paper keeps the table from one text to the next; here `memory=True`
does.

Costs one argmax over the logits a round, and at most one entry a vocabulary item.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from typing_extensions import Self

from decoder.checks import switch
from decoder.drafters.lookup import LookupDrafter
from decoder.drafters.patience import strength
from decoder.types import Draft, RandomSource, Warp


class SharedTable:
    """The table that runs of one recipe leave to the next."""

    def __init__(self) -> None:
        self.follow: Mapping[int, int] = {}  # replaced, never changed: a reader keeps the one it started with
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedTable:
        twin = SharedTable()
        twin.follow = dict(self.follow)
        return twin

    def merge(self, tables: Sequence[Mapping[int, int]]) -> None:
        with self._lock:
            merged = dict(self.follow)
            for table in tables:
                merged.update(table)
            self.follow = merged


class AdjacencyTable:
    """One row's table, over what earlier runs left."""

    def __init__(self, earlier: Mapping[int, int]) -> None:
        self._earlier = earlier
        self.follow: dict[int, int] = {}

    def extend(self, context: Sequence[int]) -> None:
        """Nothing: the table learns from logits."""

    def continuation(self, context: Sequence[int], k: int) -> tuple[list[int], int]:
        path: list[int] = []
        token: int | None = context[-1]
        while len(path) < k:
            token = self.follow.get(token, self._earlier.get(token)) if token is not None else None
            if token is None:
                break
            path.append(token)
        return path, strength(1)


class RecycleDrafter(LookupDrafter):
    """Chains of the target's own earlier first choices. Deterministic, needs no model.

    memory: True keeps the table for later calls of this recipe. A seed then no longer fixes a sampled text: what was
        learnt decides where drafts are tried (the output distribution stays).
    max_k, min_gain, min_chance: see `LookupDrafter`.
    """

    name = "recycle"
    learns = True
    _tables: list[AdjacencyTable]  # type: ignore[assignment]

    def __init__(
        self, *, memory: bool = False, max_k: int | None = None, min_gain: float = 0.25, min_chance: float = 0.1
    ) -> None:
        super().__init__(max_k=max_k, min_gain=min_gain, min_chance=min_chance)
        self._shared = SharedTable() if switch("memory", memory) else None
        self._ended: list[Mapping[int, int]] = []
        self._pending: list[tuple[list[int], Draft, Tensor]] = []

    def open(self, context: Sequence[int]) -> AdjacencyTable:
        return AdjacencyTable({} if self._shared is None else self._shared.follow)

    def start(self, contexts: Sequence[Sequence[int]], warp: Warp, random: RandomSource, limit: int) -> Self:
        run = super().start(contexts, warp, random, limit)
        run._ended, run._pending = [], []
        return run

    def learn(self, contexts: Sequence[Sequence[int]], draft: Draft, logits: Tensor) -> None:
        read = [context[-1] for context in contexts]
        self._pending.append((read, draft, logits.argmax(-1)))  # [B, K+1]

    def _absorb(self) -> None:
        """Enter what was learnt. Reading it only now keeps the device busy: by now the round is over."""
        for last, draft, choices in self._pending:
            drafted = draft.tokens.tolist()
            for b, said in enumerate(choices.tolist()):
                read = [last[b], *drafted[b][: draft.counts[b]]]
                self._tables[b].follow.update(zip(read, said, strict=False))
        self._pending.clear()

    def propose(self, contexts: Sequence[Sequence[int]], counts: Sequence[int]) -> Draft:
        self._absorb()
        return super().propose(contexts, counts)

    def select(self, rows: Sequence[int]) -> None:
        self._absorb()
        super().select(rows)

    def finish(self, contexts: Sequence[Sequence[int]], ended: Sequence[int]) -> None:
        """Leave the tables to later runs, once the whole run is over."""
        self._absorb()
        if self._shared is None:
            return
        self._ended += [self._tables[b].follow for b in ended]
        if len(ended) == len(contexts):
            self._shared.merge(self._ended)
