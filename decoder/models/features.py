"""L2: the hidden states of chosen layers, taken by forward hooks from a forward that is made anyway.

`hidden_states[i]` of transformers is the output of the i-th layer, counted from 1; the last one is taken before the
model's final norm. Hooks see any model whose layers stand in one list; they are there only while the forward runs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from decoder.models.sharing import find_layers


class Recording:
    """What one forward left: `states` [B, m, n * hidden], the chosen layers side by side."""

    def __init__(self, count: int) -> None:
        self._parts: list[Tensor | None] = [None] * count
        self._thread = threading.get_ident()  # other threads may run the same model

    def put(self, place: int, output: Any) -> None:
        if threading.get_ident() == self._thread:
            self._parts[place] = output[0] if isinstance(output, tuple) else output

    @property
    def states(self) -> Tensor:
        parts = [part for part in self._parts if part is not None]
        assert len(parts) == len(self._parts), "the forward did not pass through every layer that was asked for"
        device = parts[-1].device
        return torch.cat([part.to(device) for part in parts], dim=-1)


@contextmanager
def recorded(model: Any, layers: Sequence[int]) -> Iterator[Recording]:
    """Record the outputs of these layers, counted from 1, of forwards made in the block: the last one's stay.

    Raises:
        ValueError: the model's layers cannot be found, or there are fewer.
    """
    _, _, held = find_layers(model)
    if any(not 1 <= layer <= len(held) for layer in layers):
        raise ValueError(f"feature layers {list(layers)} must lie in 1 ... {len(held)} for {type(model).__name__}.")
    found = Recording(len(layers))

    def hook(place: int) -> Any:
        return lambda module, inputs, output: found.put(place, output)

    handles = [held[layer - 1].register_forward_hook(hook(place)) for place, layer in enumerate(layers)]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
