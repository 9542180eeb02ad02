"""The KV cache, addressed by position, and all knowledge of transformers' cache interface.

One preallocated buffer per layer, grown by doubling. Every row writes at its own positions and a query at position t
sees the slots 0 ... t, so slot j of a row always holds token j of its sequence. Rolling back is moving a number; a
ragged batch needs no re-padding; what lies beyond a row's committed length is never seen, because the forward that
could see it overwrites it first. Layers with a sliding window keep all positions too and are windowed by the mask.

Supports transformers >= 5.17, < 6: there `Cache` takes a list of layers, and the forward's argument is called
`past_key_values` (up to about 5.23) or `cache` (later).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin
from typing_extensions import Self

from decoder.trees import moves

_ROOM = 64  # slots beyond the first forward, so that short texts never regrow
_LAYER_TYPES = {"full_attention", "sliding_attention"}  # what a position-addressed buffer can serve


@dataclass
class _Write:
    """Where the next forward's tokens go; shared by all layers of one cache."""

    starts: list[int] = field(default_factory=list)
    count: int = 0
    limit: int = 0  # no row will ever need a slot at or beyond this
    index: Tensor | None = None  # [B, m] slots of a ragged write
    pinned: int = 0  # when set, a forward reads this many slots, so that all have one shape
    reserved: int = 0  # every buffer has at least this many slots, so that its shape never changes

    @property
    def end(self) -> int:
        return max(self.starts, default=0) + self.count

    @property
    def seen(self) -> int:
        """Slots that a forward reads; the mask hides those beyond each position."""
        return max(self.end, self.pinned)

    @property
    def uniform(self) -> bool:
        return self.starts.count(self.starts[0]) == len(self.starts)


class PositionLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not typed
    """One layer's keys and values [B, H, capacity, D]."""

    is_sliding = False
    is_croppable = False  # only `PositionCache` rolls back

    def __init__(self, write: _Write) -> None:
        super().__init__()
        self._write = write

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        write = self._write
        capacity = max(write.seen, write.reserved, min(write.end + _ROOM, write.limit))
        self.keys = key_states.new_zeros((*key_states.shape[:2], capacity, key_states.shape[3]))
        self.values = value_states.new_zeros((*value_states.shape[:2], capacity, value_states.shape[3]))
        self.is_initialized = True

    def reserve(self) -> None:
        if self.is_initialized and self.keys.shape[2] < self._write.reserved:
            self._grow()

    def _grow(self) -> None:
        assert self.keys is not None and self.values is not None
        held = self.keys.shape[2]
        capacity = max(self._write.seen, self._write.reserved, min(2 * held, self._write.limit))
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros((*old.shape[:2], capacity, old.shape[3]))
            new[:, :, :held] = old
            setattr(self, name, new)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write [B, H, m, D] at each row's positions; return all slots any row may see."""
        write = self._write
        end = write.end
        seen = max(end, write.pinned)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        elif seen > self.keys.shape[2]:
            self._grow()
        if write.index is None:
            start = end - write.count
            self.keys.narrow(2, start, write.count).copy_(key_states)
            self.values.narrow(2, start, write.count).copy_(value_states)
        else:
            slots = write.index.to(key_states.device)[:, None, :, None]  # [B, 1, m, 1]
            self.keys.scatter_(2, slots.expand_as(key_states), key_states)
            self.values.scatter_(2, slots.expand_as(value_states), value_states)
        return self.keys.narrow(2, 0, seen), self.values.narrow(2, 0, seen)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._write.seen, 0

    def get_seq_length(self) -> int:
        return self._write.end - self._write.count

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Slots sources [B, n] of each row go to targets [B, n]."""
        for part in (self.keys, self.values):
            into = targets.to(part.device)[:, None, :, None].expand(-1, part.shape[1], -1, part.shape[3])
            part.scatter_(2, into, part.gather(2, sources.to(part.device)[:, None, :, None].expand_as(into)))

    def select(self, rows: Tensor) -> None:
        if self.is_initialized:
            self.keys = self.keys.index_select(0, rows.to(self.keys.device))
            self.values = self.values.index_select(0, rows.to(self.values.device))


class PositionCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """The cache of one run over B rows. `place` before a forward, `commit` after the verdict.

    lengths: committed positions per row.   model: whose keys and values it holds.
    """

    def __init__(self, layers: int, rows: int, limit: int, model: Any = None) -> None:
        self.model = model
        self._write = _Write([0] * rows, 0, limit)
        self.lengths = [0] * rows
        self._written = [0] * rows  # committed and provisional positions
        super().__init__(layers=[PositionLayer(self._write) for _ in range(layers)])

    def place(self, starts: Sequence[int], count: int) -> None:
        """The next forward's `count` tokens sit at starts[b] ... starts[b] + count - 1 of row b."""
        assert all(0 <= start <= written for start, written in zip(starts, self._written, strict=True)), (
            f"a write at {list(starts)} would leave a hole after {self._written}"
        )
        self._written = [max(held, start + count) for held, start in zip(self.lengths, starts, strict=True)]
        self._write.starts, self._write.count = list(starts), count
        self._write.index = None
        if not self._write.uniform:
            self._write.index = torch.tensor(starts)[:, None] + torch.arange(count)

    def commit(self, lengths: Sequence[int]) -> None:
        """Row b holds exactly its first lengths[b] positions; what is beyond never happened."""
        assert all(n <= written for n, written in zip(lengths, self._written, strict=True)), (
            f"cannot commit {list(lengths)} positions of {self._written} written"
        )
        self.lengths = list(lengths)
        self._written = list(lengths)

    def keep_paths(self, paths: Sequence[Sequence[int]]) -> None:
        """Of a tree written last, whose root is its first token: the nodes paths[b] move behind the root, in order."""
        sources, targets = (torch.tensor(slots) for slots in moves(self._write.starts, paths))
        if not torch.equal(sources, targets):
            for layer in self.layers:
                layer.move(sources, targets)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        index = torch.tensor(rows)
        for layer in self.layers:
            layer.select(index)
        self.lengths = [self.lengths[row] for row in rows]
        self._written = [self._written[row] for row in rows]
        self._write.starts = [self._write.starts[row] for row in rows]
        self._write.index = None

    @contextmanager
    def pinned_to(self, slots: int) -> Iterator[None]:
        """While this lasts, a forward reads this many slots, whatever it writes."""
        self._write.pinned = slots
        try:
            yield
        finally:
            self._write.pinned = 0

    @property
    def pinned(self) -> int:
        return self._write.pinned

    def reserve(self, slots: int) -> None:
        """Buffers have at least this many slots, those that are there already from now on."""
        self._write.reserved = max(self._write.reserved, slots)
        for layer in self.layers:
            layer.reserve()

    @property
    def capacity(self) -> int:
        """Slots of the buffers; 0 before the first forward."""
        return min((layer.keys.shape[2] if layer.is_initialized else 0 for layer in self.layers), default=0)

    def extend_limit(self, limit: int) -> None:
        """A continued conversation may grow further than the first turn."""
        self._write.limit = max(self._write.limit, limit)

    def copy_into(self, other: Cache) -> None:
        """Leave in an empty cache of transformers what its own loop would have: the committed tokens of one row."""
        for index, layer in enumerate(self.layers):
            if layer.is_initialized:
                states = (part.narrow(2, 0, self.lengths[0]) for part in (layer.keys, layer.values))
                other.update(*states, index)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Buffers of its own; the model is what it holds the states of, and stays the same object."""
        memo[id(self.model)] = self.model
        memo[id(self)] = twin = type(self).__new__(type(self))
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(
            t.numel() * t.element_size() for layer in self.layers for t in (layer.keys, layer.values) if t is not None
        )


class LentCache(PositionCache):
    """The owner's buffers, written ahead of it by a draft that shares its first layers.

    The draft writes slots at and beyond the owner's committed length; the owner's next forward begins there and
    rewrites every slot before it reads it, so it never sees what the draft wrote. The owner alone commits, reorders
    and grows.
    """

    def __init__(self, owner: PositionCache) -> None:
        Cache.__init__(self, layers=owner.layers)
        self.model = owner.model
        self._owner, self._write = owner, owner._write
        self._written = list(owner.lengths)

    @property
    def lengths(self) -> list[int]:  # type: ignore[override]
        return self._owner.lengths

    def place(self, starts: Sequence[int], count: int) -> None:
        self._written = [max(*pair) for pair in zip(self._written, self.lengths, strict=True)]
        super().place(starts, count)

    def commit(self, lengths: Sequence[int]) -> None:
        self._written = list(lengths)

    def select(self, rows: Sequence[int]) -> None:
        self._written = [self._written[row] for row in rows]

    @property
    def nbytes(self) -> int:
        """Nothing of its own."""
        return 0


class FixedLayer(PositionLayer):
    """One layer's whole buffers, written at the slots of a tensor: nothing in it depends on numbers of the host."""

    def __init__(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        super().__init__(_Write())
        self.keys, self.values, self._slots = keys, values, slots
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self._slots, key_states)
        self.values.index_copy_(2, self._slots, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return int(self.keys.shape[2]), 0


class FixedCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """The owner's buffers for one forward of static shapes, whose tokens go to `slots` [m] of every row."""

    def __init__(self, owner: PositionCache, slots: Tensor) -> None:
        super().__init__(layers=[FixedLayer(layer.keys, layer.values, slots) for layer in owner.layers])


def cache_argument(model: Any) -> str | None:
    """The name under which this model's forward takes its cache; None where it takes none."""
    names = inspect.signature(model.forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in names), None)


def check_rollback(model: Any, role: str) -> None:
    """Refuse, before anything runs, a model whose state is not addressed by position.

    Raises:
        ValueError: encoder-decoder models; recurrent, convolutional or otherwise stateful models; models whose forward
            takes no cache.
    """
    config = model.config.get_text_config(decoder=True)
    kind = f"{role} {type(model).__name__} (model_type={config.model_type!r})"
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"{kind} is an encoder-decoder model; speculative decoding here needs a decoder-only model.")
    unknown = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES)
    stateful = getattr(model, "_is_stateful", False)
    if stateful or unknown or cache_argument(model) is None:
        other = "recurrent state" if stateful else "a forward without a cache argument"
        why = f"layers of type {unknown}" if unknown else other
        raise ValueError(
            f"{kind} has {why}, whose state cannot be rolled back after a rejected draft; "
            "use a model with full or sliding-window attention only, or transformers' own generate()."
        )
