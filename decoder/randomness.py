"""L1: the source of every random choice, one stream a row.

A row's stream depends on the seed and the row's own number only, so a row's text does not change
with its neighbours. Tokens are drawn by inverting the cumulative distribution in float64: one uniform a
token, and a token of probability zero can never come out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_BLOCK = 256
_MIX = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: spreads consecutive row numbers over the seed space


def fresh_seed() -> int:
    """A seed taken from torch's global generator, so that `torch.manual_seed` governs unseeded runs."""
    return int(torch.randint(0, 2**62, (1,)).item())


def invert_cdf(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Tokens [...] whose cumulative interval holds the uniforms [...] in [0, 1); probs [..., V]."""
    wide = torch.float32 if probs.device.type == "mps" else torch.float64
    cdf = probs.to(wide).cumsum(-1)
    total = cdf[..., -1:]
    below = torch.nextafter(total, torch.zeros_like(total))
    point = torch.minimum(uniforms.to(wide).unsqueeze(-1) * total, below)
    found = torch.searchsorted(cdf, point.contiguous(), right=True).squeeze(-1)
    return found.clamp_(max=probs.shape[-1] - 1)  # only NaN rows reach the clamp; the loop reports those


class RowStream:
    """One row's uniforms in [0, 1), generated in blocks."""

    def __init__(self, seed: int, row: int) -> None:
        self._generator = torch.Generator().manual_seed((seed + row * _MIX) % (2**63))
        self._block = torch.empty(0, dtype=torch.float64)
        self._used = 0

    def take(self, n: int) -> Tensor:
        """The next n uniforms, float64 [n]."""
        if self._used + n > len(self._block):
            fresh = torch.rand(max(_BLOCK, n), generator=self._generator, dtype=torch.float64)
            self._block = torch.cat([self._block[self._used :], fresh])
            self._used = 0
        self._used += n
        return self._block[self._used - n : self._used]


class RandomRows:
    """The random source of a run; `rows` numbers the rows within the call, wherever they are batched."""

    def __init__(self, seed: int, rows: Sequence[int]) -> None:
        self._streams = [RowStream(seed, row) for row in rows]

    def _uniforms(self, counts: Sequence[int], width: int, device: torch.device) -> Tensor:
        if len(self._streams) == 1 and counts[0] == width:
            block = self._streams[0].take(width)[None]
        else:
            block = torch.zeros(len(self._streams), width, dtype=torch.float64)  # [B, width]
            for row, count in enumerate(counts):
                block[row, :count] = self._streams[row].take(count)
        if device.type == "mps":
            block = block.to(torch.float32)
        return block if device.type == "cpu" else block.to(device, non_blocking=True)

    def draw(self, probs: Tensor, starts: Sequence[int], counts: Sequence[int]) -> Tensor:
        return invert_cdf(probs, self._uniforms(counts, probs.shape[1], probs.device))

    def accept(self, numerator: Tensor, denominator: Tensor, counts: Sequence[int]) -> Tensor:
        u = self._uniforms(counts, numerator.shape[1], numerator.device)
        return u * denominator < numerator  # strict: a token the target cannot emit never passes, even at u = 0

    def select(self, rows: Sequence[int]) -> None:
        self._streams = [self._streams[row] for row in rows]
