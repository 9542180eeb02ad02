"""Match verification: the target speaks at every position, and a drafted token stays while it says the same.

y_i ~ p_i (the argmax when greedy); keep while y_i = x_i; emit y at the first mismatch, or after the block. Exact for
every draft, and the natural rule when the proposal is a function of the past (n-gram, greedy draft).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from decoder.types import Draft, RandomSource, Verdict
from decoder.verify.chain import at_tokens, leading_run, real_positions
from decoder.verify.tree import match_greedily, match_sampled


def compare(spoken: Tensor, draft: Draft) -> Verdict:
    """spoken [B, K+1]: what the target says after the context and after each drafted token."""
    tokens = draft.tokens.to(spoken.device)  # [B, K]
    width = tokens.shape[1]
    if width == 0:
        return Verdict(torch.zeros_like(spoken[:, 0]), spoken[:, 0])
    agrees = spoken[:, :width] == tokens
    if min(draft.counts) < width:
        agrees &= real_positions(draft.counts, width, spoken.device)
    accepted = leading_run(agrees)
    return Verdict(accepted, spoken.gather(1, accepted[:, None]).squeeze(1))


class MatchVerifier:
    """Sampled match. Lossless."""

    name = "match"
    lossless = True
    trees = True

    def __call__(self, p: Tensor, draft: Draft, random: RandomSource, starts: Sequence[int]) -> Verdict:
        """p [B, K+1, V]; `starts[b]` is the sequence index of row b's first drafted token."""
        if draft.tree is not None:
            return match_sampled(p, draft, random, starts)
        verdict = compare(random.draw(p, starts, [count + 1 for count in draft.counts]), draft)
        if draft.tokens.shape[1] == 0 or random.coupled:  # shared noise: passes more often than p(x)
            return verdict
        overlap = at_tokens(p[:, :-1], draft.tokens.to(p.device))  # deterministic draft: passes with chance p(x)
        return Verdict(verdict.accepted, verdict.next_tokens, overlap)


class GreedyVerifier:
    """The limit T = 0: takes scores instead of probabilities. Lossless."""

    name = "match"
    lossless = True
    trees = True

    def __call__(self, p: Tensor, draft: Draft, random: RandomSource, starts: Sequence[int]) -> Verdict:
        """`p` may be any scores [B, K+1, V]; only their order matters."""
        spoken = p.max(-1).indices  # the first of equals, like argmax, at half its time on a CPU
        return compare(spoken, draft) if draft.tree is None else match_greedily(spoken, draft)


def match_in_order(
    scores_at: Callable[[int, list[int]], Tensor],
    choose: Callable[[Tensor], int],
    drafted: Sequence[int],
    ends: Callable[[list[int]], bool],
) -> list[int]:
    """Match one row position by position, for processors that keep state.

    `scores_at(i, emitted)` processes position i after the tokens emitted this round and is called once per committed
    prefix, in order; `choose` takes a token from scores [1, V]; `ends(emitted)` says whether the text stops there.
    Returns the tokens emitted.
    """
    emitted: list[int] = []
    for i in range(len(drafted) + 1):
        emitted.append(choose(scores_at(i, emitted)))
        if ends(emitted) or i == len(drafted) or emitted[-1] != drafted[i]:
            break
    return emitted
