"""L3: prompt lookup: propose what followed the last time the context ended like this.

The longest suffix of at most `max_n` tokens that occurred before is looked up, longest first, and the tokens after
its most recent earlier occurrence are proposed (Saxena 2023, prompt lookup decoding). The index is
incremental: each committed token adds `max_n` dictionary entries and nothing is scanned again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decoder.types import Draft, Drafter, RandomSource, Warp


class NgramIndex:
    """Where each n-gram of one growing sequence last ended."""

    def __init__(self, min_n: int, max_n: int) -> None:
        self._min_n, self._max_n = min_n, max_n
        self._last: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token that followed it
        self._seen = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Index every n-gram that ends before the last token; `tokens` is the whole sequence so far."""
        for end in range(self._seen, len(tokens)):
            for n in range(self._min_n, min(self._max_n, end) + 1):
                self._last[tuple(tokens[end - n : end])] = end
        self._seen = len(tokens)

    def continuation(self, tokens: Sequence[int], k: int) -> list[int]:
        """Up to k tokens that followed the longest known suffix; a match near the end repeats itself."""
        for n in range(min(self._max_n, len(tokens) - 1), self._min_n - 1, -1):
            follow = self._last.get(tuple(tokens[-n:]))
            if follow is not None:
                period = len(tokens) - follow
                return [tokens[follow + i % period] for i in range(k)]
        return []


class NgramDrafter(Drafter):
    """Prompt lookup. Deterministic, needs no model.

    min_n, max_n: lengths of the suffix looked for, 1 <= min_n <= max_n.
    """

    name = "ngram"

    def __init__(self, min_n: int = 1, max_n: int = 3) -> None:
        for name, value in (("min_n", min_n), ("max_n", max_n)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}={value!r} must be an integer.")
        if not 1 <= min_n <= max_n:
            raise ValueError(f"min_n={min_n}, max_n={max_n} must satisfy 1 <= min_n <= max_n.")
        self.min_n, self.max_n = min_n, max_n
        self._rows: list[NgramIndex] = []

    def start(self, contexts: Sequence[Sequence[int]], warp: Warp, random: RandomSource, limit: int) -> NgramDrafter:
        run = NgramDrafter(self.min_n, self.max_n)
        run._rows = [NgramIndex(self.min_n, self.max_n) for _ in contexts]
        return run

    def propose(self, contexts: Sequence[Sequence[int]], counts: Sequence[int]) -> Draft:
        found = []
        for index, context, k in zip(self._rows, contexts, counts, strict=True):
            index.extend(context)
            found.append(index.continuation(context, k) if k else [])
        lengths = [len(tokens) for tokens in found]
        width = max(lengths)
        padded = [tokens + [0] * (width - len(tokens)) for tokens in found]
        return Draft(torch.tensor(padded, dtype=torch.long).reshape(len(found), width), lengths)

    def select(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]
