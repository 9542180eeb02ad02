"""From whatever a person passes to rows of ids."""

from __future__ import annotations

import pytest
import torch
from transformers import pipeline
from transformers.utils.chat_template_utils import Chat

from decoder.asked.prompts import check_ids, encode


def test_one_prompt_in_every_form_gives_the_same_row(tokenizer) -> None:
    ids = tokenizer("the cat")["input_ids"]
    batch = tokenizer("the cat", return_tensors="pt")
    lists = tokenizer("the cat")  # with its mask, neither of them in a tensor
    tensors = (torch.tensor(ids), torch.tensor([ids]), batch["input_ids"].int())
    for prompt in ("the cat", ids, tuple(ids), *tensors, batch, lists):
        assert encode(prompt, tokenizer) == ([ids], False)


def test_several_prompts_in_every_form(tokenizer) -> None:
    first, second = (tokenizer(text)["input_ids"] for text in ("the cat", "a little river"))
    ragged = tokenizer(["the cat", "a little river"])
    for prompts in (["the cat", "a little river"], [first, second], [torch.tensor(first), "a little river"], ragged):
        assert encode(prompts, tokenizer) == ([first, second], True)
    assert encode(["the cat"], tokenizer) == ([first], True), "a list of one is a list"


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_taken_out_wherever_the_mask_says(tokenizer, side: str) -> None:
    first, second = (tokenizer(text)["input_ids"] for text in ("the cat", "a little river"))
    batch = tokenizer(["the cat", "a little river"], return_tensors="pt", padding=True, padding_side=side)
    assert encode(batch, tokenizer) == ([first, second], True)
    rows, many = encode(batch["input_ids"], tokenizer, batch["attention_mask"])
    assert (rows, many) == ([first, second], True)


def test_a_chat_goes_through_the_template_without_doubled_specials(tokenizer) -> None:
    chat = [{"role": "user", "content": "the cat"}]
    tokenizer.chat_template = (
        "<s>{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}:{% endif %}"
    )
    try:
        ids = tokenizer("<s>the cat:", add_special_tokens=False)["input_ids"]
        assert ids[0] == tokenizer.bos_token_id
        assert encode(chat, tokenizer) == ([ids], False)
        assert encode([chat, "the cat"], tokenizer)[1] is True
    finally:
        tokenizer.chat_template = None


TEMPLATE = (
    "<s>{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.mark.parametrize("said", ["once upon", "once upon ", ""])
def test_a_chat_that_ends_in_an_assistant_message_is_continued(tokenizer, target, said: str) -> None:
    """As in transformers' pipeline: no end of turn after it, no new turn."""
    asked = [{"role": "user", "content": "a story"}]
    chat = [*asked, {"role": "assistant", "content": said}]
    tokenizer.chat_template = TEMPLATE
    try:
        pipe = pipeline("text-generation", model=target, tokenizer=tokenizer)
        for messages, end in ((chat, f"[assistant]{said}"), (asked, "[assistant]")):
            (row,), many = encode(messages, tokenizer)
            assert not many and row == pipe.preprocess(Chat(messages))["input_ids"][0].tolist()
            assert tokenizer.decode(row) == f"<s>[user]a story</s>{end}"
        assert encode([chat, asked], tokenizer)[0] == [encode(each, tokenizer)[0][0] for each in (chat, asked)]
        assert chat[-1] == {"role": "assistant", "content": said}, "the caller's messages are left as they are"
    finally:
        tokenizer.chat_template = None


def test_an_empty_text_starts_from_bos(tokenizer) -> None:
    assert encode("", tokenizer) == ([[tokenizer.bos_token_id]], False)


@pytest.mark.parametrize(
    ("prompt", "kind", "message"),
    [
        ([{"role": "user", "content": "hi"}], ValueError, "no chat template"),
        ([], ValueError, "empty list"),
        (None, TypeError, "NoneType is not understood"),
        (3.5, TypeError, "float is not understood"),
        ([1.5, 2.5], TypeError, "float is not understood"),
        ([True, False], TypeError, "not understood"),
        (b"the cat", TypeError, "bytes is not understood"),
        ("half \ud83d a cat", ValueError, "holds half a surrogate pair"),
        (torch.tensor([1.5]), TypeError, "must hold integer"),
        (torch.tensor(3), TypeError, "Tensor is not understood"),
        (torch.zeros(1, 2, 3, dtype=torch.long), TypeError, "Tensor is not understood"),
        ({"text": "x"}, TypeError, "dict is not understood"),
    ],
)
def test_what_is_not_a_prompt_is_named(tokenizer, prompt, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        encode(prompt, tokenizer)


def test_an_empty_text_without_bos_is_refused() -> None:
    class Bare:
        bos_token_id = None

        def __call__(self, text):
            return {"input_ids": []}

    with pytest.raises(ValueError, match="empty and the tokenizer has no BOS"):
        encode("", Bare())


def test_text_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a text prompt needs a tokenizer; pass tokenizer="):
        encode("hello", None)
    with pytest.raises(ValueError, match=r"a chat prompt needs a tokenizer"):
        encode([{"role": "user", "content": "hi"}], None)


def test_masks_must_fit() -> None:
    ids = torch.tensor([[3, 4, 5]])
    with pytest.raises(ValueError, match=r"attention_mask of shape \(1, 2\) must match"):
        encode(ids, None, torch.ones(1, 2))
    with pytest.raises(ValueError, match="attention_mask goes with a 2-D tensor"):
        encode(ids[0], None, torch.ones(3))


def test_ids_must_have_an_embedding() -> None:
    check_ids([[0, 9]], 10)
    for rows, message in (
        ([[3], [10]], "prompt 1 holds id 10"),
        ([[-1, 4]], "holds id -1"),
        ([[3], []], "prompt 1 holds no"),
    ):
        with pytest.raises(ValueError, match=message):
            check_ids(rows, 10)
