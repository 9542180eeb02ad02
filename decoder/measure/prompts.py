"""Prompts for measuring: a few of our own, or a person's file of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decoder.api import SpeculativeDecoder
from decoder.asked.prompts import encode

OWN_PROMPTS = (
    "Once upon a time, in a village at the edge of a great forest, there lived",
    "The kitten looked at the open door, then at the rain, and",
    '"We shall never get home before dark," said the eldest,',
    "Every evening when the lamp was lit, grandmother told them how",
    "There was once a miller who had nothing left but his mill and",
    "The bear came slowly out of the cave, blinked at the sun and said,",
    "On the last day of winter the brook began to run again, and the frogs",
    "Far out at sea, where the water is as blue as the bluest flower,",
)


def _messages_or_text(record: dict[str, Any], path: Path, line: int) -> Any:
    if isinstance(record.get("prompt"), str):
        return record["prompt"]
    if record.get("turns"):
        return [{"role": "user", "content": record["turns"][0]}]
    raise ValueError(f"{path}, line {line}: a record needs 'prompt' or 'turns', this one has {sorted(record)}.")


def read_prompts(path: Path, limit: int | None = None, categories: Sequence[str] = ()) -> list[Any]:
    """Prompts of a .txt file (one a line) or a .jsonl file (`prompt`, or the first of `turns` as a chat message).

    limit: taken evenly over the file, whose kinds stand together.  categories: keep only records of these `category`.

    Raises:
        ValueError: a record without a prompt, or nothing left.
    """
    numbered = [(n, line) for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if line.strip()]
    if path.suffix == ".jsonl":
        records = [(n, json.loads(line)) for n, line in numbered]
        found = [
            _messages_or_text(record, path, n)
            for n, record in records
            if not categories or record.get("category") in categories
        ]
    else:
        found = [line for _, line in numbered]
    if not found:
        raise ValueError(f"{path} holds no prompts{f' of categories {list(categories)}' if categories else ''}.")
    if limit is None or limit >= len(found):
        return found
    return [found[i * len(found) // limit] for i in range(limit)]


def as_ids(spec: SpeculativeDecoder, prompts: Sequence[Any]) -> list[list[int]]:
    """Token ids; a chat message becomes plain text where the tokenizer has no chat template."""
    has_template = getattr(spec.tokenizer, "chat_template", None) is not None
    plain = [each[0]["content"] if not has_template and _is_message(each) else each for each in prompts]
    return [encode(each, spec.tokenizer)[0][0] for each in plain]


def _is_message(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], dict)
