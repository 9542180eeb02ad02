"""Grammars that a text must follow: a JSON schema or a regular expression, as a mask over the next token.

    spec.generate(prompt, grammar=grammar.json_schema({"type": "object", ...}))
    spec.generate(prompt, grammar=grammar.regex(r"[0-9]{4}-[0-9]{2}"))

The new text (the prompt is not part of it) follows the grammar from its first character to its last. Tokens that it
forbids (no text that follows it begins with what they make) get score -inf before the warpers, for the draft as for the
target, so that what is emitted has the distribution of plain masked decoding (Willard and Louf 2023, arXiv 2307.09702,
section 3). EOS is allowed exactly where the text may
end, and a complete text leaves nothing else; without an EOS id the text stops where nothing may follow. A text that
runs out of `max_new_tokens` is the beginning of one that follows the grammar.

The mask is a function of the prefix, so it may be asked for drafted tokens that are then rejected: the matcher walks
forward and back along the prefixes it is shown. Parsing is llguidance's (extra `grammar`). Knows no loop and no model.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoder.text import valid_ids

_KEPT = 32  # masks of the last prefixes, for the forwards that look at them again; compiled grammars
# Where a grammar leaves one text only, llguidance allows one way to write it in tokens; here any may be taken.
_EVERY_SPELLING = '%llguidance {"no_forcing": true}'
_VOCABULARIES: weakref.WeakKeyDictionary[Any, dict[int, _Vocabulary]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Grammar:
    """What a text must follow. Made by `json_schema` and `regex`; `source` is JSON or the pattern."""

    kind: str
    source: str

    def __repr__(self) -> str:
        return f"{self.kind}({self.source!r:.200})"


def json_schema(schema: Mapping[str, Any] | str) -> Grammar:
    """JSON that conforms to a schema (draft 2020-12, as far as llguidance knows it; the rest is refused by name).

    Raises:
        TypeError, ValueError: no JSON object.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except json.JSONDecodeError as error:
            raise ValueError(f"json_schema={schema!r:.80} is no JSON: {error}; give a dict, or valid JSON.") from error
    if not isinstance(schema, Mapping):
        raise TypeError(f"json_schema={schema!r:.80} must be a schema: a dict, or a string that holds a JSON object.")
    try:
        return Grammar("json_schema", json.dumps(schema))
    except TypeError as error:
        raise TypeError(f"json_schema={schema!r:.80} must hold plain JSON values: {error}.") from error


def regex(pattern: str) -> Grammar:
    """Text that matches a regular expression (Rust's syntax, without look-around) as a whole.

    Raises:
        TypeError: no string.
    """
    if not isinstance(pattern, str):
        raise TypeError(f"regex={pattern!r:.80} must be a string.")
    return Grammar("regex", pattern)


_MAKERS = {"json_schema": json_schema, "regex": regex}


def grammar_of(name: str, value: Any) -> Grammar:
    """An option's value: a `Grammar`, or {"json_schema": ...} or {"regex": ...}.

    Raises:
        TypeError, ValueError: anything else.
    """
    if isinstance(value, Grammar):
        return value
    if isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in _MAKERS:
        ((kind, source),) = value.items()
        return _MAKERS[kind](source)
    raise TypeError(
        f"{name}={value!r:.80} must be decoder.grammar.json_schema(...), decoder.grammar.regex(...), "
        'or {"json_schema": ...} or {"regex": ...}.'
    )


class _Vocabulary:
    """A tokenizer's tokens as llguidance reads them, and the grammars compiled for them.

    size: ids of the tokenizer and of the target's head.   ends: the tokenizer's own EOS ids.

    Raises:
        ImportError: llguidance is not installed.   ValueError: it cannot read the tokenizer.
    """

    def __init__(self, tokenizer: Any, size: int) -> None:
        try:
            import llguidance.hf as library
        except ImportError as error:
            raise ImportError("grammar= needs llguidance; pip install 'decoder[grammar]'.") from error
        self.size = max(size, valid_ids(tokenizer)[0])
        try:
            self._tokens = library.from_tokenizer(tokenizer, n_vocab=self.size)
        except Exception as error:  # of which kind depends on its version and on the tokenizer
            kind = type(tokenizer).__name__
            raise ValueError(f"grammar= needs a fast tokenizer that llguidance reads, not {kind}: {error}") from error
        self.ends = frozenset(self._tokens.eos_tokens)
        self._compiled: dict[Grammar, Any] = {}

    @classmethod
    def of(cls, tokenizer: Any, size: int) -> _Vocabulary:
        made = _VOCABULARIES.setdefault(tokenizer, {})
        if size not in made:
            made[size] = cls(tokenizer, size)
        return made[size]

    def matcher(self, grammar: Grammar) -> Any:
        """A matcher at the beginning of a text.

        Raises:
            ValueError: saying what is wrong with the grammar.
        """
        if grammar not in self._compiled:
            from llguidance import LLMatcher

            rule = f"start: %json {grammar.source}"
            if grammar.kind == "regex":  # as a rule of llguidance's own, slashes and line ends escaped
                rule = json.loads(LLMatcher.grammar_from_regex(grammar.source))["grammars"][0]["lark_grammar"]
            source = LLMatcher.grammar_from_lark(f"{_EVERY_SPELLING}\n{rule}")
            failed, messages = LLMatcher.validate_grammar_with_warnings(source, self._tokens)
            if failed:
                raise ValueError(f"grammar={grammar!r} cannot be followed: {' '.join(messages).strip()}")
            while len(self._compiled) >= _KEPT:
                self._compiled.pop(next(iter(self._compiled)))
            self._compiled[grammar] = LLMatcher(self._tokens, source, log_level=0)
        return self._compiled[grammar].deep_copy()


@dataclass(frozen=True)
class _Next:
    """After one prefix. forbidden: [V] bool.   complete: nothing but an end may follow."""

    forbidden: Tensor
    complete: bool


class GrammarMask:
    """A logits processor for one text: what its grammar forbids gets -inf.

    tokenizer: of the target.   vocab_size: of its head.   prompt_length: tokens before the text.
    eos: ids that end it. With none, `complete` is the rule by which it stops.

    Raises:
        ImportError, ValueError: llguidance is missing, or cannot read the tokenizer or the grammar.
    """

    stateless = True  # a function of the prefix

    def __init__(
        self, grammar: Grammar, tokenizer: Any, vocab_size: int, prompt_length: int, eos: Iterable[int] = ()
    ) -> None:
        self._made_of = (grammar, tokenizer, vocab_size, prompt_length, frozenset(eos))
        self._prompt_length, self._eos = prompt_length, frozenset(eos)
        vocabulary = _Vocabulary.of(tokenizer, vocab_size)
        self._size, self._ends = vocabulary.size, self._eos | vocabulary.ends
        self._matcher = vocabulary.matcher(grammar)
        self._held: list[int] = []  # the new tokens that the matcher has consumed
        self._known: dict[int, _Next] = {}  # what follows the first n of them
        if self.complete([], 0):
            raise ValueError(f"grammar={grammar!r} allows the empty text only, which needs an eos_token_id to end.")

    def __deepcopy__(self, memo: Any) -> GrammarMask:
        return GrammarMask(*self._made_of)  # the matcher of another text, or of a draft on another device

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """input_ids [1, L], scores [1, V] -> [1, V]. After a token that is forbidden, or ends the text, nothing is
        masked: no such position is ever judged."""
        found = self._after(input_ids[0, self._prompt_length :].tolist())
        if found is None or (found.complete and not self._eos):
            return scores
        return scores.masked_fill(found.forbidden[: scores.shape[-1]].to(scores.device), -torch.inf)

    def admits(self, prefix: Sequence[int], tokens: Sequence[int]) -> int:
        """How many of the tokens may follow the prefix (prompt and new tokens), up to and with the first that ends the
        text."""
        written = list(prefix[self._prompt_length :])
        for n, token in enumerate(tokens):
            found = self._after([*written, *tokens[:n]])
            if found is None or bool(found.forbidden[token]):
                return n
        return len(tokens)

    def complete(self, tokens: Sequence[int], prompt_length: int) -> bool:
        """Whether the text must stop here without an EOS: a stop rule of the loop."""
        if self._eos:
            return False
        found = self._after(list(tokens[prompt_length:]))
        return found is not None and found.complete

    def _after(self, written: list[int]) -> _Next | None:
        """What may follow these new tokens; None where they have ended the text or left the grammar."""
        shared = min(len(self._held), len(written))
        if self._held[:shared] != written[:shared]:
            shared = next(n for n in range(shared) if self._held[n] != written[n])
        if shared < len(written) or shared not in self._known:
            if not self._walk(written, shared):
                return None
            self._known.pop(len(written) - _KEPT, None)
            self._known[len(written)] = self._read()
        return self._known[len(written)]

    def _walk(self, written: list[int], shared: int) -> bool:
        """Back to what is shared, forward to the end; whether the grammar allows that."""
        if len(self._held) > shared:
            self._matcher.rollback(len(self._held) - shared)
            del self._held[shared:]
            self._known = {n: found for n, found in self._known.items() if n <= shared}
        rest = written[shared:]
        if any(token in self._ends or token >= self._size for token in rest):
            return False
        taken = self._matcher.try_consume_tokens(rest) if rest else 0
        self._held += rest[:taken]
        return bool(taken == len(rest))

    def _read(self) -> _Next:
        """Ask the matcher where it stands.

        Raises:
            ValueError: the grammar is more than it can follow.
        """
        packed = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        if self._matcher.is_error():
            raise ValueError(f"{self._made_of[0]!r} cannot be followed further: {self._matcher.get_error():.300}")
        bits = (packed[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1  # [V / 8, 8], the lowest bit first
        forbidden = bits.reshape(-1)[: self._size] == 0
        forbidden[list(self._ends)] = True
        may_end = bool(self._matcher.is_accepting())
        complete = may_end and bool(forbidden.all())
        forbidden[[token for token in self._eos if token < self._size]] = not may_end
        return _Next(forbidden, complete)
