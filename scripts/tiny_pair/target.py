"""Training the target on next-token prediction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaForCausalLM

from .evaluation import HeldOut, bits_per_byte
from .llama import autocast
from .loop import Row, run_stage
from .presets import Stage
from .tokens import ChunkOrder

LossFunction = Callable[[torch.Tensor], torch.Tensor]


def next_token_loss(model: LlamaForCausalLM, bfloat16: bool) -> LossFunction:
    """The loss of rows (batch, length + 1): mean cross-entropy in nats per token, float32."""

    def loss(rows: torch.Tensor) -> torch.Tensor:
        with autocast(rows.device, bfloat16):
            logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())

    return loss


def row_length(step: int, stage: Stage, context: int) -> int:
    """Tokens per row at `step`: short rows first, whole chunks of `context` tokens at the end."""
    return stage.short_length if step < int(stage.short_share * stage.steps) else context


def train_target(
    model: LlamaForCausalLM,
    stream: np.ndarray,
    held_out: HeldOut,
    stage: Stage,
    folder: Path,
    *,
    seed: int,
    bfloat16: bool,
    compiled: bool,
) -> list[Row]:
    """Train `model` in place, resuming from folder/checkpoint.pt when it exists; returns the curve.

    Its loss is in nats per token; `bits_per_byte` is measured on `held_out`. See `run_stage`.
    """
    context = held_out.rows.shape[1] - 1
    device = next(model.parameters()).device
    order = ChunkOrder(stream, context, seed)
    loss_function = next_token_loss(model, bfloat16)
    if compiled:
        loss_function = torch.compile(loss_function, dynamic=False)

    def loss_at(step: int) -> torch.Tensor:
        return loss_function(order.batch(step, stage.chunks, row_length(step, stage, context)).to(device))

    def measure() -> Row:
        return {"bits_per_byte": bits_per_byte(model, held_out)}

    return run_stage(model, stage, folder, stage.chunks * context, loss_at, measure)
