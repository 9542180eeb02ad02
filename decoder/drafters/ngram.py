"""L3: prompt lookup: propose what followed earlier where the text ended as it ends now.

The longest suffix of max_n ... min_n tokens that occurred before is looked up, longest first; of the tokens that
followed it the most recent one or the most frequent one is taken, and the text after its last occurrence is copied
(Saxena 2023, prompt lookup decoding; in transformers as `prompt_lookup_num_tokens`, which takes the *first*
occurrence).

The index is incremental: each committed token adds one entry per n, and nothing is scanned again. An n-gram is entered
when the token after it is known, so the suffix at the very end of the text never finds itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from decoder.drafters.lookup import LookupDrafter, check_count

CHOICES = ("recent", "frequent")
Gram = tuple[int, ...]


class NgramIndex:
    """Where the continuation of each n-gram of one growing text stands."""

    def __init__(self, min_n: int, max_n: int, choose: str) -> None:
        self._min_n, self._max_n = min_n, max_n
        self._follow: dict[Gram, int] = {}  # n-gram -> index of the token chosen to follow it
        self._frequent = choose == "frequent"
        self._times: dict[Gram, int] = {}  # n-gram and follower -> occurrences
        self._best: dict[Gram, int] = {}  # n-gram -> occurrences of its chosen follower
        self._seen = 0

    def extend(self, context: Sequence[int]) -> None:
        """Enter every n-gram that ends before the last token; `context` is the whole text so far."""
        for end in range(self._seen, len(context)):
            for n in range(self._min_n, min(self._max_n, end) + 1):
                gram = tuple(context[end - n : end])
                if not self._frequent or self._wins(gram, context[end]):
                    self._follow[gram] = end
        self._seen = len(context)

    def _wins(self, gram: Gram, token: int) -> bool:
        """Count one more occurrence; True if no other follower is more frequent (on a tie the newer wins)."""
        pair = (*gram, token)
        times = self._times[pair] = self._times.get(pair, 0) + 1
        if times < self._best.get(gram, 0):
            return False
        self._best[gram] = times
        return True

    def continuation(self, context: Sequence[int], k: int) -> tuple[list[int], int]:
        """(up to k tokens, length of the match). A match near the end repeats what lies between it and the end."""
        for n in range(min(self._max_n, len(context) - 1), self._min_n - 1, -1):
            follow = self._follow.get(tuple(context[-n:]))
            if follow is not None:
                period = len(context) - follow
                return [context[follow + i % period] for i in range(k)], n
        return [], 0


class NgramDrafter(LookupDrafter):
    """Prompt lookup. Deterministic, needs no model.

    min_n, max_n: lengths of the suffix looked for, 1 <= min_n <= max_n.
    choose: of several continuations the most "recent" or the most "frequent".
    max_k, min_gain: see `LookupDrafter`.
    """

    name = "ngram"

    def __init__(
        self,
        min_n: int = 1,
        max_n: int = 3,
        *,
        choose: str = "recent",
        max_k: int | None = None,
        min_gain: float = 0.25,
    ) -> None:
        super().__init__(max_k=max_k, min_gain=min_gain)
        self.min_n, self.max_n = check_count("min_n", min_n, 1), check_count("max_n", max_n, 1)
        if min_n > max_n:
            raise ValueError(f"min_n={min_n}, max_n={max_n} must satisfy 1 <= min_n <= max_n.")
        if choose not in CHOICES:
            raise ValueError(f"choose={choose!r} must be one of {', '.join(map(repr, CHOICES))}.")
        self.choose = choose

    def open(self, context: Sequence[int]) -> NgramIndex:
        return NgramIndex(self.min_n, self.max_n, self.choose)
