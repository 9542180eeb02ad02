"""A second module tree over the same tensors: the frame of every draft that is made out of its target.

`weight_sharing_copy` copies modules and configuration, never a parameter or buffer. `layer_subset` then leaves layers
out of the copy, `find_layers` says where a model keeps them. `RearrangedLinear` stands in a copy for a linear layer
whose weight it keeps in another form. Knows no drafter; changes nothing in the model it is given.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from decoder.checks import is_integer


def tensors_of(model: nn.Module) -> Iterable[Tensor]:
    """Every parameter and buffer, tied ones once."""
    seen: set[int] = set()
    for tensor in chain(model.parameters(), model.buffers()):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor


def own_bytes(model: nn.Module, of: nn.Module) -> int:
    """Bytes of the tensors that `model` holds and `of` does not: what a derived draft costs."""
    shared = {id(tensor) for tensor in tensors_of(of)}
    return sum(t.numel() * t.element_size() for t in tensors_of(model) if id(t) not in shared)


def weight_sharing_copy(model: Any) -> Any:
    """The same model with modules of its own and the tensors of the original."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in tensors_of(model)}
    for module in model.modules():  # accelerate's hooks may hold offloaded weights: share them, too
        hook = getattr(module, "_hf_hook", None)
        if hook is not None:
            memo[id(hook)] = hook
    return copy.deepcopy(model, memo)


class RearrangedLinear(nn.Module):
    """A linear layer that also holds its weight in another form, for another kernel."""

    original: Any

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original = original

    @property
    def bias(self) -> Tensor | None:
        bias: Tensor | None = self.original.bias
        return bias

    @property
    def weight(self) -> Tensor:
        """The original weight: transformers looks at the dtype and shape of some layers' weights."""
        weight: Tensor = self.original.weight
        return weight


def dense_matrix(layer: nn.Module) -> Tensor:
    """The weight of a linear layer, rearranged or not, as [N, K]: GPT-2's Conv1D keeps it transposed."""
    while isinstance(layer, RearrangedLinear):
        layer = layer.original
    weight: Tensor = layer.weight.detach()  # type: ignore[operator]
    return weight.t() if isinstance(layer, Conv1D) else weight


def find_layers(model: Any) -> tuple[nn.Module, str, nn.ModuleList]:
    """(module that owns the list, its attribute, the list) of the transformer's layers.

    Raises:
        ValueError: a module tree with no such list, or with more than one candidate.
    """
    count = int(model.config.get_text_config(decoder=True).num_hidden_layers)
    found = []
    for owner in model.modules():
        for name, child in owner.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == count and all(map(_caches, child)):
                found.append((owner, name, child))
    if len(found) != 1:
        raise ValueError(
            f"{type(model).__name__} has {len(found)} lists of {count} attention layers where exactly one is needed "
            "to leave layers out; use drafter='quantized' or drafter='ngram' for this model."
        )
    return found[0]


def _caches(layer: nn.Module) -> bool:
    """Whether a layer writes to the KV cache: some module in it knows the index it writes to."""
    return any(isinstance(getattr(module, "layer_idx", None), int) for module in layer.modules())


def check_layers(layers: int | Sequence[int], count: int) -> list[int]:
    """A prefix length or a list of layer numbers as an ascending list.

    Raises:
        TypeError, ValueError: not a proper, non-empty selection of `count` layers.
    """
    remedy = (
        f"give a prefix length in [1, {count - 1}] or ascending layer numbers in [0, {count - 1}], not all of them."
    )
    if not (is_integer(layers) or isinstance(layers, Sequence)) or isinstance(layers, str):
        raise TypeError(f"layers={layers!r} must be an integer or a list of integers; {remedy}")
    chosen = list(range(layers)) if isinstance(layers, int) else list(layers)
    if not all(map(is_integer, chosen)):
        raise TypeError(f"layers={layers!r} must hold integers; {remedy}")
    if not 0 < len(chosen) < count or chosen != sorted(set(chosen)) or not 0 <= chosen[0] <= chosen[-1] < count:
        raise ValueError(f"layers={layers!r} is no proper selection of the target's {count} layers; {remedy}")
    return chosen


def layer_subset(model: Any, layers: Sequence[int]) -> Any:
    """The model with these layers only, then its final norm and head; nothing is copied but the module tree.

    Layers keep the cache index they had, so the copy needs a cache of `max(layers) + 1` layers, of which the ones left
    out stay empty, and a prefix can write into the original's own cache.
    """
    twin = weight_sharing_copy(model)
    owner, name, held = find_layers(twin)
    setattr(owner, name, nn.ModuleList([held[layer] for layer in layers]))
    config = twin.config.get_text_config(decoder=True)
    for attribute, value in list(vars(config).items()):  # per-layer settings are read by position in the list
        if "layer" in attribute and isinstance(value, (list, tuple)) and len(value) == len(held):
            setattr(config, attribute, type(value)(value[layer] for layer in layers))
    config.num_hidden_layers = len(layers)
    return twin
