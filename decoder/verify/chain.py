"""Pieces that chain verifiers share: which positions are real, the leading run, q, the residual, the last draw."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decoder.types import Draft, RandomSource, Verdict


def real_positions(counts: Sequence[int], width: int, device: torch.device) -> Tensor:
    """[B, K] bool: True where a row really drafted a token."""
    return torch.arange(width, device=device) < torch.tensor(counts, device=device)[:, None]


def leading_run(passed: Tensor) -> Tensor:
    """Length of the run of True at the start of each row: [B, K] -> [B]."""
    return passed.long().cumprod(-1).sum(-1)


def one_hot(tokens: Tensor, like: Tensor) -> Tensor:
    """All probability on these tokens: tokens [...], like [..., V] -> [..., V], of like's type."""
    found = like.new_zeros(*tokens.shape, like.shape[-1])
    return found.scatter_(-1, tokens.to(like.device).unsqueeze(-1), 1.0)


def draft_law(draft: Draft, like: Tensor) -> Tensor:
    """q [B, K, V]: the distribution given, or one-hot for a deterministic proposal."""
    if draft.probs is not None:
        return draft.probs.to(device=like.device, dtype=like.dtype)
    return one_hot(draft.tokens, like)


def at_drafted(p: Tensor, draft: Draft) -> tuple[Tensor, Tensor, Tensor]:
    """p [B, K+1, V] -> q [B, K, V], and p(x), q(x) [B, K] at the drafted tokens."""
    tokens = draft.tokens.to(p.device)  # [B, K]
    q = draft_law(draft, p)
    return q, at_tokens(p[:, :-1], tokens), at_tokens(q, tokens)


def at_tokens(probs: Tensor, tokens: Tensor) -> Tensor:
    """probs [B, K, V] at tokens [B, K] -> [B, K]."""
    return probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def rows_at(probs: Tensor, index: Tensor) -> Tensor:
    """One position of each row: probs [B, n, V], index [B] -> [B, V]."""
    first = torch.arange(0, probs.shape[0] * probs.shape[1], probs.shape[1], device=probs.device)  # of each row
    return probs.flatten(0, 1).index_select(0, first + index)


def draw_one(law: Tensor, random: RandomSource, starts: Sequence[int]) -> Tensor:
    """One token of each row's distribution [B, V] -> [B]."""
    return random.draw(law.unsqueeze(1), starts, [1] * len(starts)).squeeze(1)


def undrafted(p: Tensor, random: RandomSource, starts: Sequence[int]) -> Verdict:
    """The verdict on an empty draft: y ~ p [B, 1, V]."""
    y = draw_one(p[:, 0], random, starts)
    return Verdict(torch.zeros_like(y), y)


def residual(p: Tensor, q: Tensor, scale: Tensor | None = None) -> Tensor:
    """normalise((scale p - q)+) over the last axis; p itself where rounding leaves no residual mass."""
    scaled = p if scale is None else scale.unsqueeze(-1) * p
    rest = (scaled - q).clamp_(min=0.0)
    mass = rest.sum(-1, keepdim=True)
    return torch.where(mass > 0, rest / mass.clamp(min=torch.finfo(rest.dtype).tiny), p)
