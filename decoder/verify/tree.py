"""Verification of trees: which path of a tree the target keeps.

Match: the target speaks after the last committed token, then after each node it agrees with, and the child that says
the same is followed. Exact for every draft; natural where children are functions of the past.

Recursive rejection (SpecInfer, Miao et al. 2023, arXiv 2305.09781, algorithm 2): the children of a node are tried in
order against what the target has left. With r = p at the node and q_j the distribution that child x_j was *really*
drawn from, given its elder siblings,

    accept x_j with probability min(1, r(x_j) / q_j(x_j)), and go on below it;   else r <- (r - q_j)+ normalised,

and y ~ r once all have failed. Each step is token verification with r for p, so it is exact whatever the q_j are: drawn
without replacement (q_j is q without the elder siblings, renormalised), with replacement (q itself), or one-hot for a
child that is a function of the past.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from decoder.trees import Tree
from decoder.types import Draft, RandomSource, Verdict
from decoder.verify.chain import at_tokens, draft_law, draw_one, residual, rows_at

Speak = Callable[[list[int], list[bool], list[int]], list[int]]  # (nodes, which rows walk on, depths) -> tokens


def tree_of(draft: Draft) -> Tree:
    assert draft.tree is not None, "a chain has a verdict of its own"
    return draft.tree


def _verdict(paths: list[list[int]], y: Tensor) -> Verdict:
    accepted = torch.tensor([len(path) for path in paths], device=y.device)
    return Verdict(accepted, y, paths=paths)


def _follow(draft: Draft, speak: Speak, device: torch.device) -> Verdict:
    """Walk down while a child says what the target says."""
    parents, tokens = tree_of(draft).parents, draft.tokens.tolist()
    rows = range(len(tokens))
    paths: list[list[int]] = [[] for _ in rows]
    at, last, walks = [-1 for _ in rows], [0 for _ in rows], [True for _ in rows]
    while any(walks):
        said = speak(at, walks, [len(path) for path in paths])
        for b in (b for b in rows if walks[b]):
            last[b] = said[b]
            nodes = range(at[b] + 1, draft.counts[b])
            child = next((i for i in nodes if parents[b][i] == at[b] and tokens[b][i] == said[b]), None)
            if child is None:
                walks[b] = False
            else:
                at[b] = child
                paths[b].append(child)
    return _verdict(paths, torch.tensor(last, device=device))


def match_greedily(spoken: Tensor, draft: Draft) -> Verdict:
    """spoken [B, K+1]: what the target says after the last committed token and after each node."""
    words = spoken.tolist()
    return _follow(draft, lambda at, *_: [row[node + 1] for row, node in zip(words, at, strict=True)], spoken.device)


def match_sampled(p: Tensor, draft: Draft, random: RandomSource, starts: Sequence[int]) -> Verdict:
    """p [B, K+1, V]; one draw for each step down, at the position the token would take."""

    def speak(at: list[int], walks: list[bool], depths: list[int]) -> list[int]:
        law = _after(p, at)
        places = [start + depth for start, depth in zip(starts, depths, strict=True)]
        drawn: list[int] = random.draw(law.unsqueeze(1), places, list(map(int, walks))).squeeze(1).tolist()
        return drawn

    return _follow(draft, speak, p.device)


def _after(p: Tensor, nodes: Sequence[int]) -> Tensor:
    """[B, V] after one node of each row; -1: after the root."""
    return rows_at(p, torch.tensor(nodes, device=p.device) + 1)


def reject_recursively(p: Tensor, draft: Draft, random: RandomSource, starts: Sequence[int]) -> Verdict:
    """p [B, K+1, V]. Children stand after their elder siblings, so one pass over the nodes tries each in its turn."""
    parents, tokens = tree_of(draft).parents, draft.tokens.to(p.device)
    rows = range(p.shape[0])
    q = draft_law(draft, p)  # [B, K, V]
    at, paths = [-1 for _ in rows], [[] for _ in rows]  # type: list[int], list[list[int]]
    left = p[:, 0]  # r [B, V]
    for i in range(tokens.shape[1]):
        tried = [i < draft.counts[b] and parents[b][i] == at[b] for b in rows]
        if not any(tried):
            continue
        r_x, q_x = at_tokens(left.unsqueeze(1), tokens[:, i : i + 1]), at_tokens(q[:, i : i + 1], tokens[:, i : i + 1])
        accepted = random.accept(r_x, q_x, list(map(int, tried))).squeeze(1).tolist()  # [B]
        rest = residual(left, q[:, i])
        for b in (b for b in rows if tried[b] and accepted[b]):
            at[b] = i
            paths[b].append(i)
        below = torch.tensor([bool(t and a) for t, a in zip(tried, accepted, strict=True)], device=p.device)
        failed = torch.tensor([bool(t and not a) for t, a in zip(tried, accepted, strict=True)], device=p.device)
        left = torch.where(below[:, None], p[:, i + 1], torch.where(failed[:, None], rest, left))
    places = [start + len(path) for start, path in zip(starts, paths, strict=True)]
    return _verdict(paths, draw_one(left, random, places))
