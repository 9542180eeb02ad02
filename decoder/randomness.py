"""The sources of every random choice, one stream a row.

A row's stream depends on the seed and the row's own number only, so a row's text does not change
with its neighbours. `RandomRows` draws tokens by inverting the cumulative distribution in float64: one uniform a
token, and a token of probability zero can never come out.

`GumbelRows` draws y = argmax(log p + G) with Gumbel noise G that is a function of (seed, row, position, token) alone
(Gumbel 1954; Maddison et al. 2014, arXiv 1411.0030). Draft and target then share their noise, and the text is a
function of the seed: the same for plain decoding, every drafter, every k and every batch
(Daliri et al. 2024, arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

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
    cdf = probs.cumsum(-1, dtype=wide)
    below = cdf[..., -1:] * (1.0 - torch.finfo(wide).eps)  # at least one step below the total, so no point reaches it
    point = uniforms.to(wide).unsqueeze(-1) * below
    found = torch.searchsorted(cdf, point, right=True).squeeze(-1)
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


def _each(seed: int | Sequence[int], rows: Sequence[int]) -> Sequence[int]:
    return [seed] * len(rows) if isinstance(seed, int) else seed


class RandomRows:
    """The random source of a run; `rows` numbers the rows within the call, wherever they are batched.

    seed: one for all rows, or one for each.
    """

    coupled = False

    def __init__(self, seed: int | Sequence[int], rows: Sequence[int]) -> None:
        self._streams = [RowStream(own, row) for own, row in zip(_each(seed, rows), rows, strict=True)]

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


_WORD = 2**64
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # the finaliser of splitmix64 (Steele et al. 2014)


def _signed(word: int) -> int:
    """The int64 with the bits of a 64-bit word."""
    return word - _WORD if word >= _WORD // 2 else word


def _scramble(word: int) -> int:
    """splitmix64's finaliser on one 64-bit word: every input bit reaches every output bit."""
    word = ((word ^ (word >> 30)) * _MIX_1) % _WORD
    word = ((word ^ (word >> 27)) * _MIX_2) % _WORD
    return word ^ (word >> 31)


def _scramble_all(words: Tensor) -> Tensor:
    """The same, elementwise on int64, in place; products wrap, and masks make the shifts logical."""
    words ^= (words >> 30) & (2**34 - 1)
    words *= _signed(_MIX_1)
    words ^= (words >> 27) & (2**37 - 1)
    words *= _signed(_MIX_2)
    words ^= (words >> 31) & (2**33 - 1)
    return words


def counter_uniforms(keys: Tensor, vocab: int) -> Tensor:
    """Uniforms in (0, 1), never 0 or 1: keys int64 [...] -> [..., V]; entry v is a hash of (key, v)."""
    steps = torch.arange(1, vocab + 1, device=keys.device) * _signed(_MIX)
    words = _scramble_all(keys[..., None] + steps)
    if keys.device.type == "mps":  # no float64 there
        return (((words >> 42) & (2**22 - 1)).float() + 0.5) * 2.0**-22
    return (((words >> 12) & (2**52 - 1)).double() + 0.5) * 2.0**-52


class GumbelRows:
    """The random source of `sampling="gumbel"`: argmax(log p + G), with G keyed by (seed, row, position).

    coupled: draws at one position share their noise, so a drafted token is a function of the past and no sample of q.
    Verification must be by match; a residual of such a draft would not have the target's distribution.
    """

    coupled = True

    def __init__(self, seed: int | Sequence[int], rows: Sequence[int]) -> None:
        seeds = _each(seed, rows)
        self._keys = [_scramble((own * _MIX_1 + row * _MIX) % _WORD) for own, row in zip(seeds, rows, strict=True)]

    def draw(self, probs: Tensor, starts: Sequence[int], counts: Sequence[int]) -> Tensor:
        """[B, n]. With E = -log u, argmax(log p - log E) is the argmax of p / E: one logarithm an entry."""
        width = probs.shape[1]
        words = [
            [_signed(_scramble((key + (start + i) * _MIX_2) % _WORD)) for i in range(width)]
            for key, start in zip(self._keys, starts, strict=True)
        ]
        uniforms = counter_uniforms(torch.tensor(words, device=probs.device), probs.shape[-1])  # [B, n, V]
        return (probs.to(uniforms.dtype) / uniforms.log_().neg_()).argmax(-1)

    def accept(self, numerator: Tensor, denominator: Tensor, counts: Sequence[int]) -> Tensor:
        raise TypeError(
            "sampling='gumbel' verifies by match; a verifier that accepts by chance would change the law. "
            "Use verifier='auto' or 'match', or sampling='rejection'."
        )

    def select(self, rows: Sequence[int]) -> None:
        self._keys = [self._keys[row] for row in rows]


Sampling = Literal["rejection", "gumbel"]
SOURCES: dict[str, type[RandomRows] | type[GumbelRows]] = {"rejection": RandomRows, "gumbel": GumbelRows}
