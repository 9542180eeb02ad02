"""Terminal text: a model's control characters never reach the terminal, and fates can be told apart without colour."""

from __future__ import annotations

import io
import re

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from decoder import SpeculativeDecoder
from decoder.models.toy import noisy_copy, toy_model
from decoder.report.terminal import coloured, legend, styled, visible, wants_colour
from decoder.results import FATES, GenerationResult, RowRound

SGR = re.compile(r"\x1b\[[0-9;]*m")


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte (256 ids), so that any text, escape codes included, can be emitted."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={each: i for i, each in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


def result_of(tokenizer: PreTrainedTokenizerFast, text: str, rounds: list[tuple[int, int]]) -> GenerationResult:
    """A result whose rounds drafted and accepted so many tokens; the prefill emits the first token."""
    ids = tokenizer(text)["input_ids"]
    steps, used = [RowRound(0, (), 0, tuple(ids[:1]), 0.2, 0.0, 0.1)], 1
    for index, (drafted, accepted) in enumerate(rounds, 1):
        emitted = tuple(ids[used : used + accepted + 1])
        steps.append(RowRound(index, (7,) * drafted, accepted, emitted, 0.1, 0.02, 0.05))
        used += accepted + 1
    assert used == len(ids)
    return GenerationResult(text, text, tuple(ids), (), "length", 1.0, tuple(steps), True, tokenizer)


@pytest.mark.parametrize(
    "hostile", ["\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\r", "\x00", "\x7f", "\u202e", "\x08", "\ud800"]
)
def test_control_characters_are_written_out(hostile: str) -> None:
    shown = visible(f"a{hostile}b")
    assert shown.startswith("a\\") and shown.endswith("b")
    assert all(each.isprintable() for each in shown)


def test_ordinary_text_is_left_alone() -> None:
    text = "Füße 日本 👩‍👩‍👧 e\u0301\n\tend\\x1b"
    assert visible(text) == text


def test_styles_survive_without_colour() -> None:
    """Underline and weight tell the fates apart where hue cannot."""
    attributes = {fate: set(re.findall(r"\d+", styled("x", fate).split("m")[0])) & {"1", "4"} for fate in FATES[:3]}
    assert len({frozenset(each) for each in attributes.values()}) == 3
    assert styled("x", "plain") == "x"
    with pytest.raises(ValueError, match="fate='rejected' is unknown"):
        styled("x", "rejected")


def test_a_style_ends_with_its_line() -> None:
    assert styled("a\n\nb", "accepted") == "\x1b[32ma\x1b[0m\n\n\x1b[32mb\x1b[0m"


def test_only_our_own_escape_codes_come_out() -> None:
    tokenizer = byte_tokenizer()
    result = result_of(tokenizer, "ok\x1b[2Jx\x07y", [(5, 3), (3, 3)])
    shown = coloured(result)
    assert SGR.sub("", shown) == visible(result.text)
    assert "\x1b[2J" not in shown and "\x07" not in shown


def test_each_token_wears_its_fate() -> None:
    tokenizer = byte_tokenizer()
    shown = coloured(result_of(tokenizer, "abcdef", [(4, 2), (1, 1)]))
    assert shown == "a" + "".join(
        styled(*pair) for pair in zip("bcdef", ["accepted", "accepted", "recovered", "accepted", "bonus"], strict=True)
    )


def test_ids_where_there_is_no_tokenizer() -> None:
    target = toy_model("llama", 0)
    spec = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.1), temperature=0.0)
    result = spec.generate(torch.tensor([5, 6, 7]), max_new_tokens=12, k=3)
    assert SGR.sub("", coloured(result)).split() == [str(token) for token in result.token_ids]


def test_legend_names_the_fates() -> None:
    assert SGR.sub("", legend()).split() == ["accepted", "recovered", "bonus"]


def test_colour_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_colour(Terminal()) and not wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
