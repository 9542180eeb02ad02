"""Rows of token ids of different lengths as one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def ragged(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of ids, padded on the right with 0 -> [B, m] long."""
    width = max(map(len, rows), default=0)
    padded = [[*row, *[0] * (width - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long).reshape(len(rows), width)
