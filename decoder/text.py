"""L2: between token ids and text: incremental decoding, stop strings, comparing tokenizers.

The loop never sees this; the API hands it stop rules as plain functions of ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what decoders print for an unfinished UTF-8 sequence
_WINDOW = 8  # tokens of left context: enough for any decoder's rules about leading spaces


class Detokenizer:
    """Turns a growing sequence of ids into text pieces that never hold half a character.

    `push` returns the new text as soon as it is final; `flush` returns what is left.
    """

    def __init__(self, tokenizer: Any, context: Sequence[int] = (), *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids = list(context[-_WINDOW:])
        self._shown = self._decode(self._ids)
        self._pending = 0  # ids at the end whose text is not out yet

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=self._skip, clean_up_tokenization_spaces=False
        )
        return text

    def push(self, token: int) -> str:
        """The text that this token completes, "" while a character is unfinished."""
        self._ids.append(token)
        self._pending += 1
        text = self._decode(self._ids)
        if text.endswith(_REPLACEMENT) and self._pending < 8:  # a UTF-8 character has at most 4 bytes
            return ""
        return self._release(text)

    def _release(self, text: str) -> str:
        new = text[len(self._shown) :]
        if len(self._ids) > 2 * _WINDOW + self._pending:
            self._ids = self._ids[-_WINDOW:]
            text = self._decode(self._ids)
        self._shown = text
        self._pending = 0
        return new

    def flush(self) -> str:
        """Everything held back."""
        return self._release(self._decode(self._ids))


class StopStrings:
    """A stop rule: True once a stop string is complete in the text.

    Part of it may lie in the prompt, as in transformers.

    One object per row; called once per committed token.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str], prompt: Sequence[int]) -> None:
        self._strings = tuple(strings)
        self._longest = max(map(len, self._strings))
        self._detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=False)
        self._tail = tokenizer.decode(
            list(prompt[-4 * self._longest - _WINDOW :]), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )[-self._longest :]

    def __call__(self, tokens: Sequence[int], prompt_length: int) -> bool:
        new = self._detokenizer.push(tokens[-1])
        if not new:
            return False
        room = self._longest - 1
        text = (self._tail[-room:] if room else "") + new
        self._tail = text[-self._longest :]
        return any(string in text for string in self._strings)


def cut_at_stop(text: str, strings: Sequence[str]) -> str:
    """The text up to and including the first stop string that ends it; the last token may reach beyond."""
    ends = [text.find(string) + len(string) for string in strings if string in text]
    return text[: min(ends)] if ends else text


def valid_ids(tokenizer: Any) -> tuple[int, list[int]]:
    """(largest id + 1, ids below it that the tokenizer does not have)."""
    ids = set(tokenizer.get_vocab().values())
    size = max(ids) + 1
    return size, [] if len(ids) == size else sorted(set(range(size)) - ids)


def check_same_tokenizer(target: Any, draft: Any) -> None:
    """Every id both tokenizers have must mean the same token; one of them may have extra ids.

    Raises:
        ValueError: saying which ids differ.
    """
    ours = {index: token for token, index in target.get_vocab().items()}
    theirs = {index: token for token, index in draft.get_vocab().items()}
    shared = ours.keys() & theirs.keys()
    different = sorted(index for index in shared if ours[index] != theirs[index])
    if different or len(shared) < 0.5 * max(len(ours), len(theirs)):
        examples = ", ".join(f"{i}: {ours[i]!r} / {theirs[i]!r}" for i in different[:3])
        raise ValueError(
            f"draft and target have different tokenizers: {len(different)} of {len(shared)} shared ids mean another "
            f"token{f' ({examples})' if examples else ''}; sizes {len(ours)} and {len(theirs)}. "
            "Use a draft of the same family, or a drafter that needs no model (drafter='ngram')."
        )


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Plain text of ids, special tokens left out."""
    text: str = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def new_text(tokenizer: Any, prompt: Sequence[int], new: Sequence[int]) -> tuple[str, str]:
    """(text of the new tokens as they read after the prompt, text of both)."""
    before, full = decode(tokenizer, prompt), decode(tokenizer, [*prompt, *new])
    return (full[len(before) :] if full.startswith(before) else decode(tokenizer, new)), full


def token_pieces(tokenizer: Any, prompt: Sequence[int], new: Sequence[int]) -> tuple[str, ...]:
    """The text each new token adds."""
    stream = Detokenizer(tokenizer, prompt)
    pieces = [stream.push(token) for token in new]
    if pieces:
        pieces[-1] += stream.flush()
    return tuple(pieces)
