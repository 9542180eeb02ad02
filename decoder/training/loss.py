"""L5: what a head is trained for, and how well it does on held-out texts.

p is the target's distribution with its mass outside the reduced vocabulary left out, not rescaled: what the head cannot
propose, it should not be blamed for nor invent.

    kl   -sum p log q           (its gradient is that of KL where the vocabulary is whole)
    tv   1 - sum min(p, q)      one minus the chance that a token drawn from q is accepted (arXiv 2211.17192)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from decoder.heads.eagle import FeatureHead
from decoder.training.teacher import Lesson
from decoder.training.texts import Batch
from decoder.training.unroll import unrolled

LOSSES = ("kl", "tv")


def target_probs(rows: Tensor, lesson: Lesson, first: int) -> Tensor:
    """p after the tokens at positions first + 1 ... L - 1, over the head's ids: [B, L - 1 - first, outputs].

    rows: the target's output matrix at these ids [outputs, hidden].
    """
    logits = F.linear(lesson.final[:, first + 1 :].to(rows.dtype), rows).float()
    return logits.sub_(lesson.normaliser[:, first + 1 :, None]).exp_()


def step_loss(logits: Tensor, p: Tensor, kind: str) -> Tensor:
    """[B, W]: the loss at each position; logits and p [B, W, outputs]."""
    if kind == "kl":
        return F.cross_entropy(logits.float().transpose(1, 2), p.transpose(1, 2), reduction="none")
    q = torch.softmax(logits.float(), -1)
    return 1 - torch.minimum(p, q).sum(-1)


@dataclass(frozen=True)
class Tally:
    """Sums over positions of one or several texts.

    positions: that were tested.  reached[d]: of them, those whose d first greedy guesses were right (reached[0] all).
    overlap[d]: the sum of sum min(p, q) at depth d + 1.  covered: positions whose choice the head can propose.
    """

    positions: int
    reached: tuple[int, ...]
    overlap: tuple[float, ...]
    covered: int

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.positions + other.positions,
            tuple(a + b for a, b in zip(self.reached, other.reached, strict=True)),
            tuple(a + b for a, b in zip(self.overlap, other.overlap, strict=True)),
            self.covered + other.covered,
        )

    @property
    def acceptance(self) -> tuple[float, ...]:
        """Of the greedy guesses at depth 1, 2, ... whose predecessors were right, the share that is right."""
        return tuple(b / a if a else 0.0 for a, b in zip(self.reached, self.reached[1:], strict=False))

    @property
    def mean_overlap(self) -> tuple[float, ...]:
        """sum min(p, q) at temperature 1, at each depth."""
        return tuple(each / max(1, self.positions) for each in self.overlap)

    @property
    def tokens_per_round(self) -> float:
        """1 + accepted, for greedy chains of the full depth."""
        return 1 + sum(self.reached[1:]) / max(1, self.positions)


@torch.no_grad()
def tally(head: FeatureHead, rows: Tensor, batch: Batch, lesson: Lesson, depth: int) -> Tally:
    """Held-out acceptance where the text follows the target's greedy choice: drafts are compared with that choice.

    Position i starts a chain only where the tokens of the text i + 2 ... are the target's choices as deep as the chain
    is followed, since only there does the teacher-forced text tell what drafting would meet.
    """
    device = lesson.final.device
    first, width = batch.first, batch.tokens.shape[1]
    learn, tokens = batch.learn.to(device), batch.tokens.to(device)
    p = target_probs(rows, lesson, first)
    chosen = lesson.choice
    usable = width - 2 - first - (depth - 1)  # anchors whose deepest token is in the text
    if usable <= 0:
        return Tally(0, (0,) * (depth + 1), (0.0,) * depth, 0)
    anchors = torch.arange(first, first + usable, device=device)
    deepest = learn[:, anchors + 2] & learn[:, anchors + 1 + depth]
    greedy = deepest.clone()
    for d in range(depth - 1):  # the chain goes on through token i + 2 + d, so that must be the target's choice
        greedy &= tokens[:, anchors + 2 + d] == chosen[:, anchors + 1 + d]
    reached, overlaps = [int(greedy.sum())], []
    alive = greedy
    for d, hidden in enumerate(unrolled(head, tokens, lesson.states, depth, first)):
        logits = head.logits(hidden[:, :usable]).float()  # row w: position first + w + d, about token first + w + d + 2
        guess = head.draft_ids[logits.argmax(-1)]
        alive = alive & (guess == chosen[:, anchors + 1 + d])
        reached.append(int(alive.sum()))
        overlap = torch.minimum(p[:, d : d + usable], torch.softmax(logits, -1)).sum(-1)
        overlaps.append(float((overlap * greedy).sum()))
    covered = int((torch.isin(chosen[:, anchors + 1], head.draft_ids) & greedy).sum())
    return Tally(reached[0], tuple(reached), tuple(overlaps), covered)


def unrolled_loss(
    head: FeatureHead, rows: Tensor, batch: Batch, lesson: Lesson, weights: Sequence[float], kind: str
) -> Tensor:
    """The mean over positions of the loss at steps 1, 2, ..., weighted: a scalar."""
    device = lesson.final.device
    first = batch.first
    p = target_probs(rows, lesson, first)
    learn = batch.learn.to(device)[:, first + 2 :].float()  # of token first + w + 2
    total = torch.zeros((), device=device)
    steps = unrolled(head, batch.tokens.to(device), lesson.states, len(weights), first)
    for step, hidden in enumerate(steps):
        mask = learn[:, step:]
        width = mask.shape[1]
        each = step_loss(head.logits(hidden[:, :width]), p[:, step : step + width], kind)
        total = total + weights[step] * (each * mask).sum() / mask.sum().clamp_min(1)
    return total / sum(weights)
