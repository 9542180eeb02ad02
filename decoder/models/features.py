"""The hidden states of chosen layers, taken by forward hooks from forwards that are made anyway.

Layer i is transformers' `hidden_states[i]`, the output of the i-th layer, counted from 1; the last one is taken before
the model's final norm. Hooks see any model whose layers stand in one list, and are there only while a forward runs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from decoder.trees import moves


def feature_modules(model: Any, layers: Sequence[int]) -> list[nn.Module]:
    """The modules whose outputs are these layers' hidden states.

    Raises:
        ValueError: the model's layers cannot be found, or there are fewer.
    """
    from decoder.models.sharing import find_layers  # only a head's run needs it

    _, _, held = find_layers(model)
    if any(not 1 <= layer <= len(held) for layer in layers):
        raise ValueError(f"feature layers {list(layers)} must lie in 1 ... {len(held)} for {type(model).__name__}.")
    return [held[layer - 1] for layer in layers]


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
def recorded(modules: Sequence[nn.Module]) -> Iterator[Recording]:
    """Record these modules' outputs of the forward made in the block."""
    found = Recording(len(modules))

    def hook(place: int) -> Any:
        return lambda module, inputs, output: found.put(place, output)

    handles = [module.register_forward_hook(hook(place)) for place, module in enumerate(modules)]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


class FeatureTape:
    """Hidden states of one run's forwards, held until they are read; of a position fed twice the later ones count.

    states: [B, m, n * hidden] of each forward, whose row b begins at position starts[b].
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = list(modules)
        self._chunks: list[tuple[list[int], Tensor]] = []

    def add(self, starts: Sequence[int], states: Tensor) -> None:
        self._chunks.append((list(starts), states))

    @property
    def begins(self) -> list[int]:
        """The first position held of each row."""
        assert self._chunks, "nothing was recorded since the last reading"
        return self._chunks[0][0]

    def keep_paths(self, paths: Sequence[Sequence[int]]) -> None:
        """Of a tree fed last, the states of the nodes paths[b] stand behind the root's, in order."""
        starts, states = self._chunks[-1]
        sources, targets = (torch.tensor(places, device=states.device) for places in moves([0] * len(starts), paths))
        if not torch.equal(sources, targets):
            into = targets[..., None].expand(-1, -1, states.shape[-1])
            kept = states.gather(1, sources[..., None].expand_as(into))
            self._chunks[-1] = (starts, states.scatter(1, into, kept))

    def read(self, starts: Sequence[int], ends: Sequence[int]) -> Tensor:
        """Positions starts[b] ... ends[b] - 1 of each row, padded on the right [B, m, n * hidden]; empties the tape."""
        chunks, self._chunks = self._chunks, []
        width = max(end - start for start, end in zip(starts, ends, strict=True))
        if len(chunks) == 1 and len(set(zip(starts, chunks[0][0], strict=True))) == 1:
            skip = starts[0] - chunks[0][0][0]
            return chunks[0][1][:, skip : skip + width]
        states = chunks[0][1]
        out = states.new_zeros(len(starts), width, states.shape[-1])
        for place, (begins, held) in enumerate(chunks):
            for b, (start, end) in enumerate(zip(starts, ends, strict=True)):
                stop = chunks[place + 1][0][b] if place + 1 < len(chunks) else end  # the next forward begins there
                low, high = max(start, begins[b]), min(end, stop)
                if low < high:
                    out[b, low - start : high - start] = held[b, low - begins[b] : high - begins[b]]
        return out

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self._chunks = [([starts[row] for row in rows], states[list(rows)]) for starts, states in self._chunks]
