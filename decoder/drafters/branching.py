"""Drawing siblings without replacement, and truthfully: for drafters that sample trees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decoder.types import RandomSource


def draw_children(
    q: Tensor, wanted: Sequence[int], random: RandomSource, starts: Sequence[int]
) -> tuple[Tensor, Tensor, list[int]]:
    """Up to wanted[b] different tokens from q [B, V] -> tokens [B, n], laws [B, n, V], how many of each row are real.

    laws are what each token was really drawn from, the elder siblings taken out and the rest renormalised: the `probs`
    of these nodes. There are fewer than wanted where q has no more tokens, which is known before any is drawn.
    starts: the index in each row's sequence that the tokens would take.
    """
    counts = [min(n, have) for n, have in zip(wanted, (q > 0).sum(-1).tolist(), strict=True)]
    left, tokens, laws = q, [], []
    for i in range(max(counts, default=0)):
        token = random.draw(left.unsqueeze(1), starts, [int(i < n) for n in counts])  # [B, 1]
        tokens.append(token)
        laws.append(left)
        left = left.scatter(-1, token, 0.0)
        mass = left.sum(-1, keepdim=True)
        left = torch.where(mass > 0, left / mass.clamp(min=torch.finfo(q.dtype).tiny), q)
    if not tokens:
        return torch.zeros(len(q), 0, dtype=torch.long, device=q.device), q.new_zeros(len(q), 0, q.shape[-1]), counts
    return torch.cat(tokens, dim=1), torch.stack(laws, dim=1), counts
