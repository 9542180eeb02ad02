"""A generation as an iterator of text.

Reads the same steps as everything else. A piece never holds half a character and never goes past a stop string.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from decoder.generation import Generation
from decoder.results import GenerationResult, row_rounds
from decoder.text import Detokenizer


class TextStream:
    """Iterates over text pieces; when it is exhausted, `result` is the finished result.

    As a generator it also *returns* the result (the value of `yield from`). Dropping it half-way is safe.
    `async for` runs each round in a thread of the stream's own, so that the event loop goes on meanwhile; cancelling
    the task, or `aclose()` on the iterator, ends the generation after the round under way.
    """

    def __init__(self, generation: Generation, tokenizer: object, stop_strings: tuple[str, ...]) -> None:
        self._generation = generation
        self._detokenizer = Detokenizer(tokenizer, generation.rows[0].tokens)
        self._stop_strings = stop_strings
        self._held = ""
        self._sent = ""
        self.result: GenerationResult | None = None
        self._pieces = self._run()

    def __iter__(self) -> Generator[str, None, GenerationResult]:
        return self._pieces

    def __next__(self) -> str:
        return next(self._pieces)

    def __aiter__(self) -> AsyncGenerator[str, None]:
        return _in_a_thread(self._pieces)

    def _withheld(self, text: str) -> int:
        """How many characters at the end could still become a stop string."""
        for size in range(min(len(text), max(map(len, self._stop_strings), default=1) - 1), 0, -1):
            if any(string.startswith(text[-size:]) for string in self._stop_strings):
                return size
        return 0

    def _release(self, text: str) -> str:
        """What may be shown now of everything not shown yet."""
        self._held += text
        cut = len(self._held) - self._withheld(self._held)
        ready, self._held = self._held[:cut], self._held[cut:]
        self._sent += ready
        return ready

    def _run(self) -> Generator[str, None, GenerationResult]:
        for step in self._generation.steps():
            began = time.perf_counter()
            text = "".join(self._detokenizer.push(token) for token in step.rows[0].emitted)
            last = step.rows[0].finish_reason is not None
            ready = "" if last else self._release(text)
            self._held += text if last else ""
            self._generation.text_s += time.perf_counter() - began
            if ready:
                yield ready
        self._held += self._detokenizer.flush()
        result = self._generation.results()[0]
        if not result.text.startswith(self._sent):  # a decoder that took back what it had said about broken bytes
            said = self._sent + self._held
            result = replace(result, text=said[: len(said) - self._generation.surplus(self._generation.rows[0])])
        rest = result.text[len(self._sent) :]
        self.result = result
        if rest:
            yield rest
        return result

    def close(self) -> None:
        """Stop here: the next call starts afresh, and a cache that was given is free again."""
        self._pieces.close()

    def tokens(self) -> Generator[tuple[str, str], None, GenerationResult]:
        """Instead of the pieces: the same text token by token, each with its fate, as soon as its round ends.

        A stop string's beginning is not withheld, since its tokens are committed by then; text after it is cut.
        """
        row = self._generation.rows[0]
        for step in self._generation.steps():
            (mine,) = row_rounds([step], row.number)
            pieces = [self._detokenizer.push(token) for token in mine.emitted]
            if row.finish_reason is not None:
                last = pieces[-1] + self._detokenizer.flush()
                pieces[-1] = last[: max(0, len(last) - self._generation.surplus(row))]
            yield from zip(pieces, mine.fates(), strict=True)
        self.result = self._generation.results()[0]
        return self.result


async def _in_a_thread(pieces: Generator[str, None, object]) -> AsyncGenerator[str, None]:
    """The same pieces, each made in one thread while the event loop goes on."""
    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, "decoder-stream")
    try:
        while (piece := await loop.run_in_executor(thread, next, pieces, None)) is not None:
            yield piece
    finally:  # the end, an error, or a cancelled task: then a round may be under way, and the closing comes after it
        closing = thread.submit(pieces.close)
        thread.shutdown(wait=False)
        await asyncio.wrap_future(closing)
