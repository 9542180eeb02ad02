"""L2: between token ids and text: incremental decoding, stop strings, comparing tokenizers.

The loop never sees this; the API hands it stop rules as plain functions of ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what decoders print for an unfinished UTF-8 sequence
_WINDOW = 8  # tokens of left context: enough for any decoder's rules about leading spaces
_LONGEST_RUN = 16  # unfinished bytes held back before most of them are given up as rubbish
_CHARACTER = 3  # a UTF-8 character has at most four bytes, so at most three can be waiting for the rest


def _finished(text: str) -> int:
    """How many leading characters no later token can change.

    A decoder prints a replacement character for a sequence that is unfinished or invalid; only later tokens tell which.
    """
    solid = len(text.rstrip(_REPLACEMENT))
    return solid if len(text) - solid <= _LONGEST_RUN else len(text) - _CHARACTER


def _shared(first: str, second: str) -> int:
    """Length of the common beginning."""
    if second.startswith(first):
        return len(first)
    return next(i for i, pair in enumerate(zip_longest(first, second)) if pair[0] != pair[1])


class Detokenizer:
    """Turns a growing sequence of ids into text pieces that never hold half a character.

    `push` returns the new text as soon as it is final; `flush` returns what is left.
    """

    def __init__(self, tokenizer: Any, context: Sequence[int] = (), *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids = list(context[-_WINDOW:])
        self._shown = self._decode(self._ids)
        self.held = 0  # characters not given out yet, since a later token may change them

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=self._skip, clean_up_tokenization_spaces=False
        )
        return text

    def push(self, token: int) -> str:
        """The text that this token completes, "" while a character is unfinished."""
        self._ids.append(token)
        text = self._decode(self._ids)
        final = _finished(text)
        start = _shared(self._shown, text)  # less than all only where the context ended inside a character
        new = text[start:final]
        self.held = len(text) - final
        if new:
            self._shown = text[:final]
        if len(self._ids) > 2 * _WINDOW and (final == len(text) or len(self._ids) > 8 * _WINDOW):
            self._ids = self._ids[-_WINDOW - self.held :]
            text = self._decode(self._ids)
            self._shown = text[: len(text) - self.held]
        return new

    def flush(self) -> str:
        """Everything held back."""
        text = self._decode(self._ids)
        new = text[_shared(self._shown, text) :]
        self._shown, self.held = text, 0
        return new


class StopStrings:
    """A stop rule: True once a stop string is complete in the text.

    As in transformers' `StopStringCriteria`, part of it may lie in the prompt, and special tokens count with the text
    they stand for. One object per row; called once per committed token.

    surplus: how many characters of the text, special tokens left out, lie beyond the stop string that ended it, since
        its last token reaches further; 0 while none has ended it.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str], prompt: Sequence[int]) -> None:
        self.surplus = 0
        self._tokenizer = tokenizer
        self._strings = tuple(strings)
        self._longest = max(map(len, self._strings))
        self._detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=False)
        before = tokenizer.decode(
            list(prompt[-4 * self._longest - _WINDOW :]), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        self._tail = self._end_of(before.rstrip(_REPLACEMENT))

    def _end_of(self, text: str) -> str:
        """The part of the text so far in which a stop string may have begun."""
        return text[len(text) - min(len(text), self._longest - 1) :]

    def __call__(self, tokens: Sequence[int], prompt_length: int) -> bool:
        new = self._detokenizer.push(tokens[-1])
        if not new:
            return False
        text, old = self._tail + new, len(self._tail)
        self._tail = self._end_of(text)
        # It must end in the new text: what stands in the prompt as a whole stops nothing.
        found = [(text.find(string, max(0, old - len(string) + 1)), string) for string in self._strings]
        ends = [place + len(string) for place, string in found if place >= 0]
        if ends and not self._is_special(tokens[-1]):
            self.surplus = len(text) - min(ends) + self._detokenizer.held
        return bool(ends)

    def _is_special(self, token: int) -> bool:
        """Whether the token has text to match, but none that is shown."""
        return not decode(self._tokenizer, [token]) and bool(
            self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )


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
            "Use a draft of the same family, drafter='crosstokenizer' to draft across tokenizers, or a drafter "
            "that needs no model (drafter='ngram')."
        )


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Plain text of ids, special tokens left out."""
    text: str = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def new_text(tokenizer: Any, prompt: Sequence[int], new: Sequence[int]) -> tuple[str, str]:
    """(text of the new tokens as they read after the prompt, text of both)."""
    before, full = decode(tokenizer, prompt), decode(tokenizer, [*prompt, *new])
    return full[_shared(before, full) :], full  # a character the prompt leaves unfinished belongs to the new text


def token_pieces(tokenizer: Any, prompt: Sequence[int], new: Sequence[int]) -> tuple[str, ...]:
    """The text each new token adds."""
    stream = Detokenizer(tokenizer, prompt)
    pieces = [stream.push(token) for token in new]
    if pieces:
        pieces[-1] += stream.flush()
    return tuple(pieces)
