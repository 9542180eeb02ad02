"""What a suffix drafter remembers of earlier texts: bounded, shared by runs, saved as plain arrays.

Texts go into a young automaton; when it holds half of `max_tokens` it becomes the old one and the old one is
forgotten, so that forgetting costs nothing and the newest half is always there. One lock guards all of it: runs in
several threads read and add.

Does not know tokenizers: a file belongs to the tokenizer its texts were encoded with.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np

from decoder.checks import at_least
from decoder.drafters.automaton import Cursor, SuffixAutomaton
from decoder.files import whole_file

_FORMAT = 1
_LOOKBACK = 64  # tokens a new cursor is led through: longer matches are found while the text grows


class SuffixMemory:
    """Earlier texts as token ids.

    max_tokens: bound on what is held.
    """

    def __init__(self, max_tokens: int = 200_000) -> None:
        self.max_tokens = at_least("max_tokens", max_tokens, 2)
        self.lock = threading.RLock()
        self._halves: list[tuple[SuffixAutomaton, list[list[int]]]] = [(SuffixAutomaton(), [])]  # young first

    def __getstate__(self) -> dict[str, Any]:
        """For copies: everything but the lock."""
        with self.lock:
            return {"max_tokens": self.max_tokens, "texts": self.texts()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["max_tokens"])  # type: ignore[misc]
        self.add(state["texts"])

    def __len__(self) -> int:
        """Tokens held, at most `max_tokens`."""
        with self.lock:
            return sum(len(text) for _, texts in self._halves for text in texts)

    def texts(self) -> list[list[int]]:
        """What is held, oldest first."""
        with self.lock:
            return [list(text) for _, texts in reversed(self._halves) for text in texts]

    def automata(self) -> list[SuffixAutomaton]:
        """Young, then old; walk them only while holding `lock`."""
        return [automaton for automaton, _ in self._halves]

    def add(self, texts: Sequence[Sequence[int]]) -> None:
        """Remember texts; of one longer than half of `max_tokens`, its end."""
        half = self.max_tokens // 2
        with self.lock:
            for text in texts:
                kept = [int(token) for token in text[-half:]]
                automaton, held = self._halves[0]
                if sum(map(len, held)) + len(kept) > half:
                    automaton, held = SuffixAutomaton(), []
                    self._halves = [(automaton, held), *self._halves[:1]]
                automaton.restart()
                for token in kept:
                    automaton.extend(token)
                held.append(kept)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the texts as a compressed .npz of two integer arrays."""
        texts = self.texts()
        tokens = np.asarray([token for text in texts for token in text], dtype=np.int64)
        lengths = np.asarray([len(text) for text in texts], dtype=np.int64)
        with whole_file(path) as part, part.open("wb") as file:
            np.savez_compressed(
                file, format=np.int64(_FORMAT), max_tokens=np.int64(self.max_tokens), tokens=tokens, lengths=lengths
            )

    @classmethod
    def load(cls, path: str | PathLike[str], max_tokens: int | None = None) -> SuffixMemory:
        """Read what `save` wrote. No code in the file can run: only integer arrays are read.

        Raises:
            ValueError: the file is not one of ours, or is damaged.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                version, bound = int(file["format"]), int(file["max_tokens"])
                tokens, lengths = file["tokens"], file["lengths"]
        except (KeyError, ValueError, EOFError, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise ValueError(f"path={str(path)!r} is not a saved SuffixMemory ({error}); use save().") from error
        whole = all(array.ndim == 1 and array.dtype.kind == "i" for array in (tokens, lengths))
        if version != _FORMAT or not whole or (lengths < 0).any() or lengths.sum() != len(tokens) or (tokens < 0).any():
            raise ValueError(f"path={str(path)!r} is damaged or of another format; write it again with save().")
        memory = cls(bound if max_tokens is None else max_tokens)
        ends = np.cumsum(lengths)
        memory.add([tokens[end - length : end].tolist() for end, length in zip(ends, lengths, strict=True)])
        return memory


class MemoryView:
    """One row's place in a memory, which grows and forgets while the row is read."""

    def __init__(self, memory: SuffixMemory) -> None:
        self._memory = memory
        self._cursors: list[Cursor] = []
        self._seen = 0

    def extend(self, context: Sequence[int]) -> None:
        """Follow the row's new tokens; call it while holding the memory's lock."""
        known = {id(cursor.automaton): cursor for cursor in self._cursors}
        self._cursors = []
        for automaton in self._memory.automata():
            cursor = known.get(id(automaton))
            begin = max(0, len(context) - _LOOKBACK) if cursor is None else self._seen
            cursor = cursor or Cursor(automaton)
            for token in context[begin:]:
                cursor.advance(token)
            self._cursors.append(cursor)
        self._seen = len(context)

    def longest(self) -> Cursor | None:
        """The longest match, the younger text on a tie."""
        return max(self._cursors, key=lambda cursor: cursor.matched, default=None)
