"""Token verification (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318).

Accept x with probability min(1, p(x)/q(x)); at the first rejection emit y ~ (p - q)+ / sum (p - q)+; after
full acceptance emit y ~ p at the next position.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decoder.types import Draft, RandomSource, Verdict
from decoder.verify.chain import at_drafted, draw_one, leading_run, real_positions, residual, rows_at, undrafted
from decoder.verify.tree import reject_recursively


class TokenVerifier:
    """Each drafted token stands or falls by itself; in a tree, after its elder siblings (`verify.tree`). Lossless."""

    name = "token"
    lossless = True
    trees = True

    def __call__(self, p: Tensor, draft: Draft, random: RandomSource, starts: Sequence[int]) -> Verdict:
        """p [B, K+1, V]; `starts[b]` is the sequence index of row b's first drafted token."""
        width = draft.tokens.shape[1]
        if width == 0:
            return undrafted(p, random, starts)
        if draft.tree is not None:
            return reject_recursively(p, draft, random, starts)
        q, p_x, q_x = at_drafted(p, draft)  # [B, K, V], [B, K], [B, K]
        real = real_positions(draft.counts, width, p.device)
        accepted = leading_run(random.accept(p_x, q_x, draft.counts) & real)  # [B]
        bonus = accepted == torch.tensor(draft.counts, device=p.device)
        # q = 0 turns the bonus position's residual into p, so one draw serves both cases.
        q_next = rows_at(q, accepted.clamp(max=width - 1)).masked_fill(bonus[:, None], 0.0)
        law = residual(rows_at(p, accepted), q_next)  # [B, V]
        return Verdict(accepted, draw_one(law, random, starts), (p_x / q_x).clamp(max=1.0))
