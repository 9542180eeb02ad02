"""L5: training-time test: a head run for several steps on its own outputs, all positions of a text at once.

Drafting from position a, the head reads the target's features up to a, then its own outputs at a + 1, a + 2, ...
(EAGLE-3, arXiv 2503.01840; HASS, arXiv 2408.15766). Step s of the unrolled run does that for every a in parallel: at
position i = a + s - 1 the query sees

    the keys of step 1 at 0 ... a,  the keys of step r at a + r - 1 for r = 2 ... s,

that is, one lower triangle that shrinks by one each step, and s - 1 diagonals.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from decoder.heads.eagle import FeatureHead


class UnrolledAttention:
    """Keys and values of all steps so far. `first` is the position at which the queries of step 1 begin."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._triangle: tuple[Tensor, Tensor] | None = None  # step 1: [B, H, N, D]
        self._diagonals: list[tuple[Tensor, Tensor]] = []  # step r: [B, H, N - first - r + 1, D]

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of the next step's queries [B, heads, W, D], whose own keys and values come along."""
        if self._triangle is None:
            self._triangle = (keys, values)
        else:
            self._diagonals.append((keys, values))
        width, size = queries.shape[2:]
        groups = queries.shape[1] // keys.shape[1]
        grouped = queries.reshape(-1, keys.shape[1], groups, width, size) * size**-0.5  # [B, H, G, W, D]
        all_keys, all_values = self._triangle
        scores = grouped @ all_keys[:, :, None].transpose(-1, -2)  # [B, H, G, W, N]
        rows = torch.arange(width, device=queries.device)[:, None] + self._first
        unseen = torch.arange(all_keys.shape[2], device=queries.device) > rows  # row w of step s has a = first + w
        columns = [scores.masked_fill(unseen, -torch.inf)]
        columns += [(grouped * held[:, :, None, :width]).sum(-1, keepdim=True) for held, _ in self._diagonals]
        weights = torch.softmax(torch.cat(columns, dim=-1).float(), dim=-1).to(values.dtype)
        out = weights[..., : all_keys.shape[2]] @ all_values[:, :, None]
        for place, (_, held) in enumerate(self._diagonals):
            out = out + weights[..., all_keys.shape[2] + place, None] * held[:, :, None, :width]
        return out.flatten(1, 2)


def unrolled(head: FeatureHead, tokens: Tensor, states: Tensor, steps: int, first: int = 0) -> Iterator[Tensor]:
    """g of step s = 1, 2, ... at positions first + s - 1 ... L - 2: [B, L - 1 - first - (s - 1), hidden].

    tokens: [B, L], padded on the right.  states: [B, L or L - 1, n * hidden], the target's.
    At position i the head has read tokens up to i + 1; its logits are about token i + 2.
    """
    count = tokens.shape[1] - 1
    positions = torch.arange(count, device=tokens.device)[None]
    embedded = head.embed(tokens[:, 1:])
    features = head.features(states[:, :count])
    attend = UnrolledAttention(first)
    turn = head.turn(positions)
    for step in range(min(steps, count - first)):
        begin = first + step
        if step == 0:  # keys for every position, queries from `first` on
            read, stream = head.enter(embedded, features)
            keys, values = head.attention.keys_and_values(read, turn)
            read, stream = read[:, begin:], stream[:, begin:]
        else:
            read, stream = head.enter(embedded[:, begin:], features)
            keys, values = head.attention.keys_and_values(read, _from(turn, begin))
        queries = head.attention.queries(read, _from(turn, begin))
        out = head.leave(head.attention.output(attend(queries, keys, values)), stream)
        yield out
        features = out[:, :-1]


def _from(turn: tuple[Tensor, Tensor], begin: int) -> tuple[Tensor, Tensor]:
    return turn[0][:, begin:], turn[1][:, begin:]
