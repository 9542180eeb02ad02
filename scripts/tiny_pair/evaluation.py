"""Bits per byte of held-out text."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class HeldOut:
    """Windows to score: `rows` (n, length + 1) token ids, `scored_from` the first scored input position of each row,
    `content_bytes` the UTF-8 bytes of the scored tokens (end-of-text counts as zero bytes, its nats count)."""

    rows: torch.Tensor
    scored_from: torch.Tensor
    content_bytes: int


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """UTF-8 bytes that each token id stands for, (vocab,) int64; special tokens stand for none."""
    # In a byte-level vocabulary every character of an entry is the picture of one byte.
    special = set(tokenizer.all_special_ids)
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return np.asarray([0 if i in special else len(name) for i, name in enumerate(names)], dtype=np.int64)


def held_out_windows(stream: np.ndarray, sizes: np.ndarray, length: int, windows: int | None) -> HeldOut:
    """Cut a token stream (n,) into windows of `length` tokens that overlap by half; each scores only its second half.

    So every scored token sees at least length / 2 tokens of context (the first window, which scores all, excepted).
    windows: how many, spread evenly over the stream; None for all, a last window over the remainder included, so that
    every token but the first is scored once.
    """
    half = length // 2
    starts = list(range(0, len(stream) - length, half))
    if not starts:
        raise ValueError(f"stream: {len(stream)} held-out tokens, at least {length + 1} are needed; hold out more text")
    if windows is not None and windows < len(starts):
        starts = [starts[i * len(starts) // windows] for i in range(windows)]
    scored_from = [0 if s == 0 else half for s in starts]
    if windows is None and starts[-1] + length + 1 < len(stream):
        last = len(stream) - length - 1
        scored_from.append(starts[-1] + length - last)
        starts.append(last)
    rows = np.stack([stream[s : s + length + 1].astype(np.int64) for s in starts])
    content = sum(int(sizes[row[first + 1 :]].sum()) for row, first in zip(rows, scored_from, strict=True))
    return HeldOut(torch.from_numpy(rows), torch.tensor(scored_from), content)


@torch.no_grad()
def bits_per_byte(model: torch.nn.Module, held_out: HeldOut, batch: int = 8) -> float:
    """Cross-entropy in bits over the bytes of the scored tokens; lower is better."""
    device = next(model.parameters()).device
    nats = 0.0
    for rows, first in zip(held_out.rows.split(batch), held_out.scored_from.split(batch), strict=True):
        rows, first = rows.to(device), first.to(device)
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
        positions = torch.arange(loss.shape[1], device=device)
        nats += float((loss * (positions[None] >= first[:, None])).sum(dtype=torch.float64))
    return nats / math.log(2) / held_out.content_bytes
