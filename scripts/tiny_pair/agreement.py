"""How often the target would accept the draft: alpha = sum of min(p, q), teacher-forced."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from transformers import LlamaForCausalLM

from .continuation import continue_prompts, prompts_from


@dataclass(frozen=True)
class Continuations:
    """Rows (n, prompt + new) that the target wrote after held-out prompts at temperature 1 and greedily."""

    sampled: torch.Tensor
    greedy: torch.Tensor
    prompt_length: int


@dataclass(frozen=True)
class Agreement:
    """alpha: mean over positions of sum min(p, q) at temperature 1; same_choice: share of equal most probable tokens.

    They are the acceptance rates of speculative sampling (arXiv 2211.17192) at temperature 1 and 0, position by
    position on the given text.
    """

    alpha: float
    same_choice: float


def held_out_continuations(
    target: LlamaForCausalLM, heldout: np.ndarray, count: int, prompt_length: int, new_tokens: int, seed: int
) -> Continuations:
    """Let the target continue `count` prompts from the held-out stream, once at temperature 1 and once greedily."""
    generator = torch.Generator().manual_seed(seed)
    prompts = prompts_from(heldout, count, prompt_length, seed)
    sampled = continue_prompts(target, prompts, new_tokens, 1.0, generator)
    return Continuations(sampled, continue_prompts(target, prompts, new_tokens, 0.0, generator), prompt_length)


@torch.no_grad()
def measure_agreement(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, rows: torch.Tensor, prompt_length: int, batch: int = 16
) -> Agreement:
    """Compare both models on rows (n, length) at every position that predicts a token after the prompt."""
    device = next(target.parameters()).device
    overlap = same = count = 0.0
    for part in rows.split(batch):
        inputs = part[:, :-1].to(device)
        p, q = (m(input_ids=inputs, use_cache=False).logits[:, prompt_length - 1 :].float() for m in (target, draft))
        overlap += float(torch.minimum(p.softmax(-1), q.softmax(-1)).sum(dtype=torch.float64))
        same += float((p.argmax(-1) == q.argmax(-1)).sum())
        count += p.shape[0] * p.shape[1]
    return Agreement(overlap / count, same / count)
