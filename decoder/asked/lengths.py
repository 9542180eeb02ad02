"""Where a text ends: new tokens, total length, the target's context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoder.types import Limits

DEFAULT_NEW_TOKENS = 128


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
