"""Prompt lookup: propose what followed earlier where the text ended as it ends now.

The longest suffix of max_n ... min_n tokens that occurred before is looked up, longest first; of the tokens that
followed it the most frequent one or the most recent one is taken, and the text after its last occurrence is copied
(Saxena 2023, prompt lookup decoding; in transformers as `prompt_lookup_num_tokens`, which takes the *first*
occurrence). How much of the copy is proposed depends on how far back the two places agree, and on how well such
copies did so far in this text (`patience`).

The index is incremental: each committed token adds one entry per n, and nothing is scanned again. An n-gram is entered
when the token after it is known, so the suffix at the very end of the text never finds itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoder.checks import at_least
from decoder.drafters.lookup import LookupDrafter
from decoder.drafters.patience import strength

CHOICES = ("frequent", "recent")
_REACH = 8  # tokens of agreement beyond which a match is no better
Gram = tuple[int, ...]


@dataclass
class _Entry:
    """Of one n-gram: the index of the token chosen to follow it, how often that token did, and any token did."""

    follow: int = 0
    times: int = 0
    total: int = 0


class NgramIndex:
    """Where the continuation of each n-gram of one growing text stands."""

    def __init__(self, min_n: int, max_n: int, choose: str) -> None:
        self._min_n, self._max_n = min_n, max_n
        self._entries: dict[Gram, _Entry] = {}
        self._frequent = choose == "frequent"
        self._times: dict[Gram, int] = {}  # n-gram and follower -> occurrences, for followers not chosen
        self._seen = 0

    def extend(self, context: Sequence[int]) -> None:
        """Enter every n-gram that ends before the last token; `context` is the whole text so far."""
        for end in range(self._seen, len(context)):
            for n in range(self._min_n, min(self._max_n, end) + 1):
                gram = tuple(context[end - n : end])
                entry = self._entries.get(gram)
                if entry is None:
                    self._entries[gram] = _Entry(end, 1, 1)
                else:
                    self._again(entry, gram, context, end)
        self._seen = len(context)

    def _again(self, entry: _Entry, gram: Gram, context: Sequence[int], end: int) -> None:
        """One more occurrence. The most frequent follower is chosen, the newer on a tie; or just the newest."""
        entry.total += 1
        same = context[entry.follow] == context[end]
        if not self._frequent:
            entry.times = entry.times + 1 if same else 1
            entry.follow = end
            return
        if same:
            entry.times += 1
            entry.follow = end
            return
        pair = (*gram, context[end])
        times = self._times[pair] = self._times.get(pair, 0) + 1
        if times >= entry.times:
            self._times[(*gram, context[entry.follow])] = entry.times
            entry.follow, entry.times = end, times

    def match(self, context: Sequence[int]) -> tuple[int, _Entry] | None:
        """(n, entry) of the longest suffix of the text that occurred before."""
        for n in range(min(self._max_n, len(context) - 1), self._min_n - 1, -1):
            entry = self._entries.get(tuple(context[-n:]))
            if entry is not None:
                return n, entry
        return None

    def continuation(self, context: Sequence[int], k: int) -> tuple[list[int], int]:
        """(up to k tokens, strength of the match). A match near the end repeats what lies between it and the end."""
        found = self.match(context)
        if found is None:
            return [], 0
        n, entry = found
        if n == self._max_n:
            n = self._agreement(context, entry.follow, n)
        period = len(context) - entry.follow
        tokens = [context[entry.follow + i % period] for i in range(k)]
        return tokens, strength(n, entry.times / entry.total if self._frequent else 1.0)

    @staticmethod
    def _agreement(context: Sequence[int], follow: int, n: int) -> int:
        """How far back the text before `follow` agrees with its end, from the n tokens on that do."""
        while n < min(_REACH, follow) and context[follow - 1 - n] == context[-1 - n]:
            n += 1
        return n


class NgramDrafter(LookupDrafter):
    """Prompt lookup. Deterministic, needs no model.

    min_n, max_n: lengths of the suffix looked for, 1 <= min_n <= max_n.
    choose: of several continuations the most "frequent" or the most "recent".
    max_k, min_gain, min_chance: see `LookupDrafter`.
    """

    name = "ngram"

    def __init__(
        self,
        min_n: int = 1,
        max_n: int = 4,
        *,
        choose: str = "frequent",
        max_k: int | None = None,
        min_gain: float = 0.25,
        min_chance: float = 0.1,
    ) -> None:
        super().__init__(max_k=max_k, min_gain=min_gain, min_chance=min_chance)
        self.min_n, self.max_n = at_least("min_n", min_n, 1), at_least("max_n", max_n, 1)
        if min_n > max_n:
            raise ValueError(f"min_n={min_n}, max_n={max_n} must satisfy 1 <= min_n <= max_n.")
        if choose not in CHOICES:
            raise ValueError(f"choose={choose!r} must be one of {', '.join(map(repr, CHOICES))}.")
        self.choose = choose

    def open(self, context: Sequence[int]) -> NgramIndex:
        return NgramIndex(self.min_n, self.max_n, self.choose)
