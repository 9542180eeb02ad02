"""Block verification (Sun et al. 2024, arXiv 2403.10444, algorithm 2).

The block is accepted as a whole as far as possible, which keeps the output distribution and never accepts fewer tokens
on average than token verification. With P_0 = 1, P_i = min(P_{i-1} p_i(x_i) / q_i(x_i), 1) and
s_i = sum_v (P_i p_{i+1}(v) - q_{i+1}(v))+, position i passes with probability h_i = s_i / (s_i + 1 - P_i), h_k = P_k;
tau is the *last* i that passes, and the next token follows (P_tau p - q)+ normalised, or p after tau = k.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decoder.types import Draft, RandomSource, Verdict
from decoder.verify.chain import at_drafted, draw_one, residual, rows_at, undrafted


def running_ratio(p_x: Tensor, q_x: Tensor) -> Tensor:
    """P_0 ... P_K from p(x), q(x) [B, K] -> [B, K+1]."""
    ratios = [p_x.new_ones(p_x.shape[0])]
    for p_i, q_i in zip(p_x.unbind(1), q_x.unbind(1), strict=True):
        ratios.append((ratios[-1] * p_i / q_i).clamp_(max=1.0))
    return torch.stack(ratios, dim=1)


def pass_odds(p: Tensor, q: Tensor, ratio: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Numerators and denominators [B, K] of h_1 ... h_K; `last` marks each row's last drafted token.

    s_i needs the q after it, which the last drafted token does not have: the test there is P_k itself.
    """
    survived = ratio[:, 1:]  # P_1 ... P_K
    surplus = (survived[:, :-1, None] * p[:, 1:-1] - q[:, 1:]).clamp_(min=0.0).sum(-1)  # [B, K-1]
    surplus = torch.nn.functional.pad(surplus, (0, 1))
    above = torch.where(last, survived, surplus)
    below = torch.where(last, 1.0, surplus + 1.0 - survived)
    certain = below <= 0.0  # P_i = 1 and no surplus: rejecting here would change nothing
    return above.masked_fill_(certain, 1.0), below.masked_fill_(certain, 1.0)


class BlockVerifier:
    """Drafted tokens are judged together. Lossless."""

    name = "block"
    lossless = True

    def __call__(self, p: Tensor, draft: Draft, random: RandomSource, starts: Sequence[int]) -> Verdict:
        """p [B, K+1, V]; `starts[b]` is the sequence index of row b's first drafted token."""
        width = draft.tokens.shape[1]
        if width == 0:
            return undrafted(p, random, starts)
        q, p_x, q_x = at_drafted(p, draft)  # [B, K, V], [B, K], [B, K]
        counts = torch.tensor(draft.counts, device=p.device)  # [B]
        position = torch.arange(1, width + 1, device=p.device)
        padding = position > counts[:, None]  # [B, K]
        q_x.masked_fill_(padding, 1.0)  # padding must not divide by zero
        ratio = running_ratio(p_x, q_x)  # [B, K+1]
        above, below = pass_odds(p, q, ratio, position == counts[:, None])
        passed = random.accept(above, below, draft.counts) & ~padding
        tau = (position * passed).amax(-1)  # [B]: the last that passed, no break at a failure

        full = tau == counts
        q_tau = rows_at(q, tau.clamp(max=width - 1)).masked_fill_(full[:, None], 0.0)
        scale = ratio.gather(1, tau[:, None]).squeeze(1).masked_fill_(full, 1.0)
        law = residual(rows_at(p, tau), q_tau, scale)  # [B, V]
        return Verdict(tau, draw_one(law, random, starts), (p_x / q_x).clamp_(max=1.0))
