"""The speed limit of plain decoding of one text: every weight is read once per token.

    tokens per second <= measured copy bandwidth / bytes of the weights a forward reads

A copy of n bytes reads n and writes n, so its bandwidth is 2 n / seconds. The embedding table is not read whole.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from decoder.measure.statistics import median
from decoder.measure.timing import synchronise


def copy_bandwidth(device: torch.device | str, size: int = 1 << 30, repeats: int = 10) -> float:
    """Bytes per second, read and written, of copying `size` bytes on the device; the median of `repeats`."""
    device = torch.device(device)
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for turn in range(repeats + 1):
        synchronise(device)
        began = time.perf_counter()
        target.copy_(source)
        synchronise(device)
        if turn > 0:  # the first touches the pages
            seconds.append(time.perf_counter() - began)
    return 2 * size / median(seconds)


def weight_bytes(model: Any) -> int:
    """Bytes of the weights a forward of one token reads: all but the embedding table, unless that is the head too."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    unread = embedding if embedding is not head else None
    return sum(p.numel() * p.element_size() for p in model.parameters() if p is not unread)


def tokens_per_second_limit(model: Any, bandwidth: float) -> float:
    return bandwidth / weight_bytes(model)
