"""L5: texts to learn from: token ids that the target wrote, in JSON lines; the vocabulary of their tokens.

A record is {"prompt": [ids], "tokens": [ids]}: what was given, and what the target made of it. A folder is read file
by file, and again for each epoch, so that texts may be written while a head is trained.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

HELD_OUT = 20  # one text in so many is held out


@dataclass(frozen=True)
class Text:
    """`tokens` holds the prompt, too; its first `given` tokens are not the target's."""

    tokens: tuple[int, ...]
    given: int

    @property
    def key(self) -> str:
        return hashlib.blake2b(",".join(map(str, self.tokens)).encode(), digest_size=12).hexdigest()

    @property
    def held_out(self) -> bool:
        """Decided by the text alone, so that it stays out in every run."""
        return int(self.key[:8], 16) % HELD_OUT == 0


def read_texts(path: Path, longest: int) -> list[Text]:
    """Texts of a .jsonl file, or of all of a folder, cut to `longest` tokens; those with nothing to learn are left out.

    Raises:
        ValueError: no such file, or a record without ids.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    found = []
    for file in files:
        if not file.is_file():
            raise ValueError(f"data={str(path)!r} is neither a .jsonl file nor a folder of them.")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            record = json.loads(line)
            try:
                prompt, tokens = [int(each) for each in record["prompt"]], [int(each) for each in record["tokens"]]
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{file}, line {number}: a text needs lists of ids 'prompt' and 'tokens'.") from error
            text = Text(tuple((prompt + tokens)[:longest]), len(prompt))
            if len(text.tokens) - text.given >= 3:
                found.append(text)
    return found


def frequent_ids(texts: Iterable[Text], vocab_size: int, count: int, always: Sequence[int] = ()) -> Tensor:
    """The `count` ids most frequent in what the target wrote, ascending (FR-Spec, arXiv 2502.14856).

    Where the texts hold fewer, the lowest ids follow: merges of a byte-pair vocabulary come in order of frequency.
    """
    seen: Counter[int] = Counter()
    for text in texts:
        seen.update(text.tokens[text.given :])
        seen.update(set(text.tokens[: text.given]))  # what a prompt names, an answer may name
    chosen = dict.fromkeys(always)
    for token, _ in seen.most_common():
        if len(chosen) >= count:
            break
        chosen.setdefault(token)
    for token in range(vocab_size):
        if len(chosen) >= count:
            break
        chosen.setdefault(token)
    return torch.tensor(sorted(chosen), dtype=torch.long)


@dataclass(frozen=True)
class Batch:
    """Texts padded on the right. tokens: [B, L].  learn: [B, L] bool, tokens whose prediction is learnt."""

    texts: tuple[Text, ...]
    tokens: Tensor
    learn: Tensor

    @property
    def first(self) -> int:
        """The earliest position from which a token to learn is two ahead."""
        return max(0, int(self.learn.any(0).int().argmax()) - 2)


def batch_of(texts: Sequence[Text], skip: int = 0) -> Batch:
    """skip: tokens at the beginning of each text that are never learnt; 0 learns what the target wrote only."""
    width = max(len(text.tokens) for text in texts)
    tokens = torch.zeros(len(texts), width, dtype=torch.long)
    learn = torch.zeros(len(texts), width, dtype=torch.bool)
    for row, text in enumerate(texts):
        tokens[row, : len(text.tokens)] = torch.tensor(text.tokens)
        learn[row, max(2, skip or text.given) : len(text.tokens)] = True
    return Batch(tuple(texts), tokens, learn)


def batches(texts: Sequence[Text], size: int, seed: int) -> list[list[Text]]:
    """Batches of up to `size` tokens, of texts of like length, in an order that the seed decides."""
    order = random.Random(seed)
    shuffled = list(texts)
    order.shuffle(shuffled)
    found: list[list[Text]] = []
    for begin in range(0, len(shuffled), 256):  # sorted within a stretch: little padding, much chance
        stretch = sorted(shuffled[begin : begin + 256], key=lambda text: len(text.tokens))
        batch: list[Text] = []
        for text in stretch:
            if batch and len(text.tokens) * (len(batch) + 1) > size:
                found.append(batch)
                batch = []
            batch.append(text)
        found.append(batch)
    order.shuffle(found)
    return found
