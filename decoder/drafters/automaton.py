"""A suffix automaton that grows with the text and knows what most often followed each context.

Every state stands for the contexts (substrings) that end at the same places; following the suffix links from the
state of the whole text visits all its suffixes, longest first (Blumer et al. 1985, "The smallest automaton
recognizing the subwords of a text"). The link of the whole text is therefore its longest suffix that also occurs
earlier: the match a drafter looks for is there without any search.

Each state counts how often each token followed it. A new token is credited to at most `_CREDIT` suffixes in which
it has followed before (all of them, except in very repetitive text, where the longest come first). Growing by one
token costs amortised O(1) steps, `visits` counts them.
"""

from __future__ import annotations

_CREDIT = 16
_TOKEN_BITS = 32  # (state, token) packed into one integer key


class SuffixAutomaton:
    """Over one text, or over several: `restart` begins the next.

    length[s]: longest context of state s.   link[s]: the state of its longest suffix that occurs elsewhere too.
    next[s]: token -> state.   best[s]: the token that most often followed, `best_count[s]` of `total[s]` times, or -1.
    """

    def __init__(self) -> None:
        self.length: list[int] = []
        self.link: list[int] = []
        self.next: list[dict[int, int]] = []
        self.best: list[int] = []
        self.best_count: list[int] = []
        self.total: list[int] = []
        self._repeats: dict[int, int] = {}  # (state, token) -> times it followed, where that is more than once
        self.visits = 0
        self.last = self._state(0, -1)

    def _state(self, length: int, link: int) -> int:
        self.length.append(length)
        self.link.append(link)
        self.next.append({})
        self.best.append(-1)
        self.best_count.append(0)
        self.total.append(0)
        return len(self.length) - 1

    def restart(self) -> None:
        """The next token begins another text."""
        self.last = 0

    def extend(self, token: int) -> None:
        """Append a token to the current text."""
        known = self.next[self.last].get(token)
        if known is not None:  # only after `restart`: the context exists already
            before = self.last
            self._credit(before, token)
            self.last = known if self.length[known] == self.length[before] + 1 else self._split(before, token)
            return
        new = self._state(self.length[self.last] + 1, 0)
        state = self.last
        while state >= 0 and token not in self.next[state]:
            self.visits += 1
            self.next[state][token] = new
            self._count(state, token, 1)
            state = self.link[state]
        if state >= 0:
            self._credit(state, token)
            old = self.next[state][token]
            self.link[new] = old if self.length[old] == self.length[state] + 1 else self._split(state, token)
        self.last = new

    def _count(self, state: int, token: int, times: int) -> None:
        """`token` has now followed `state` this many times; on a tie the newer token is the best."""
        self.total[state] += 1
        if times >= self.best_count[state]:
            self.best[state], self.best_count[state] = token, times

    def _credit(self, state: int, token: int) -> None:
        """One more occurrence of `token` after this context and after its suffixes."""
        for _ in range(_CREDIT):
            if state < 0:
                return
            self.visits += 1
            key = state << _TOKEN_BITS | token
            times = self._repeats[key] = self._repeats.get(key, 1) + 1
            self._count(state, token, times)
            state = self.link[state]

    def _split(self, state: int, token: int) -> int:
        """Give the contexts that end here and reach no further than `state` + `token` a state of their own."""
        old = self.next[state][token]
        twin = self._state(self.length[state] + 1, self.link[old])
        self.next[twin] = dict(self.next[old])
        self.best[twin], self.best_count[twin], self.total[twin] = self.best[old], self.best_count[old], self.total[old]
        for follower in self.next[old]:
            self.visits += 1
            times = self._repeats.get(old << _TOKEN_BITS | follower)
            if times is not None:
                self._repeats[twin << _TOKEN_BITS | follower] = times
        self.link[old] = twin
        while state >= 0 and self.next[state].get(token) == old:
            self.visits += 1
            self.next[state][token] = twin
            state = self.link[state]
        return twin

    def share(self, state: int) -> float:
        """Of the occurrences of this context that the text goes on after: those followed by the most frequent token."""
        return self.best_count[state] / self.total[state] if self.total[state] else 1.0

    def continuation(self, state: int, k: int, min_prob: float) -> list[int]:
        """Up to k tokens by frequency, while their product of relative frequencies stays at least `min_prob`.

        At the end of the text the walk goes on from the longest earlier occurrence, so that a loop repeats itself.
        """
        path: list[int] = []
        chance = 1.0
        while len(path) < k:
            token = self.best[state]
            if token < 0:
                state = self.link[state]
                if state <= 0:
                    break
                continue
            chance *= self.best_count[state] / self.total[state]
            if chance < min_prob:
                break
            path.append(token)
            state = self.next[state][token]
        return path


class Cursor:
    """The longest suffix of a text that occurs in an automaton built from other texts; it may grow meanwhile."""

    def __init__(self, automaton: SuffixAutomaton) -> None:
        self.automaton = automaton
        self.state = 0
        self.matched = 0

    def advance(self, token: int) -> None:
        """The text has grown by a token. Amortised O(1)."""
        automaton = self.automaton
        while self.state and self.matched <= automaton.length[automaton.link[self.state]]:
            self.state = automaton.link[self.state]  # the state was split since
        while self.state and token not in automaton.next[self.state]:
            self.state = automaton.link[self.state]
            self.matched = automaton.length[self.state]
        found = automaton.next[self.state].get(token)
        if found is not None:
            self.state = found
            self.matched += 1
