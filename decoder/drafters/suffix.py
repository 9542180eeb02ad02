"""The longest suffix of the text that occurred before, continued by what followed it most often.

A suffix automaton over prompt and output finds the match in amortised O(1) a token, however long the text. With a
memory, earlier generations of the same decoder are searched too; the longest match wins, the row's own text on a
tie. The longer the match, the longer the draft: at most growth * match tokens, and only while the product of the
relative frequencies along the path stays above min_prob (SuffixDecoding, Oliaro et al. 2024, arXiv 2411.04975, in
its chain form).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from typing_extensions import Self

from decoder.checks import at_least, in_range
from decoder.drafters.automaton import SuffixAutomaton
from decoder.drafters.lookup import LookupDrafter
from decoder.drafters.memory import MemoryView, SuffixMemory
from decoder.drafters.patience import strength
from decoder.types import RandomSource, Warp

_LEAD = 16  # prompt tokens remembered before an output, so that its first tokens can be found again


class SuffixTable:
    """One row's own text, and its place in the memory if there is one."""

    def __init__(self, drafter: SuffixDrafter) -> None:
        self._options = drafter
        self._own = SuffixAutomaton()
        self._seen = 0
        self._view = None if drafter.memory is None else MemoryView(drafter.memory)

    def extend(self, context: Sequence[int]) -> None:
        for token in context[self._seen :]:
            self._own.extend(token)
        self._seen = len(context)

    def continuation(self, context: Sequence[int], k: int) -> tuple[list[int], int]:
        """(tokens, strength of the match)."""
        memory = self._options.memory
        with nullcontext() if memory is None else memory.lock:
            automaton = self._own
            state = max(automaton.link[automaton.last], 0)
            matched = automaton.length[state]
            if self._view is not None:
                self._view.extend(context)
                other = self._view.longest()
                if other is not None and other.matched > matched:
                    automaton, state, matched = other.automaton, other.state, other.matched
            if matched < self._options.min_match:
                return [], 0
            limit = min(k, max(1, int(self._options.growth * matched)))
            tokens = automaton.continuation(state, limit, self._options.min_prob)
            return tokens, strength(matched, automaton.share(state))


class SuffixDrafter(LookupDrafter):
    """Suffix automaton lookup. Deterministic, needs no model.

    min_match: shortest match to draft from.   growth: drafted tokens per matched token, at most.
    min_prob: least product of relative frequencies along the draft.
    memory: True remembers earlier generations of this recipe; a `SuffixMemory` may be loaded and shared. A seed
        then no longer fixes a sampled text: what is remembered decides where drafts are tried. The output distribution
        stays.
    max_k, min_gain, min_chance: see `LookupDrafter`.
    """

    name = "suffix"

    def __init__(
        self,
        *,
        min_match: int = 1,
        growth: float = 2.0,
        min_prob: float = 0.1,
        memory: bool | SuffixMemory = False,
        max_k: int | None = None,
        min_gain: float = 0.25,
        min_chance: float = 0.1,
    ) -> None:
        super().__init__(max_k=max_k, min_gain=min_gain, min_chance=min_chance)
        self.min_match = at_least("min_match", min_match, 1)
        self.growth = in_range("growth", growth, 0.0, float("inf"))
        self.min_prob = in_range("min_prob", min_prob, 0.0, 1.0)
        if not isinstance(memory, (bool, SuffixMemory)):
            raise TypeError(f"memory={memory!r} must be True, False or a SuffixMemory.")
        self.memory = memory if isinstance(memory, SuffixMemory) else SuffixMemory() if memory else None
        self._prompts: list[int] = []
        self._ended: list[list[int]] = []

    def open(self, context: Sequence[int]) -> SuffixTable:
        return SuffixTable(self)

    def start(self, contexts: Sequence[Sequence[int]], warp: Warp, random: RandomSource, limit: int) -> Self:
        run = super().start(contexts, warp, random, limit)
        run._prompts = [len(context) for context in contexts]
        run._ended = []
        return run

    def finish(self, contexts: Sequence[Sequence[int]], ended: Sequence[int]) -> None:
        """Keep the outputs; they become visible when the whole run is over, so that rows do not see each other."""
        if self.memory is None:
            return
        self._ended += [list(contexts[b][max(0, self._prompts[b] - _LEAD) :]) for b in ended]
        if len(ended) == len(contexts):
            self.memory.add(self._ended)

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        self._prompts = [self._prompts[row] for row in rows]
