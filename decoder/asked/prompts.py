"""From what a person passes as a prompt to rows of token ids, and to the room behind each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from decoder.types import Limits

DEFAULT_NEW_TOKENS = 128


def _is_chat(prompt: Any) -> bool:
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str)
        and len(prompt) > 0
        and all(isinstance(message, Mapping) for message in prompt)
    )


def _need_tokenizer(tokenizer: Any, what: str) -> Any:
    if tokenizer is None:
        raise ValueError(f"{what} needs a tokenizer; pass tokenizer=, or give token ids as a tensor.")
    return tokenizer


def _from_text(text: str, tokenizer: Any) -> list[int]:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(
            f"prompt={text!r:.60} holds half a surrogate pair, which is no text; decode it properly first."
        )
    ids: list[int] = list(_need_tokenizer(tokenizer, "a text prompt")(text)["input_ids"])
    if not ids:
        if tokenizer.bos_token_id is None:
            raise ValueError("prompt='' is empty and the tokenizer has no BOS token to start from; give some text.")
        ids = [int(tokenizer.bos_token_id)]
    return ids


def _from_chat(messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> list[int]:
    tokenizer = _need_tokenizer(tokenizer, "a chat prompt")
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(
            "prompt is a list of chat messages but this tokenizer has no chat template; pass a string, or set "
            "tokenizer.chat_template."
        )
    begun = messages[-1].get("role") == "assistant"  # continued, as in transformers' pipeline, not answered
    text = tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=not begun, continue_final_message=begun
    )
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])  # the template writes its own specials


def _from_tensor(ids: torch.Tensor) -> list[int]:
    if ids.dtype not in (torch.long, torch.int, torch.int16, torch.int32):
        raise TypeError(f"prompt tensor of dtype {ids.dtype} must hold integer token ids.")
    return [int(token) for token in ids.tolist()]


def _rows_of(ids: torch.Tensor, mask: Any) -> list[list[int]]:
    """A [B, L] tensor, padding taken out where an attention mask [B, L] says so."""
    if mask is None:
        return [_from_tensor(row) for row in ids]
    mask = torch.as_tensor(mask)
    if mask.shape != ids.shape:
        raise ValueError(f"attention_mask of shape {tuple(mask.shape)} must match the prompt's {tuple(ids.shape)}.")
    return [_from_tensor(row[keep.bool()]) for row, keep in zip(ids, mask, strict=True)]


def _one(prompt: Any, tokenizer: Any) -> list[int]:
    if isinstance(prompt, str):
        return _from_text(prompt, tokenizer)
    if _is_chat(prompt):
        return _from_chat(prompt, tokenizer)
    if isinstance(prompt, torch.Tensor) and prompt.ndim == 1:
        return _from_tensor(prompt)
    listed = isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray))  # bytes are no ids
    if listed and prompt and all(isinstance(t, int) and not isinstance(t, bool) for t in prompt):
        return [int(token) for token in prompt]
    raise TypeError(
        f"prompt of type {type(prompt).__name__} is not understood; pass a string, a list of chat messages, a tensor "
        "or list of token ids, or a list of these."
    )


def _unpacked(encoding: Mapping[str, Any], attention_mask: Any) -> tuple[Any, Any]:
    """(ids, mask) of what a tokenizer returned; lists of different lengths hold no padding and need no mask."""
    ids, mask = encoding["input_ids"], encoding.get("attention_mask", attention_mask)
    if isinstance(ids, Sequence) and len({len(row) if isinstance(row, Sequence) else -1 for row in ids}) > 1:
        return ids, None
    ids = torch.as_tensor(ids)
    return (ids[None], None if mask is None else torch.as_tensor(mask)[None]) if ids.ndim == 1 else (ids, mask)


def encode(
    prompt: Any,
    tokenizer: Any,
    attention_mask: Any = None,
    padding: Callable[[], int | None] | None = None,
    vocab_size: int | None = None,
) -> tuple[list[list[int]], bool]:
    """(rows of token ids, whether the caller gave several prompts).

    A [1, L] tensor counts as one prompt, as tokenizers return it; a [B, L] tensor as several. A chat that ends in an
    assistant message is a text to continue; any other gets the template's generation prompt.
    padding: gives the id that is padding in a 2-D tensor without a mask, as in transformers; None where no id is.
    vocab_size: ids the model has an embedding for; None does not check them.

    Raises:
        TypeError, ValueError: saying what is wrong with which prompt.
    """
    if isinstance(prompt, Mapping) and "input_ids" in prompt:  # a BatchEncoding
        prompt, attention_mask = _unpacked(prompt, attention_mask)
    if isinstance(prompt, torch.Tensor) and prompt.ndim == 2:
        pad = padding() if attention_mask is None and padding is not None else None
        if pad is not None:
            attention_mask = prompt != pad
        rows, many = _rows_of(prompt, attention_mask), prompt.shape[0] != 1
    elif attention_mask is not None:
        raise ValueError("attention_mask goes with a 2-D tensor of ids; for other prompts leave it out.")
    elif isinstance(prompt, Sequence) and not (
        isinstance(prompt, str) or _is_chat(prompt) or (prompt and all(isinstance(token, int) for token in prompt))
    ):
        rows, many = [_one(each, tokenizer) for each in prompt], True
    else:
        rows, many = [_one(prompt, tokenizer)], False
    if not rows:
        raise ValueError("prompt is an empty list; give at least one prompt.")
    if vocab_size is not None:
        check_ids(rows, vocab_size)
    return rows, many


def check_ids(rows: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Every prompt has at least one id, and every id has an embedding."""
    for number, row in enumerate(rows):
        if not row:
            raise ValueError(f"prompt {number} holds no token ids; give at least one.")
        worst = max(row, key=lambda token: (token < 0, token))
        if not 0 <= worst < vocab_size:
            raise ValueError(f"prompt {number} holds id {worst}, outside the model's [0, {vocab_size}).")


def limits_for(asked: Mapping[str, Any], prompt_length: int, eos: frozenset[int], context: int | None) -> Limits:
    """Where the text after one prompt ends.

    Raises:
        ValueError: a prompt that leaves no room, or lengths that contradict each other.
    """
    new, total = asked.get("max_new_tokens"), asked.get("max_length")
    if new is not None and total is not None and prompt_length + new != total:
        raise ValueError(
            f"max_new_tokens={new} and max_length={total} contradict each other for a prompt of {prompt_length} "
            "tokens; give one of them (max_length counts the prompt)."
        )
    if total is not None and prompt_length >= total:
        raise ValueError(
            f"max_length={total} must exceed the prompt's {prompt_length} tokens, which it counts; "
            "raise it or give max_new_tokens."
        )
    if total is not None:
        new = total - prompt_length
    return room_for(prompt_length, DEFAULT_NEW_TOKENS if new is None else new, eos, context)


def room_for(prompt_length: int, new: int, eos: frozenset[int], context: int | None) -> Limits:
    """`new` tokens after a prompt, or as many as the target's context has room for.

    Raises:
        ValueError: a prompt longer than the context.
    """
    total = prompt_length + new
    if context is not None:
        if prompt_length > context:
            raise ValueError(
                f"prompt of {prompt_length} tokens is longer than the target's context of {context}; shorten it."
            )
        total = min(total, max(context, prompt_length + 1))  # a full context still has the token after its last
    return Limits(total - prompt_length, total, eos)
