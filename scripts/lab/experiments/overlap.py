"""What two models agree on, position by position, on a text: sum_x min(p, q) = 1 - TV(p, q)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decoder.models.hf import CausalModel
from decoder.types import SamplingParams
from decoder.warpers import warped_probs


@torch.inference_mode()
def distributions(model: Any, ids: Sequence[int], params: SamplingParams, vocab: int) -> Tensor:
    """The warped distribution after each token of `ids` -> [L, V]."""
    logits = model(torch.tensor([list(ids)], device=model.device)).logits[0, :, :vocab].float()
    return warped_probs(logits, params)


@torch.inference_mode()
def in_steps(model: Any, ids: Sequence[int], prompt: int, params: SamplingParams, width: int = 8) -> Tensor:
    """`distributions` after token `prompt - 1` and each later one -> [L - prompt + 1, V], fed `width` at a time.

    As in decoding: what a packed model computes for a few tokens is not what it computes for a whole text at once.
    """
    session = CausalModel(model, "draft").open(1, len(ids))
    found = [session.feed(torch.tensor([list(ids[:prompt])]), [0], [prompt - 1])]
    session.commit([prompt])
    for start in range(prompt, len(ids), width):
        part = list(ids[start : start + width])
        found.append(session.feed(torch.tensor([part]), [start]))
        session.commit([start + len(part)])
    return warped_probs(torch.cat(found, 1)[0].float(), params)


def overlap(p: Tensor, q: Tensor) -> Tensor:
    """sum_x min(p, q) over the last axis."""
    return torch.minimum(p, q).sum(-1)


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """(mean, 1.96 standard errors)."""
    return float(values.mean()), float(1.96 * values.std() / max(1, len(values)) ** 0.5)
