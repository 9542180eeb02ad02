"""Distilling the draft from the target (DistillSpec, arXiv 2310.08461)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaForCausalLM

from .agreement import Continuations, measure_agreement
from .llama import autocast
from .loop import Row, run_stage
from .presets import Stage
from .tokens import ChunkOrder

DistillLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

GENERATED_SHARE = 0.25  # of the chunks of every batch; the rest is corpus text
DIVERGENCE_UNTIL = 0.5  # share of the steps with the divergence alone
VARIATION_FROM = 0.7  # share of the steps from which only the total variation is left
SHARP = 2.5  # inverse temperature of the second total-variation term, which stands for greedy decoding


@dataclass(frozen=True)
class Texts:
    """Where the draft learns and is measured: token streams (n,) uint16, and continuations of held-out prompts."""

    corpus: np.ndarray
    generated: np.ndarray
    continuations: Continuations


def variation_weight(step: int, steps: int) -> float:
    """Weight in [0, 1] of the total-variation terms at `step`; the divergence has the rest."""
    share = step / steps
    return min(1.0, max(0.0, (share - DIVERGENCE_UNTIL) / (VARIATION_FROM - DIVERGENCE_UNTIL)))


def distillation_loss(p_logits: torch.Tensor, q_logits: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(1 - weight) KL(p || q) + weight (TV(p, q) + TV(p', q')) of logits (..., vocab), the mean over positions.

    p', q' are both laws at temperature 1 / SHARP. TV = 1 - sum of min(p, q) is one minus the acceptance rate itself,
    but its gradient vanishes where the draft has no mass yet: hence the divergence first.
    """
    log_p, log_q = p_logits.log_softmax(-1), q_logits.log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    divergence = (p * (log_p - log_q)).sum(-1).mean()
    variation = 1 - torch.minimum(p, q).sum(-1).mean()
    sharp = torch.minimum((SHARP * p_logits).softmax(-1), (SHARP * q_logits).softmax(-1))
    return (1 - weight) * divergence + weight * (variation + 1 - sharp.sum(-1).mean())


def draft_loss(target: LlamaForCausalLM, draft: LlamaForCausalLM, bfloat16: bool) -> DistillLoss:
    """The loss of token rows (batch, length) and a scalar weight tensor; no gradient goes through the target."""

    def loss(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with autocast(ids.device, bfloat16):
            with torch.no_grad():
                p_logits = target(input_ids=ids, use_cache=False).logits
            q_logits = draft(input_ids=ids, use_cache=False).logits
        return distillation_loss(p_logits.float(), q_logits.float(), weight)

    return loss


def measure(target: LlamaForCausalLM, draft: LlamaForCausalLM, texts: Texts) -> Row:
    """The two acceptance rates on what the target itself wrote after held-out prompts."""
    made = texts.continuations
    sampled = measure_agreement(target, draft, made.sampled, made.prompt_length)
    greedy = measure_agreement(target, draft, made.greedy, made.prompt_length)
    return {"alpha_sampled": sampled.alpha, "alpha_greedy": greedy.same_choice}


def train_draft(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    texts: Texts,
    stage: Stage,
    folder: Path,
    *,
    context: int,
    seed: int,
    bfloat16: bool,
    compiled: bool,
) -> list[Row]:
    """Train `draft` in place, resuming from folder/checkpoint.pt when it exists; returns the curve.

    Every batch has stage.chunks chunks of `context` tokens. See `distillation_loss`, `measure` and `run_stage`.
    """
    from_target = max(1, round(GENERATED_SHARE * stage.chunks))
    orders = (
        (ChunkOrder(texts.corpus, context, seed + 1), stage.chunks - from_target),
        (ChunkOrder(texts.generated, context, seed + 2), from_target),
    )
    device = next(draft.parameters()).device
    loss_function = draft_loss(target, draft, bfloat16)
    if compiled:
        loss_function = torch.compile(loss_function, dynamic=False)

    def loss_at(step: int) -> torch.Tensor:
        ids = torch.cat([order.batch(step, chunks, context)[:, :-1] for order, chunks in orders])
        return loss_function(ids.to(device), torch.tensor(variation_weight(step, stage.steps), device=device))

    return run_stage(draft, stage, folder, stage.chunks * context, loss_at, lambda: measure(target, draft, texts))
