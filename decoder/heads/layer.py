"""L2: the parts of a head's decoder layer: root-mean-square norm, rotary positions, grouped attention, gated MLP.

Llama's layer, written out because a head's attention reads keys that no transformers layer could: several
unrolled steps at once in training, a tree's own mask in drafting.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RootMeanSquare(nn.Module):
    """x / rms(x), times a learned weight, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotary(positions: Tensor, size: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos, sin [..., m, size] in float32 for positions [..., m] (arXiv 2104.09864)."""
    rates = theta ** (-torch.arange(0, size, 2, device=positions.device, dtype=torch.float32) / size)
    angles = positions[..., None].float() * rates  # [..., m, size / 2]
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn x [B, H, m, D] by cos, sin [B or 1, m, D]."""
    cos, sin = (part[:, None].to(x.dtype) for part in turn)
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


class Attention(nn.Module):
    """Projections of grouped-query attention; who attends to whom is the caller's business."""

    def __init__(self, inputs: int, hidden: int, heads: int, kv_heads: int, head_dim: int, bias: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q_proj = nn.Linear(inputs, heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(inputs, kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(inputs, kv_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=False)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:-1], heads, self.head_dim).transpose(-3, -2)  # [B, H, m, D]

    def queries(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        return rotate(self._split(self.q_proj(x), self.heads), turn)

    def keys_and_values(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return rotate(self._split(self.k_proj(x), self.kv_heads), turn), self._split(self.v_proj(x), self.kv_heads)

    def output(self, x: Tensor) -> Tensor:
        """[B, H, m, D] -> [B, m, hidden]."""
        joined: Tensor = self.o_proj(x.transpose(-3, -2).flatten(-2))
        return joined


class GatedMlp(nn.Module):
    """down(silu(gate x) * up x)."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out
