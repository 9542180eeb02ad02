"""Weights in 8 or 4 bits for the matrices a decoding step reads, on the CPU.

A decoding step on a CPU is bound by the bytes of the weights, so a copy with narrow weights is a faster model of the
same thing. Weights are rounded to nearest, without calibration data (the baseline of GPTQ, arXiv 2210.17323):

    int8   w = s q              one scale s per output channel
    int4   w = s (q - 8) + z    scale and offset per `group_size` inputs, the range chosen for the least squared error

Only weights are quantised. Activations are rounded to bfloat16, in which torch's packed kernels are fast (their
float32 versions are several times slower than a plain float32 product). Inputs of many tokens (prefill) go through the
original weights, which are in memory anyway and faster there.

Does not know drafting. Embeddings, norms and biases are the original's own tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from decoder.models.packed import BlockedLinear
from decoder.models.sharing import RearrangedLinear, dense_matrix, own_bytes, tensors_of, weight_sharing_copy

MAX_PACKED_TOKENS = 16  # rows times tokens; beyond, the dense product of the original is the faster one
_SHRINK = (1.0, 0.92, 0.84)  # fractions of a group's range tried by the int4 rounding
_WEIGHTS_AT_ONCE = 1 << 18  # weights handled together while packing, to bound the transient memory


def quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [N, K] -> (q [N, K] int8, s [N] bfloat16) with weight ~ s q."""
    scale = (weight.float().abs().amax(1) / 127.0).clamp_(min=1e-12).bfloat16()
    return (weight.float() / scale.float()[:, None]).round_().clamp_(-127, 127).to(torch.int8), scale


def quantize_int4(weight: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """weight [N, K] -> (q [N, K] int32 in 0..15, (s, z) [K / group, N, 2] bfloat16) with weight ~ s (q - 8) + z."""
    rows = max(1, _WEIGHTS_AT_ONCE // weight.shape[1])
    parts = [_round_groups(part.float().contiguous(), group_size) for part in torch.split(weight, rows)]
    scales = torch.cat([scale for _, scale in parts])  # [N, G, 2]
    return torch.cat([q for q, _ in parts]), scales.transpose(0, 1).contiguous()


def _round_groups(weight: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    groups = weight.view(weight.shape[0], -1, group_size)  # [n, G, group]
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    middle, half = (high + low) / 2, ((high - low) / 2).clamp_(min=1e-12)
    best = torch.full_like(low, torch.inf)
    kept_q, kept_s, kept_z = torch.zeros_like(groups), torch.ones_like(low), torch.zeros_like(low)
    for fraction in _SHRINK:
        scale = (2 * fraction * half / 15).bfloat16().float()
        offset = (middle - fraction * half + 8 * scale).bfloat16().float()
        q = ((groups - offset) / scale + 8).round_().clamp_(0, 15)
        error = (scale * (q - 8) + offset - groups).square().sum(-1, keepdim=True)
        better = error < best
        best = torch.where(better, error, best)
        kept_q, kept_s = torch.where(better, q, kept_q), torch.where(better, scale, kept_s)
        kept_z = torch.where(better, offset, kept_z)
    pair = torch.cat([kept_s, kept_z], dim=-1).bfloat16()  # [n, G, 2]
    return kept_q.view_as(weight).to(torch.int32), pair


class PackedLinear(RearrangedLinear):
    """A linear layer that reads narrow weights for a few tokens and the original ones for many."""

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.reshape(-1, inputs.shape[-1])  # [M, K]
        if flat.shape[0] > MAX_PACKED_TOKENS:
            dense: Tensor = self.original(inputs)
            return dense
        out = self.product(flat.bfloat16().contiguous()).to(inputs.dtype)  # [M, N]
        if self.bias is not None:
            out = out + self.bias
        return out.view(*inputs.shape[:-1], out.shape[-1])

    def product(self, flat: Tensor) -> Tensor:
        """[M, K] bfloat16 -> [M, N] bfloat16, without the bias."""
        raise NotImplementedError


class Int8Linear(PackedLinear):
    """One scale per output channel."""

    q: Tensor
    scale: Tensor

    def __init__(self, original: nn.Module) -> None:
        super().__init__(original)
        q, scale = quantize_int8(dense_matrix(original))
        self.register_buffer("q", q.contiguous())
        self.register_buffer("scale", scale)

    def product(self, flat: Tensor) -> Tensor:
        return torch.ops.aten._weight_int8pack_mm(flat, self.q, self.scale)  # type: ignore[no-any-return]


class Int4Linear(PackedLinear):
    """A scale and an offset per output channel and group of inputs."""

    q: Tensor
    scale: Tensor

    def __init__(self, original: nn.Module, group_size: int) -> None:
        super().__init__(original)
        self.group_size = group_size
        q, scale = quantize_int4(dense_matrix(original), group_size)
        self.register_buffer("q", torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, 1))
        self.register_buffer("scale", scale)

    def product(self, flat: Tensor) -> Tensor:
        return torch.ops.aten._weight_int4pack_mm_for_cpu(  # type: ignore[no-any-return]
            flat, self.q, self.group_size, self.scale
        )


def pack(layer: nn.Module, bits: int, group_size: int) -> nn.Module:
    """The layer with `bits` per weight; int8 where the int4 kernel does not take its shape, unchanged where none does.

    The kernels need K to be a multiple of 16 (int8 reads past the row otherwise) or of the group (int4, with N a
    multiple of 16).
    """
    outputs, inputs = dense_matrix(layer).shape
    if bits == 4 and outputs % 16 == 0 and inputs % group_size == 0:
        return Int4Linear(layer, group_size)
    return Int8Linear(layer) if inputs % 16 == 0 else layer


def quantized_copy(model: Any, bits: int = 8, *, head_bits: int = 8, group_size: int = 32) -> Any:
    """A copy of the model with narrow linear layers, sharing everything else with it.

    bits: 8 or 4, of the layers' matrices.  head_bits: 4, 8, or 16 to share the head as it is.
    group_size: 32, 64, 128 or 256 inputs that share an int4 scale.

    Raises:
        ValueError: values out of range, a model that is not wholly on the CPU, a CPU or torch without the kernels.
    """
    _check(model, bits, head_bits, group_size)
    twin = weight_sharing_copy(model)
    head = twin.get_output_embeddings()
    with torch.no_grad():
        for module in list(twin.modules()):
            if isinstance(module, RearrangedLinear):  # a packed layer: replaced as a whole
                continue
            for name, child in list(module.named_children()):
                width = head_bits if child is head else bits
                if isinstance(child, (nn.Linear, Conv1D, BlockedLinear)) and width < 16:
                    setattr(module, name, pack(child, width, group_size))
    if own_bytes(twin, model) == 0:
        raise ValueError(
            f"{type(model).__name__} has no linear layer that torch's packed kernels take; use drafter='ngram'."
        )
    return twin


def _check(model: Any, bits: int, head_bits: int, group_size: int) -> None:
    for name, value, allowed in (
        ("bits", bits, (4, 8)),
        ("head_bits", head_bits, (4, 8, 16)),
        ("group_size", group_size, (32, 64, 128, 256)),
    ):
        if value not in allowed:
            raise ValueError(f"{name}={value!r} must be one of {allowed}.")
    elsewhere = sorted({tensor.device.type for tensor in tensors_of(model)} - {"cpu"})
    if elsewhere:
        raise ValueError(
            f"a quantised draft needs the whole target on the CPU, but parts of it are on {elsewhere}: "
            "the packed kernels used here are torch's for the CPU; use drafter='layerskip' or a draft model."
        )
