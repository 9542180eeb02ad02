"""What the tokens of a tokenizer spell, in bytes, and text back into tokens: the common ground of two tokenizers.

Bytes, because a token may end inside a character: a byte-level vocabulary cuts an emoji anywhere. Tokens that spell no
text (BOS, EOS, chat markers) have no bytes. Knows byte-level BPE (GPT-2's alphabet), SentencePiece's spelling of
spaces and its byte fallback, and plain vocabularies; an encoding that does not spell its text exactly (a normaliser
at work) is replaced by a longest-match one, so what comes out always says what went in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tokenizers import decoders

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece writes a space so
_REMEMBERED = 4096  # texts whose encoding is kept
_LOOK_BACK = 12  # tokens: further back than this, a boundary no longer moves


def byte_alphabet() -> dict[str, int]:
    """The character that byte-level BPE writes for each byte: itself if printable, else the next one from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def whole_characters(data: bytes) -> int:
    """How many leading bytes end at a character's end; the rest, at most three, wait for more."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:  # a continuation byte: its lead is further left
            continue
        need = 1 if byte < 0x80 else 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4
        return len(data) - back if need > back else len(data)
    return len(data)


def _continues(piece: bytes | None) -> bool:
    """Whether a token begins inside a character."""
    return piece is not None and piece[:1] != b"" and piece[0] & 0xC0 == 0x80


class Vocabulary:
    """The tokens of one tokenizer.

    pieces[i]: the bytes that id i spells, None for specials and gaps.   ids: bytes -> the lowest id that spells them.
    specials: text of a special token -> id.   start: ids a text begins with (BOS, where the tokenizer puts one).
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._encoded = lru_cache(_REMEMBERED)(self._encode_plain)  # a round encodes the same words again and again
        self.specials = _specials(tokenizer)
        self.bos, self.eos = tokenizer.bos_token_id, tokenizer.eos_token_id
        self.pieces = _pieces(tokenizer, set(self.specials.values()))
        self.ids: dict[bytes, int] = {}
        for index in range(len(self.pieces) - 1, -1, -1):
            piece = self.pieces[index]
            if piece:
                self.ids[piece] = index
        self._longest = max(map(len, self.ids), default=0)
        begun = list(tokenizer("")["input_ids"])[:1]
        self.pads = self.spell(self._plain("a")) == b" a"  # SentencePiece: the first space of a text is not the text's
        self.start = begun if begun and begun[0] == self.bos else []

    def __deepcopy__(self, memo: Any) -> Vocabulary:
        return self  # nothing in it changes

    def piece(self, token: int) -> bytes | None:
        return self.pieces[token] if token < len(self.pieces) else None

    def spell(self, tokens: Sequence[int]) -> bytes:
        """The text of tokens; specials spell nothing."""
        return b"".join(self.piece(token) or b"" for token in tokens)

    def encode(self, data: bytes, *, first: bool = False) -> list[int]:
        """Tokens that spell `data`; bytes this vocabulary cannot spell are left out.

        first: the data begins the text, where a SentencePiece tokenizer may put a space of its own in front.
        """
        cut = whole_characters(data)
        return self._encode_text(data[:cut], first) + self._longest_match(data[cut:])

    def _encode_text(self, data: bytes, first: bool) -> list[int]:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return self._longest_match(data)
        if not text:
            return []
        tokens = self._plain(text)
        spelled = self.spell(tokens)
        if spelled == data:
            return tokens
        if data[:1] == b" " and self.spell(inner := self._plain(text[1:])) == data:
            return inner  # the tokenizer's own space in front is the one that is there
        if spelled == b" " + data and first:
            return tokens
        if spelled == b" " + data and self.piece(tokens[0]) == b" ":
            return tokens[1:]
        return self._longest_match(data)

    def _plain(self, text: str) -> list[int]:
        return list(self._encoded(text))

    def _encode_plain(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _longest_match(self, data: bytes) -> list[int]:
        tokens = []
        at = 0
        while at < len(data):
            for end in range(min(len(data), at + self._longest), at, -1):
                token = self.ids.get(data[at:end])
                if token is not None:
                    tokens.append(token)
                    at = end
                    break
            else:
                at += 1  # no token spells this byte
        return tokens

    def word_start(self, tokens: Sequence[int], floor: int = 0) -> int:
        """The index >= floor of the token that begins the last word: what is before it no longer changes."""
        for index in range(len(tokens) - 1, max(floor, len(tokens) - _LOOK_BACK) - 1, -1):
            piece = self.piece(tokens[index])
            if piece is None:
                return index + 1
            if piece[:1] in (b" ", b"\n"):
                return index
        index = max(floor, len(tokens) - _LOOK_BACK)
        while index > floor and _continues(self.piece(tokens[index])):
            index -= 1
        return index


class Reader:
    """One row's committed text in the draft's tokens.

    ids: the text so far.   held: what the draft's cache holds, true or not; both agree up to `agreed`.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self._target, self._draft = target, draft
        self.ids: list[int] = list(draft.start)
        self.held: list[int] = []
        self._run = len(self.ids)  # where the text since the last special token begins in `ids`
        self._seen = 0  # target ids read
        self._empty = False
        self._waiting = b""  # the beginning of a character that the draft can spell only as a whole

    def extend(self, context: Sequence[int]) -> None:
        """Read the committed target ids that are new."""
        if self._seen and self._empty:
            self.ids = []
        fresh: list[bytes] = []
        for index in range(self._seen, len(context)):
            piece = self._target.piece(context[index])
            if piece is not None:
                fresh.append(piece)
                continue
            self._write(b"".join(fresh))
            fresh = []
            if not (index == 0 and context[0] == self._target.bos):  # the draft has begun in its own way
                self._mark(context[index])
        self._write(b"".join(fresh))
        self._seen = len(context)
        self._empty = not self.ids
        if self._empty:  # nothing to read yet: until there is, any token is as good a past
            self.ids = [self._draft.eos or 0]

    def _mark(self, token: int) -> None:
        """A special of the target: the draft's own of the same text or role, else its text."""
        text = next((text for text, index in self._target.specials.items() if index == token), "")
        same = self._draft.specials.get(text, self._draft.eos if token == self._target.eos else None)
        if same is None:
            self._write(text.encode())
        elif same != self._draft.bos or same == self._draft.eos:  # never a second BOS
            self.ids.append(same)
        self._run, self._waiting = len(self.ids), b""

    def _write(self, data: bytes) -> None:
        if self._target.pads and self.ids == self._draft.start:
            data = data.removeprefix(b" ")
        if not data:
            return
        cut = self._draft.word_start(self.ids, self._run)
        text = self._draft.spell(self.ids[cut:]) + self._waiting + data
        whole = whole_characters(text)
        begun = self._draft.encode(text[whole:])
        self._waiting = b"" if self._draft.spell(begun) == text[whole:] else text[whole:]
        first = cut == self._run == len(self._draft.start)
        self.ids[cut:] = self._draft.encode(text[:whole], first=first) + ([] if self._waiting else begun)

    def agreed(self) -> int:
        """Leading ids that the cache holds already; at least one is fed anew."""
        limit = min(len(self.held), len(self.ids) - 1)
        return next((i for i in range(limit) if self.held[i] != self.ids[i]), limit)


def _specials(tokenizer: Any) -> dict[str, int]:
    """Text -> id of the tokens that are markers, not text."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marked = {str(token): index for index, token in added.items() if token.special}
    return marked | dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))


def _pieces(tokenizer: Any, specials: set[int]) -> list[bytes | None]:
    vocabulary = tokenizer.get_vocab()
    literal = {index for index in getattr(tokenizer, "added_tokens_decoder", {})}  # written as they are
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    alphabet = byte_alphabet() if isinstance(decoder, decoders.ByteLevel) else None
    spaced = alphabet is None and any(_SPACE in token for token in vocabulary)
    pieces: list[bytes | None] = [None] * (max(vocabulary.values()) + 1)
    for token, index in vocabulary.items():
        if index not in specials:
            pieces[index] = token.encode() if index in literal else _piece(token, alphabet, spaced)
    return pieces


def _piece(token: str, alphabet: dict[str, int] | None, spaced: bool) -> bytes:
    if alphabet is not None and all(character in alphabet for character in token):
        return bytes(alphabet[character] for character in token)
    if spaced:
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        token = token.replace(_SPACE, " ")
    return token.encode()
