"""`packed=True`: the matrices of linear layers once more, in oneDNN's own blocked layout, on the CPU.

    y = x W^T + b        the same product; only where W's numbers lie in memory differs

As stored, a product of a few tokens reads W in a layout made for other work: GPT-2's Conv1D keeps it transposed, and
in float32 two tokens may cost far more than one. A blocked copy is read from end to end at any number of tokens. It
rounds as any other kernel does: logits equal the dense ones up to the order of summation. A single token in float32
goes through W as stored: that matrix-vector product was 3 to 16 % faster than the blocked one in three shapes measured.

Each matrix is in memory twice: blocked, and as the model has it, which embeddings tied to the head, drafts derived
from the target and gradients go on using. The model given is not changed. Its numbers are copied when the copy is
made, so later changes of its weights would not be seen: `check_unchanged` refuses them.

torch's code generator does not take tensors of this layout, so compiled forwards (`models.compiled`) name them by a
number.  Does not know drafting.
"""

from __future__ import annotations

import itertools
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from decoder.models.sharing import RearrangedLinear, dense_matrix, weight_sharing_copy

_TOKENS = 4  # the number of rows that oneDNN is told to choose a layout for; any number of rows runs
_numbers = itertools.count()
_by_number: WeakValueDictionary[int, Tensor] = WeakValueDictionary()


def _blocked_linear(x: Tensor, bias: Tensor | None, number: int, outputs: int) -> Tensor:
    return _product(x, _by_number[number], bias)


def _blocked_linear_shape(x: Tensor, bias: Tensor | None, number: int, outputs: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], outputs))


torch.library.define("decoder::blocked_linear", "(Tensor x, Tensor? bias, int number, int outputs) -> Tensor")
torch.library.impl("decoder::blocked_linear", "CPU", _blocked_linear)
torch.library.register_fake("decoder::blocked_linear", _blocked_linear_shape)


def _product(x: Tensor, blocked: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, blocked, bias, "none", [], "")  # type: ignore[no-any-return]


class BlockedLinear(RearrangedLinear):
    """A linear layer that reads its weights in oneDNN's blocked layout; the original's where gradients are wanted."""

    blocked: Tensor

    def __init__(self, original: nn.Module) -> None:
        super().__init__(original)
        matrix = dense_matrix(original)  # [N, K]
        self.outputs = int(matrix.shape[0])
        self.number = next(_numbers)
        self.seen = _state(self.weight)
        blocked = torch.ops.mkldnn._reorder_linear_weight(matrix, _TOKENS)
        self.register_buffer("blocked", blocked, persistent=False)
        _by_number[self.number] = self.blocked

    def forward(self, inputs: Tensor) -> Tensor:
        if torch.is_grad_enabled() and (inputs.requires_grad or self.weight.requires_grad):
            dense: Tensor = self.original(inputs)
            return dense
        if inputs.dtype == torch.float32 and inputs.numel() == inputs.shape[-1]:
            alone: Tensor = self.original(inputs)
            return alone
        if torch.compiler.is_compiling():
            return torch.ops.decoder.blocked_linear(  # type: ignore[no-any-return]
                inputs, self.bias, self.number, self.outputs
            )
        return _product(inputs, self.blocked, self.bias)


def _state(weight: Tensor) -> tuple[int, int]:
    """What changes when a tensor is written to or moved."""
    return weight.data_ptr(), -1 if weight.is_inference() else weight._version


def why_not(dtype: torch.dtype) -> str | None:
    """What keeps matrices of this dtype from being packed here."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this build of torch has no oneDNN"
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"oneDNN packs float32, bfloat16 and float16, not {str(dtype).removeprefix('torch.')}"
    try:
        weight, x = torch.eye(32, dtype=dtype), torch.arange(64, dtype=dtype).view(2, 32)
        exact = torch.equal(_product(x, torch.ops.mkldnn._reorder_linear_weight(weight, _TOKENS), None), x)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return f"oneDNN does not pack {str(dtype).removeprefix('torch.')} on this processor ({error!s:.120})"
    return None if exact else "oneDNN's product of a known matrix is wrong on this processor"


def _plain(layer: nn.Module) -> bool:
    """A linear layer and nothing more: no subclass, no hook, no forward or weight of somebody else's."""
    if type(layer) not in (nn.Linear, Conv1D) or type(layer.weight) is not nn.Parameter:
        return False
    return not (layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer))


def _places(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """(owner, attribute, layer) of each plain linear layer; those behind narrow weights have had their turn."""
    return [
        (owner, name, layer)
        for owner in model.modules()
        if not isinstance(owner, RearrangedLinear)
        for name, layer in owner.named_children()
        if _plain(layer)
    ]


def packed_copy(model: Any, role: str = "target") -> Any:
    """A copy of the model with packed linear layers, sharing everything else with it.

    role: "target" or "draft", used in messages. A model whose layers are rearranged already (narrow weights, packed
    ones) and that has no other layers is returned as it is.

    Raises:
        ValueError: nothing can be packed, with the reason and the remedy.
    """
    problems: dict[str, None] = {}
    twin = weight_sharing_copy(model)
    packed: dict[int, BlockedLinear] = {}  # a layer may have several owners
    able: dict[torch.dtype, str | None] = {}
    for owner, name, layer in _places(twin):
        weight = dense_matrix(layer)
        problem = f"its weights are on {weight.device.type!r}, not on the CPU" if weight.device.type != "cpu" else None
        if problem is None:
            problem = able.setdefault(weight.dtype, why_not(weight.dtype))
        if problem is not None:
            problems[problem] = None
            continue
        if id(layer) not in packed:
            packed[id(layer)] = BlockedLinear(layer)
        setattr(owner, name, packed[id(layer)])
    if packed:
        return twin
    if any(isinstance(module, RearrangedLinear) for module in model.modules()):
        return model
    reason = "; ".join(problems) or "it has no linear layers without hooks or adapters"
    raise ValueError(
        f"packed=True: the {role} {type(model).__name__} cannot be packed: {reason}; leave packed=False, or load it "
        "with device='cpu' in a dtype that this processor packs, such as float32."
    )


def check_unchanged(model: Any) -> None:
    """Whether the packed numbers are still the model's.

    Raises:
        ValueError: a weight was written to since it was packed.
    """
    for name, module in model.named_modules():
        if isinstance(module, BlockedLinear) and _state(module.weight) != module.seen:
            raise ValueError(
                f"packed=True: the weights of {name!r} have changed since they were packed; build the decoder again."
            )
