"""Detokenisation, stop strings, comparing tokenizers."""

from __future__ import annotations

import random

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, StopStringCriteria

from conftest import byte_level_tokenizer
from decoder.text import (
    Detokenizer,
    StopStrings,
    check_same_tokenizer,
    decode,
    new_text,
    token_pieces,
    valid_ids,
)

TEXTS = [
    "the cat 🐈‍⬛ and 👩‍👩‍👧‍👦 sat",
    "你好，世界！ 漢字",
    "e\u0301 n\u0303 a\u030a combining",
    "नमस्ते दुनिया",
    "plain words and 1234",
]


def pieces_of(tokenizer, prompt: list[int], new: list[int]) -> list[str]:
    stream = Detokenizer(tokenizer, prompt)
    return [*(stream.push(token) for token in new), stream.flush()]


def half_characters(pieces: list[str], text: str) -> list[str]:
    """Pieces with a replacement character that the whole text does not have."""
    return [piece for piece in pieces if "\ufffd" in piece] if "\ufffd" not in text else []


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("cut", [0, 1, 3, 7, 12])
def test_pieces_join_to_the_text_and_never_hold_half_a_character(tokenizer, text: str, cut: int) -> None:
    """`cut` also falls inside characters: the prompt ends with some of their bytes."""
    ids = tokenizer(text)["input_ids"]
    prompt, new = ids[:cut], ids[cut:]
    pieces = pieces_of(tokenizer, prompt, new)
    wanted, full = new_text(tokenizer, prompt, new)
    assert "".join(pieces) == wanted
    assert full == text and full.endswith(wanted)
    assert not half_characters(pieces, text)


def test_a_character_left_open_by_the_prompt_belongs_to_the_new_text(tokenizer) -> None:
    ids = tokenizer("ab你")["input_ids"]
    assert len(ids) >= 5  # one byte a token
    assert new_text(tokenizer, ids[:-1], ids[-1:])[0] == "你"
    assert "".join(pieces_of(tokenizer, ids[:-1], ids[-1:])) == "你"


def test_random_bytes_stream_exactly(tokenizer) -> None:
    """A random model emits broken UTF-8 all the time; the pieces still join to what the whole decodes to."""
    draws = random.Random(5)
    for _ in range(150):
        prompt = [draws.randrange(len(tokenizer)) for _ in range(draws.randrange(12))]
        new = [draws.randrange(len(tokenizer)) for _ in range(draws.randrange(1, 60))]
        assert "".join(pieces_of(tokenizer, prompt, new)) == new_text(tokenizer, prompt, new)[0]


def test_text_is_out_as_soon_as_it_is_final(tokenizer) -> None:
    ids = tokenizer("cat 你 sat")["input_ids"]
    stream, shown = Detokenizer(tokenizer), ""
    for n, token in enumerate(ids, 1):
        shown += stream.push(token)
        assert shown == decode(tokenizer, ids[:n]).rstrip("\ufffd")


def test_an_endless_run_of_broken_bytes_is_not_held_back_for_ever(tokenizer) -> None:
    broken = [tokenizer.convert_tokens_to_ids("\u0122")] * 200  # a continuation byte
    assert decode(tokenizer, broken[:1]) == "\ufffd"
    stream = Detokenizer(tokenizer)
    shown = "".join(stream.push(token) for token in broken)
    assert len(shown) > 150
    assert len(stream._ids) < 100
    assert shown + stream.flush() == "\ufffd" * 200


def sentence_piece_tokenizer() -> PreTrainedTokenizerFast:
    """Metaspace with a byte fallback, like Llama 2's: the first word's space is dropped."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *[f"<0x{byte:02X}>" for byte in range(256)],
        "▁",
        "▁the",
        "▁cat",
        "a",
        "s",
        "▁sat",
    ]
    core = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def test_the_leading_space_rule_of_sentence_piece_is_kept() -> None:
    tokenizer = sentence_piece_tokenizer()
    the, cat, sat = tokenizer.convert_tokens_to_ids(["▁the", "▁cat", "▁sat"])
    assert decode(tokenizer, [the, cat]) == "the cat"
    assert new_text(tokenizer, [the], [cat, sat]) == (" cat sat", "the cat sat")
    assert "".join(pieces_of(tokenizer, [the], [cat, sat])) == " cat sat"
    assert "".join(pieces_of(tokenizer, [], [the, cat] * 20)) == decode(tokenizer, [the, cat] * 20)
    han = [tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in "你好".encode()]
    pieces = pieces_of(tokenizer, [the], [*han, cat])
    assert "".join(pieces) == "你好 cat"
    assert not half_characters(pieces, "你好 cat")


def test_token_pieces_give_every_token_its_text(tokenizer) -> None:
    ids = tokenizer("the 你 cat")["input_ids"]
    pieces = token_pieces(tokenizer, [], ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == "the 你 cat"


def stops_after(tokenizer, strings: list[str], prompt: list[int], new: list[int]) -> int | None:
    rule = StopStrings(tokenizer, strings, prompt)
    for n in range(1, len(new) + 1):
        if rule([*prompt, *new[:n]], len(prompt)):
            return n
    return None


def test_a_stop_string_ends_the_text_at_the_token_that_completes_it(tokenizer) -> None:
    ids = tokenizer("once upon a time there was")["input_ids"]
    texts = [decode(tokenizer, ids[:n]) for n in range(1, len(ids) + 1)]
    for string in ("upon a", "t", " the", "time there", "zebra"):
        wanted = next((n for n, text in enumerate(texts, 1) if string in text), None)
        assert stops_after(tokenizer, [string], [], ids) == wanted, string
    assert stops_after(tokenizer, ["zebra", "upon", "once upon a"], [], ids) == stops_after(
        tokenizer, ["upon"], [], ids
    )


def test_a_stop_string_may_begin_in_the_prompt_but_not_end_there(tokenizer) -> None:
    """A short string that stands in the prompt must not fire because a longer one keeps the prompt's tail in view."""
    prompt, new = tokenizer("the end ")["input_ids"], tokenizer("of the story")["input_ids"]
    assert stops_after(tokenizer, ["end", "a very long stop string indeed"], prompt, new) is None
    assert stops_after(tokenizer, ["end of"], prompt, new) is not None
    assert new_text(tokenizer, prompt, new)[0] == "of the story"


def shown_until_stop(tokenizer, strings: list[str], prompt: list[int], new: list[int]) -> str:
    """The text of the new tokens up to and including the stop string, as results cut it."""
    rule = StopStrings(tokenizer, strings, prompt)
    length = next((n for n in range(1, len(new) + 1) if rule([*prompt, *new[:n]], len(prompt))), len(new))
    text, _ = new_text(tokenizer, prompt, new[:length])
    return text[: len(text) - rule.surplus]


def test_the_text_keeps_the_stop_string_and_drops_what_follows(tokenizer) -> None:
    ids = tokenizer("once upon a time there was")["input_ids"]
    inside = 0
    for string in ("upo", "upon a", "tim", " th", "wa", "onc", "there"):
        before, _, _ = "once upon a time there was".partition(string)
        assert shown_until_stop(tokenizer, [string], [], ids) == before + string
        inside += decode(tokenizer, ids[: stops_after(tokenizer, [string], [], ids)]) != before + string
    assert inside > 0, "no stop string ended inside a token"
    assert shown_until_stop(tokenizer, ["time", "upo", "once upon a"], [], ids) == "once upo"
    assert shown_until_stop(tokenizer, ["zebra"], [], ids) == "once upon a time there was"
    half = [*tokenizer("upon")["input_ids"], *tokenizer("你")["input_ids"][:1]]
    core = Tokenizer(models.BPE({"a": 0, "b\u0122": 1}, []))  # "b" and a byte of an unfinished character
    core.decoder = decoders.ByteLevel()
    assert decode(PreTrainedTokenizerFast(tokenizer_object=core), [0, 1]) == "ab\ufffd"
    assert shown_until_stop(PreTrainedTokenizerFast(tokenizer_object=core), ["ab"], [0], [1]) == "b"
    assert shown_until_stop(tokenizer, ["upon"], [], half) == "upon"


def test_a_special_token_inside_a_match_counts_with_its_text(tokenizer) -> None:
    """It is not shown, but it stands between its neighbours: "x<s>y" holds no "xy"."""
    x, y, special = (tokenizer.convert_tokens_to_ids(token) for token in ("x", "y", "<s>"))
    assert stops_after(tokenizer, ["xy"], [x, special], [y, y, y]) is None
    assert shown_until_stop(tokenizer, ["xy"], [x, special], [y, y, y]) == "yyy"
    assert stops_after(tokenizer, ["xy"], [], [x, special, y, x, y]) == 5
    assert shown_until_stop(tokenizer, ["xy"], [], [x, special, y, x, y]) == "xyxy"
    assert stops_after(tokenizer, ["x<"], [x], [special, y]) == 1
    assert shown_until_stop(tokenizer, ["x<"], [y], [x, special, y]) == "x"
    assert shown_until_stop(tokenizer, ["s>y"], [x], [special, y, y]) == "y"


def test_it_stops_where_transformers_stops(tokenizer) -> None:
    """Random texts of whole and broken pieces and special tokens, against StopStringCriteria at every prefix."""
    draws, stopped = random.Random(3), 0
    pieces = [tokenizer.convert_tokens_to_ids(token) for token in ("<s>", "</s>", "t", "h", "e", "\u0120", "<", "s")]
    pieces += [token for text in ("the cat", "end of the") for token in tokenizer(text)["input_ids"]]
    for strings in (["the"], ["t<s>"], [">h"], ["s>t", "e c"], ["th", "end"], ["he <"]):
        criterion = StopStringCriteria(tokenizer, strings)
        for _ in range(40):
            prompt = draws.choices(pieces, k=draws.randrange(1, 5))
            new = draws.choices(pieces, k=20)
            wanted = next(
                (n for n in range(1, 21) if bool(criterion(torch.tensor([[*prompt, *new[:n]]]), None).item())), None
            )
            assert stops_after(tokenizer, strings, prompt, new) == wanted, (strings, tokenizer.decode([*prompt, *new]))
            stopped += wanted is not None
    assert 60 < stopped < 240


def test_ids_the_tokenizer_lacks_are_found() -> None:
    class Sparse:
        def get_vocab(self):
            return {"a": 0, "b": 1, "d": 3}

    assert valid_ids(Sparse()) == (4, [2])


def test_tokenizers_are_compared_by_meaning_not_by_size(tokenizer) -> None:
    longer = byte_level_tokenizer()
    longer.add_tokens(["<extra_0>", "<extra_1>"])
    check_same_tokenizer(tokenizer, longer)
    check_same_tokenizer(longer, tokenizer)


def test_different_tokenizers_are_refused_with_an_example(tokenizer) -> None:
    other = sentence_piece_tokenizer()
    with pytest.raises(ValueError, match=r"different tokenizers: \d+ of \d+ shared ids.*drafter='ngram'"):
        check_same_tokenizer(tokenizer, other)
