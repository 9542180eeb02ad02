"""What one forward of a model costs as a function of the tokens it is fed: t(m) = fixed_s + m * per_token_s.

Measured through the model's own session, as the loop uses it: m tokens after a prompt, provisionally, again and again
at the same positions. The line is a least-squares fit; the table is what was measured, and the two are shown together
because t(m) often has a step where another matrix kernel takes over. Widths are measured in turn, so that a slow
moment hits all.

`round_cost` times the bare forwards of two models in the order of a round instead: a small draft that finds its weights
in the processor's caches when it runs alone finds them swept by the target in a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from decoder.checks import at_least
from decoder.drafters.model import Openable
from decoder.measure.statistics import Spread, median, spread
from decoder.measure.timing import synchronise

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class ForwardCost:
    """Seconds of one forward of m tokens after `context` tokens.

    table: m -> median and quartiles.  fixed_s, per_token_s: the least-squares line through the medians.
    worst_residual: the largest distance of a median from the line, as a share of the median.
    """

    context: int
    table: Mapping[int, Spread]
    fixed_s: float
    per_token_s: float
    worst_residual: float

    def seconds(self, m: float) -> float:
        """t(m): measured, interpolated between measured widths, along the line beyond the widest."""
        widths = sorted(self.table)
        if m >= widths[-1]:
            return self.table[widths[-1]].median + max(0.0, self.per_token_s) * (m - widths[-1])
        for low, high in pairwise(widths):
            if m <= high:
                share = max(0.0, (m - low) / (high - low))
                return self.table[low].median + share * (self.table[high].median - self.table[low].median)
        return self.table[widths[0]].median

    def to_dict(self) -> dict[str, Any]:
        return {
            "context": self.context,
            "fixed_s": self.fixed_s,
            "per_token_s": self.per_token_s,
            "worst_residual": self.worst_residual,
            "forward_s": {
                str(m): {"median": each.median, "lower": each.lower, "upper": each.upper, "runs": each.count}
                for m, each in self.table.items()
            },
        }


def line(points: Mapping[int, float]) -> tuple[float, float]:
    """(intercept, slope) of the least-squares line through (m, seconds); a single point is all intercept."""
    count = len(points)
    mean_m, mean_s = sum(points) / count, sum(points.values()) / count
    variance = sum((m - mean_m) ** 2 for m in points)
    if variance == 0:
        return mean_s, 0.0
    slope = sum((m - mean_m) * (s - mean_s) for m, s in points.items()) / variance
    return mean_s - slope * mean_m, slope


def cost_of(context: int, seconds: Mapping[int, Sequence[float]]) -> ForwardCost:
    """Fold timings m -> seconds into a `ForwardCost`."""
    table = {m: spread(values) for m, values in sorted(seconds.items())}
    fixed, slope = line({m: each.median for m, each in table.items()})
    worst = max(abs(each.median - fixed - slope * m) / each.median for m, each in table.items())
    return ForwardCost(context, table, fixed, slope, worst)


def forward_cost(
    model: Openable, prompt: Sequence[int], *, widths: Sequence[int] = WIDTHS, repeats: int = 9
) -> ForwardCost:
    """Time forwards of `widths` tokens after the prompt; widths that do not fit the model's context are left out.

    Raises:
        ValueError: no width fits behind the prompt, or counts out of range.
    """
    room = model.context_length
    fitting = [m for m in sorted(set(widths)) if m >= 1 and (room is None or len(prompt) + m <= room)]
    if not fitting:
        raise ValueError(
            f"widths={tuple(widths)} leave no room behind a prompt of {len(prompt)} tokens in a context of {room}; "
            "give a shorter prompt or widths >= 1."
        )
    seconds: dict[int, list[float]] = {m: [] for m in fitting}
    with torch.inference_mode():
        forward = _timed_forwards(model, prompt, fitting[-1])
        for turn in range(at_least("repeats", repeats, 1, "9 give a steady median.") + 1):
            for m in fitting:
                spent_s = forward(m)
                if turn > 0:  # the first turn warms up
                    seconds[m].append(spent_s)
    return cost_of(len(prompt), seconds)


def _timed_forwards(model: Openable, prompt: Sequence[int], most: int) -> Callable[[int], float]:
    """m -> seconds of a forward of m tokens, at most `most`, behind the prompt, which is read here."""
    device = torch.device(model.device)
    session = model.open(1, len(prompt) + most)
    session.feed(torch.tensor([list(prompt)]), [0], [len(prompt) - 1])
    session.commit([len(prompt)])
    fed = torch.tensor([[prompt[i % len(prompt)] for i in range(most)]])  # [1, most]

    def forward(m: int) -> float:
        synchronise(device)
        began = time.perf_counter()
        session.feed(fed[:, :m], [len(prompt)])
        synchronise(device)
        return time.perf_counter() - began

    return forward


@dataclass(frozen=True)
class RoundCost:
    """Bare forwards in the order of a round: medians, in seconds.

    plain_s: the target on one token.  draft_s: the draft on one token, the mean of the k of a round.
    verify_s: the target on k + 1 tokens, after them.
    """

    k: int
    plain_s: float
    draft_s: float
    verify_s: float


def round_cost(target: Openable, draft: Openable, prompt: Sequence[int], k: int, *, repeats: int = 15) -> RoundCost:
    """Time one plain forward, k of the draft and a verification, `repeats` times over after a warm-up.

    Raises:
        ValueError: `repeats` below 1.
    """
    turns: list[tuple[float, float, float]] = []
    with torch.inference_mode():
        verifying, drafting = _timed_forwards(target, prompt, k + 1), _timed_forwards(draft, prompt, 1)
        for _ in range(at_least("repeats", repeats, 1, "9 give a steady median.") + 1):
            plain_s = verifying(1)
            draft_s = sum(drafting(1) for _ in range(k)) / k
            turns.append((plain_s, draft_s, verifying(k + 1)))
    plain, drafts, verify = zip(*turns[1:], strict=True)
    return RoundCost(k, median(plain), median(drafts), median(verify))
