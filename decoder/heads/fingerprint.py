"""L2: which target a head belongs to: a sketch of its weights.

The sketch is a few hundred numbers at fixed places of the first, the middle and the last matrix. Rounding to another
dtype or quantising a model moves them little, another training run moves them wholly; so two sketches are compared by
their correlation, matrix by matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SIZE = 128  # numbers of each of the three matrices
SAME = 0.9  # correlation of a model with its quantised self: above 0.98; with an unrelated one: about 0


def sketch(target: Any) -> Tensor:
    """[3, SIZE] float32: of a transformers model; empty where its weights are not in memory."""
    matrices = [p for p in target.parameters() if p.dim() == 2]
    chosen = [matrices[0], matrices[len(matrices) // 2], matrices[-1]]
    if any(matrix.device.type == "meta" for matrix in chosen):
        return torch.zeros(0)
    parts = []
    for matrix in chosen:
        flat = matrix.detach().reshape(-1)
        places = torch.linspace(0, flat.numel() - 1, SIZE, dtype=torch.float64).long()
        parts.append(flat[places.to(flat.device)].float().cpu())
    return torch.stack(parts)


def likeness(one: Tensor, other: Tensor) -> float:
    """The least correlation over the matrices, in [-1, 1]; 1 where a sketch is missing."""
    if one.numel() == 0 or other.numel() == 0:
        return 1.0
    cosines = torch.nn.functional.cosine_similarity(one - one.mean(-1, True), other - other.mean(-1, True), dim=-1)
    return float(cosines.min())
