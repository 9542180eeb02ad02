"""Texts that follow a grammar: the distribution of plain masked decoding, whatever drafts, in every batch.

The oracle knows no parser: a regular expression with few matches is the list of them, and a token is allowed where some
match begins with the text and that token.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
import re
import sys
from collections.abc import Sequence

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.generation import logits_process as library

from decoder import SpeculativeDecoder
from decoder.drafters import ModelDrafter, NgramDrafter, NoDrafter
from decoder.grammar import GrammarMask, json_schema, regex
from decoder.models.toy import TableModel, toy_model
from decoder.testing import Case, enumerate_law, exact_law, table_next, total_variation
from decoder.types import Draft, SamplingParams

EOS = 4
PIECES = ["a", "b", "c", "ab"]  # ids 0 ... 3; "</s>" is 4
PATTERN = "(ab|b)(a|ca|bc)?b?"
WORDS = "(the|little|cat)( (sun|river|cat|sat))*"
PROMPT = "once upon a time there was a little"
SCHEMA = {
    "type": "object",
    "properties": {"cat": {"enum": ["sun", "river"]}, "n": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["cat", "n", "ok"],
    "additionalProperties": False,
}


def pieces_tokenizer() -> PreTrainedTokenizerFast:
    """Four pieces of text, one of which is two others together, and an end."""
    core = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "c": 2, "ab": 3, "</s>": EOS}, merges=[("a", "b")]))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens(["</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")


def matches(pattern: str, alphabet: Sequence[str], longest: int) -> list[str]:
    """Every match that is at most so many pieces long."""
    texts = {"".join(chars) for n in range(longest + 1) for chars in itertools.product(alphabet, repeat=n)}
    return sorted(text for text in texts if re.fullmatch(pattern, text))


class Reference(library.LogitsProcessor):
    """The mask by its definition. texts: all matches; pieces: the text of each id."""

    def __init__(self, texts: list[str], pieces: list[str], eos: int | None, prompt_length: int) -> None:
        self.texts, self.pieces, self.eos, self.prompt_length = texts, pieces, eos, prompt_length

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        allowed = torch.zeros_like(scores, dtype=torch.bool)
        for row in range(len(ids)):
            text = "".join(self.pieces[token] for token in ids[row, self.prompt_length :].tolist())
            longer = [each for each in self.texts if each.startswith(text)]
            for token, piece in enumerate(self.pieces):
                allowed[row, token] = bool(piece) and any(each.startswith(text + piece) for each in longer)
            if self.eos is not None:
                allowed[row, self.eos] = text in self.texts
        return scores.masked_fill(~allowed, -torch.inf)


# ---- the distribution ----


@pytest.fixture(scope="module")
def pieces():
    return pieces_tokenizer()


@pytest.mark.parametrize("drafter", ["good", "greedy", "ngram", "none"])
@pytest.mark.parametrize("verifier", ["token", "block", "match"])
def test_every_outcome_follows_the_masked_target(pieces, verifier: str, drafter: str) -> None:
    target = TableModel.random(5, 0)
    made = {
        "good": lambda: ModelDrafter(target.near(1, 0.3)),
        "greedy": lambda: ModelDrafter(target.near(1, 0.3), sample=False),
        "ngram": NgramDrafter,
        "none": NoDrafter,
    }
    oracle = Reference(matches(PATTERN, "abc", 5), [*PIECES, ""], EOS, 4)
    prompt = (3, 0, 2, 1)
    bushy = verifier == "match" and drafter == "good"  # match draws at every position, beside the draft
    new = 3 if bushy else 5
    for params in (SamplingParams(top_p=1.0), SamplingParams(temperature=0.7, top_p=0.9)):
        law = exact_law(table_next(target, params, [oracle]), prompt, new, frozenset({EOS}))
        for k in (1, 2 if bushy else 3):
            mask = GrammarMask(regex(PATTERN), pieces, 5, len(prompt), [EOS])
            case = Case(target, made[drafter](), verifier, params, (mask,), k, new, frozenset({EOS}), (prompt,))
            found = enumerate_law(case)
            assert total_variation(found.laws[0], law) < 1e-12
            assert sum(found.laws[0].values()) == pytest.approx(1)
    ended = [tokens for tokens in law if tokens[-1] == EOS]
    assert len(ended) > 2 and all(re.fullmatch(PATTERN, "".join(PIECES[t] for t in tokens[:-1])) for tokens in ended)


def test_the_mask_is_a_function_of_the_prefix(pieces) -> None:
    """In any order, back and forth, with rejected tokens and ends in between: what a fresh one says."""
    oracle = Reference(matches(PATTERN, "abc", 5), [*PIECES, ""], EOS, 2)
    mask = GrammarMask(regex(PATTERN), pieces, 5, 2, [EOS])
    draw = random.Random(0)
    scores = torch.zeros(1, 5)
    living = 0
    for _ in range(600):
        new = [draw.randrange(5) for _ in range(draw.randrange(5))]
        said = mask(torch.tensor([[0, 1, *new]]), scores)
        text = "".join(PIECES[token] if token != EOS else "!" for token in new)
        if any(each.startswith(text) for each in oracle.texts):
            living += 1
            assert torch.equal(said, oracle(torch.tensor([[0, 1, *new]]), scores)), new
        else:
            assert torch.equal(said, scores), "behind what is rejected, or the end, nothing is judged"
    assert living > 100


# ---- real models ----


@pytest.fixture(scope="module")
def spec(target, draft, tokenizer):
    return SpeculativeDecoder.from_models(target, draft, tokenizer=tokenizer, temperature=0, seed=1)


def reference(tokenizer, pattern: str, prompt: str) -> Reference:
    """The words' regular expression: its matches of up to five words."""
    first, more = re.fullmatch(r"\((.*)\)\( \((.*)\)\)\*", pattern).groups()
    texts = [
        " ".join([head, *rest])
        for head in first.split("|")
        for n in range(5)
        for rest in itertools.product(more.split("|"), repeat=n)
    ]
    known = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    specials = set(tokenizer.all_special_ids)
    known = ["" if token in specials or "\ufffd" in text else text for token, text in enumerate(known)]
    return Reference(texts, known, tokenizer.eos_token_id, len(tokenizer(prompt)["input_ids"]))


NEW = 10


@pytest.mark.parametrize("drafter", ["model", "ngram", "suffix", "recycle", "cascade", "layerskip", "reduced"])
def test_greedy_texts_are_those_of_generate_with_a_mask(spec, tokenizer, drafter: str) -> None:
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    wanted = spec.target.generate(
        ids,
        do_sample=False,
        max_new_tokens=NEW,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=0,
        logits_processor=library.LogitsProcessorList([reference(tokenizer, WORDS, PROMPT)]),
    )[0, ids.shape[1] :].tolist()
    for k in (0, 1, 2, 4, 7):
        result = spec.generate(
            PROMPT,
            k=k,
            drafter=drafter,
            max_new_tokens=NEW,
            eos_token_id=tokenizer.eos_token_id,
            grammar=regex(WORDS),
        )
        assert list(result.token_ids) == wanted


OPTIONS = [
    {"grammar": {"regex": WORDS}},
    {},
    {"grammar": {"json_schema": SCHEMA}, "max_new_tokens": 60},
    {"grammar": regex("[a-z]{3}"), "temperature": 1.2},
]
PROMPTS = [PROMPT, "the end", "the river and the sun. the river and", "a"]


@pytest.mark.parametrize("how", [{"k": 4}, {"k": 3, "drafter": "ngram"}, {"k": 4, "sampling": "gumbel"}], ids=str)
def test_each_row_its_own_grammar(spec, tokenizer, how) -> None:
    shared = {"max_new_tokens": 24, "temperature": 0.8, "seed": 3, "eos_token_id": tokenizer.eos_token_id, **how}
    rows = [{"seed": 3, **row} for row in OPTIONS]
    together = spec.generate(PROMPTS, per_row=rows, **shared)
    for prompt, row, result in zip(PROMPTS, rows, together, strict=True):
        alone = spec.generate(prompt, **{**shared, **row})
        assert (result.token_ids, result.finish_reason) == (alone.token_ids, alone.finish_reason)
    assert re.fullmatch("[a-z]{3}", together[3].text) and together[3].finish_reason == "eos"
    if how["k"] == 3 or how.get("sampling"):
        return
    assert sum(result.num_accepted_tokens for result in together) > 0


def test_sampled_texts_follow_the_schema_in_streams_and_copies_too(spec, tokenizer) -> None:
    asked = {"max_new_tokens": 150, "temperature": 1.0, "eos_token_id": tokenizer.eos_token_id}
    asked["grammar"] = json_schema(json.dumps(SCHEMA | {"x-guidance": {"whitespace_flexible": False}}))
    ended = 0
    for result in spec.generate(PROMPT, num_return_sequences=12, **asked):
        if result.finish_reason == "eos":
            ended += 1
            value = json.loads(result.text)
            assert (
                value.keys() == {"cat", "n", "ok"} and value["cat"] in ("sun", "river") and value["ok"] in (True, False)
            )
    assert ended >= 4
    stream = spec.stream(PROMPT, **asked)
    assert "".join(stream) == stream.result.text == spec.generate(PROMPT, **asked).text


def test_where_the_text_ends(spec, tokenizer) -> None:
    """With EOS it ends with EOS, where the grammar may end; without one it stops where nothing may follow."""
    end = {"eos_token_id": tokenizer.eos_token_id, "max_new_tokens": 20}
    for k in (0, 4):
        ended = spec.generate(PROMPT, k=k, grammar=regex("(sun|river)!"), **end)
        assert ended.finish_reason == "eos" and ended.token_ids[-1] == tokenizer.eos_token_id
        assert ended.text in ("sun!", "river!")
        bare = spec.generate(PROMPT, k=k, grammar=regex("(sun|river)!"), **{**end, "eos_token_id": None})
        assert bare.finish_reason == "stop" and bare.text == ended.text
        assert list(bare.token_ids) == list(ended.token_ids)[:-1]
        assert spec.generate(PROMPT, k=k, grammar=regex("[a-z]+"), **{**end, "eos_token_id": None}).finish_reason == (
            "length"
        )
    with pytest.raises(ValueError, match="allows the empty text only"):
        spec.generate(PROMPT, grammar=regex(""), **{**end, "eos_token_id": None})
    assert spec.generate(PROMPT, grammar=regex(""), **end).token_ids == (tokenizer.eos_token_id,)


# ---- drafts ----


def test_drafts_follow_the_grammar_before_they_are_verified(spec, tokenizer, monkeypatch) -> None:
    """Without the filter the same draft model proposes what must be refused, and acceptance falls."""
    asked = {"max_new_tokens": 60, "temperature": 0.8, "eos_token_id": tokenizer.eos_token_id, "seed": 2}
    asked |= {"grammar": regex("[a-e ]{60,80}"), "num_return_sequences": 6}

    def rate() -> float:
        results = spec.generate(PROMPT, k=4, **asked)
        return sum(r.num_accepted_tokens for r in results) / sum(r.num_draft_tokens for r in results)

    filtered = rate()
    from decoder.generation import Generation

    own = Generation._draft_rows
    monkeypatch.setattr(Generation, "_draft_rows", lambda self, *how: [(p, (), pad) for p, _, pad in own(self, *how)])
    assert rate() < 0.5 * filtered


def test_a_looked_up_draft_is_cut_at_the_first_token_that_is_forbidden(spec, tokenizer) -> None:
    asked = {"drafter": "ngram", "max_new_tokens": 30, "eos_token_id": tokenizer.eos_token_id, "k": 6}
    prompt = "the cat sat on the river. the cat sat"
    result = spec.generate(prompt, grammar=regex("( (river|cat|sat))+ on the"), **asked)
    drafted = [tokenizer.decode(round_.drafted) for round_ in result.steps if round_.drafted]
    assert drafted and not any("." in text for text in drafted), "the prompt goes on with '. the cat'"
    mask = GrammarMask(regex("abc?"), tokenizer, len(tokenizer), 1, [2])
    ids = [tokenizer.encode(char, add_special_tokens=False)[0] for char in "abcd"]
    a, b, c, d = ids
    assert mask.admits([9], [a, b, d, a]) == 2 and mask.admits([9, a], [b, c, c]) == 2
    assert mask.admits([9, a, b], [2, a]) == 1 and mask.admits([9, a], [2]) == 0 and mask.admits([9, 2], [a]) == 0


def test_only_deterministic_drafts_are_cut(pieces) -> None:
    """What was drawn must not decide how much is verified."""
    from decoder.warpers import Warper

    warper = Warper(SamplingParams(), [GrammarMask(regex("ab"), pieces, 5, 1, [EOS])])
    tokens = torch.tensor([[0, 0, 1]])
    assert warper.admitted([[2]], Draft(tokens, [3])) == [1]
    assert warper.admitted([[2]], Draft(tokens, [3], torch.full((1, 3, 5), 0.2))) == [3]
    assert Warper(SamplingParams()).admitted([[2]], Draft(tokens, [3])) == [3]


def test_beside_other_processors_with_and_without_state(spec, tokenizer) -> None:
    asked = {"max_new_tokens": 12, "eos_token_id": tokenizer.eos_token_id, "grammar": regex("[a-d]{4,20}")}
    masked = reference(tokenizer, "(x)( (y))*", PROMPT)
    masked.texts = matches("[a-d]{4,6}", "abcd", 6)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    for extra in ({"repetition_penalty": 3.0}, {"guidance_scale": 1.5}):
        own = spec.target.generate(
            ids, do_sample=False, max_new_tokens=4, eos_token_id=tokenizer.eos_token_id, pad_token_id=0,
            logits_processor=library.LogitsProcessorList([masked]), **extra
        )[0, ids.shape[1] :].tolist()  # fmt: skip
        assert list(spec.generate(PROMPT, k=4, **asked, **extra).token_ids[: len(own)]) == own


def test_a_copy_for_another_device_has_a_matcher_of_its_own(pieces) -> None:
    mask = GrammarMask(regex("ab"), pieces, 5, 0, [EOS])
    twin = copy.deepcopy(mask)
    scores = torch.zeros(1, 5)
    first = mask(torch.tensor([[0]]), scores)
    twin(torch.tensor([[0, 1]]), scores)
    assert torch.equal(mask(torch.tensor([[0]]), scores), first) and twin._matcher is not mask._matcher


# ---- errors ----


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({"regex": "[ab"}, ValueError, r"(?s)grammar=regex\('\[ab'\) cannot be followed.*unclosed"),
        ({"regex": "(?=a)b"}, ValueError, "look-around"),
        ({"json_schema": {"type": "foo"}}, ValueError, "cannot be followed.*foo"),
        ({"json_schema": "{nope"}, ValueError, "is no JSON.*give a dict"),
        ({"json_schema": 3}, TypeError, "json_schema=3 must be a schema"),
        ({"json_schema": {"const": {1}}}, TypeError, "must hold plain JSON values"),
        ({"regex": 3}, TypeError, "regex=3 must be a string"),
        ({"lark": "x"}, TypeError, r"grammar=.*must be decoder.grammar.json_schema"),
        ("[a-z]+", TypeError, r'or \{"json_schema": ...\} or \{"regex": ...\}'),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(spec, value, error, message: str) -> None:
    with pytest.raises(error, match=message):
        spec.generate(PROMPT, grammar=value, max_new_tokens=4)


def test_without_a_tokenizer_or_without_the_library(spec, monkeypatch) -> None:
    bare = SpeculativeDecoder.from_models(toy_model("llama", seed=5))
    with pytest.raises(ValueError, match=r"grammar=regex\('a'\) needs a tokenizer; pass tokenizer="):
        bare.generate([1, 2], grammar=regex("a"), max_new_tokens=4)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setitem(sys.modules, "llguidance.hf", None)
    monkeypatch.setattr("decoder.grammar._VOCABULARIES", {})
    with pytest.raises(ImportError, match=r"pip install 'decoder\[grammar\]'"):
        spec.generate(PROMPT, grammar=regex("a"), max_new_tokens=4)
