"""L1: block verification (Sun et al. 2024, arXiv 2403.10444, algorithm 2).

The block is accepted as a whole as far as possible, which keeps the law and never accepts fewer tokens on average
than token verification. With P_0 = 1, P_i = min(P_{i-1} p_i(x_i) / q_i(x_i), 1) and
s_i = sum_v (P_i p_{i+1}(v) - q_{i+1}(v))+, position i passes with probability h_i = s_i / (s_i + 1 - P_i), h_k = P_k;
tau is the *last* i that passes, and the next token follows (P_tau p - q)+ normalised, or p after tau = k.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decoder.types import Draft, RandomSource, Verdict
from decoder.verify.chain import at_tokens, draft_law, real_positions, residual, rows_at


def running_ratio(p_x: Tensor, q_x: Tensor) -> Tensor:
    """P_0 ... P_K from p(x), q(x) [B, K] -> [B, K+1]."""
    ratios = [p_x.new_ones(p_x.shape[0])]
    for i in range(p_x.shape[1]):
        ratios.append((ratios[-1] * p_x[:, i] / q_x[:, i]).clamp(max=1.0))
    return torch.stack(ratios, dim=1)


class BlockVerifier:
    """Drafted tokens are judged together. Lossless."""

    name = "block"
    lossless = True

    def __call__(self, p: Tensor, draft: Draft, random: RandomSource, starts: Sequence[int]) -> Verdict:
        """p [B, K+1, V]; `starts[b]` is the sequence index of row b's first drafted token."""
        tokens = draft.tokens.to(p.device)  # [B, K]
        width = tokens.shape[1]
        q = draft_law(draft, p)  # [B, K, V]
        real = real_positions(draft.counts, width, p.device)
        p_x = at_tokens(p[:, :width], tokens)
        q_x = at_tokens(q, tokens).masked_fill(~real, 1.0)  # padding must not divide by zero
        ratio = running_ratio(p_x, q_x)  # [B, K+1]
        counts = torch.tensor(draft.counts, device=p.device)  # [B]

        # s_i needs the next position's q; at a row's last drafted token the test is P_k itself.
        q_next = torch.cat([q[:, 1:], torch.zeros_like(p[:, :1])], dim=1)  # [B, K, V]
        surplus = (ratio[:, 1:, None] * p[:, 1:] - q_next).clamp_(min=0.0).sum(-1)  # [B, K]
        last = torch.arange(1, width + 1, device=p.device) == counts[:, None]
        numerator = torch.where(last, ratio[:, 1:], surplus)
        denominator = torch.where(last, torch.ones_like(surplus), surplus + 1.0 - ratio[:, 1:])
        certain = denominator <= 0.0  # P_i = 1 and no surplus: rejecting here would change nothing
        passed = random.accept(numerator.masked_fill(certain, 1.0), denominator.masked_fill(certain, 1.0), draft.counts)
        position = torch.arange(width + 1, device=p.device)
        passed = torch.cat([torch.ones_like(counts[:, None], dtype=torch.bool), passed & real], dim=1)  # [B, K+1]
        tau = (position * passed).amax(-1)  # [B]: the last that passed, no break at a failure

        q_all = torch.cat([q, torch.zeros_like(p[:, :1])], dim=1)
        full = tau == counts
        q_tau = rows_at(q_all, tau).masked_fill(full[:, None], 0.0)
        scale = ratio.gather(1, tau[:, None]).squeeze(1).masked_fill(full, 1.0)
        law = residual(rows_at(p, tau), q_tau, scale)  # [B, V]
        y = random.draw(law.unsqueeze(1), starts, [1] * len(starts)).squeeze(1)
        return Verdict(tau, y, (p_x / q_x).clamp(max=1.0))
