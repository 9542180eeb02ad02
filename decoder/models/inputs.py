"""What a forward needs besides its tokens, made once for a model and sliced from then on: positions and masks.

A forward of m tokens after s others takes positions s ... s + m - 1, and the query at position t sees slots 0 ... t.
Both are windows of something larger: the positions of 0, 1, 2, ..., the mask of a staircase.
In a tree of drafted tokens a node's position is the root's plus its depth, wherever it is written, and it sees the
slots before the root and those of its ancestors.
Does not know caches or models; rows at different positions get a mask of their own elsewhere.

`grouped_heads` is the state of attention around a forward that carries a mask. transformers' sdpa attention hands
key-value heads to torch as they are only without a mask; with one, which is every forward of more than one token behind
a cache, it first copies each of them to all of its query heads, layer by layer, the whole context again and again.
torch's CPU kernel needs no such copy, with a mask either, and the result is the same to the bit. On SmolLM2-135M (9
query heads on 3) behind 700 tokens that was 5 ms of a 48 ms forward of two tokens. On CUDA a mask together with grouped
heads would leave the fast kernels, so there nothing is changed. transformers >= 5.24 reads an environment variable for
this at each call; older versions ignore it and go on copying.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from decoder.trees import Tree

_ROWS = 32  # queries the staircase serves; longer forwards are prefills, whose mask is the library's
_KEPT = 65_536  # positions held; contexts of millions are announced, and positions beyond are made when needed
_FIRST = 512  # columns to begin with; doubled when a text grows beyond them


class Inputs:
    """For one model. context_length: None where the model names no limit."""

    def __init__(self, context_length: int | None, device: torch.device) -> None:
        self._last = None if context_length is None else context_length - 1
        self._device = device
        self._positions = torch.arange(min(context_length or 0, _KEPT), device=device)
        self._columns = 0
        self._stairs = torch.empty(0)

    def positions(self, starts: Sequence[int], count: int) -> Tensor:
        """[B, m] long: starts[b] ... starts[b] + m - 1, a view where all rows start alike."""
        start = starts[0]
        if start + count <= len(self._positions) and all(other == start for other in starts):
            return self._positions[start : start + count].expand(len(starts), -1)
        positions = torch.arange(count, device=self._device) + torch.tensor(starts, device=self._device)[:, None]
        return positions if self._last is None else positions.clamp_(max=self._last)  # only padding can lie beyond

    def tree_positions(self, starts: Sequence[int], tree: Tree) -> Tensor:
        """[B, K+1] long: the root's position and each node's."""
        positions = tree.depths.to(self._device) + torch.tensor(starts, device=self._device)[:, None]
        return positions if self._last is None else positions.clamp_(max=self._last)  # only padding can lie beyond

    def causal_mask(self, start: int, count: int) -> Tensor | None:
        """[1, 1, m, start + m] bool, a view; None where the library needs no mask or makes it once in a prefill.

        Row i of the staircase is True up to column `columns + i`; slot j stands in column j + columns - start.
        """
        if start == 0 or count == 1 or count > _ROWS:
            return None
        if start > self._columns:
            self._build(max(_FIRST, 2 * self._columns, start))
        first = self._columns - start
        return self._stairs[:, :, :count, first : first + start + count]

    def _build(self, columns: int) -> None:
        edge = torch.arange(columns + _ROWS, device=self._device) - columns  # [columns + rows]
        seen = edge <= torch.arange(_ROWS, device=self._device)[:, None]
        self._columns, self._stairs = columns, seen[None, None]


def attention_mask(
    starts: Sequence[int], count: int, window: int | None, device: torch.device, least_slots: int = 0
) -> Tensor:
    """[B, 1, m, kv] bool: query i of row b at position t = starts[b] + i sees slots max(0, t - window + 1) ... t."""
    positions = torch.tensor(starts, device=device)[:, None] + torch.arange(count, device=device)  # [B, m]
    slots = torch.arange(max(max(starts) + count, least_slots), device=device)
    seen = slots <= positions[..., None]
    if window is not None:
        seen &= slots > positions[..., None] - window
    return seen[:, None]


def tree_mask(starts: Sequence[int], tree: Tree, window: int | None, device: torch.device) -> Tensor:
    """[B, 1, K+1, kv] bool: which slots the root and each node see.

    Row b's root is in slot starts[b], its nodes in those after it. window: of positions, as in `attention_mask`.
    """
    sees, depths = tree.sees.to(device), tree.depths.to(device)
    count = sees.shape[1]
    fed = torch.arange(max(starts) + count, device=device) - torch.tensor(starts, device=device)[:, None]  # [B, kv]
    node = fed.clamp(0, count - 1)
    seen = sees.gather(2, node[:, None].expand(-1, count, -1))  # [B, K+1, kv]
    seen = torch.where((fed >= 0)[:, None], seen & (fed < count)[:, None], True)
    if window is not None:
        depth = torch.where(fed >= 0, depths.gather(1, node), fed)  # of each slot's token, the root's being 0
        seen &= depth[:, None] > depths[..., None] - window
    return seen[:, None]


_NAME = "TRANSFORMERS_SDPA_FORCE_GQA"
_LOCK = threading.Lock()
_inside = 0  # forwards under way in all threads
_before: str | None = None  # what a person had set


@contextmanager
def grouped_heads(device: torch.device) -> Iterator[None]:
    """While this lasts, sdpa on a CPU does not copy key-value heads. A person's own setting comes back after the last
    of the forwards that overlap."""
    global _inside, _before
    if device.type != "cpu":
        yield
        return
    with _LOCK:
        if _inside == 0:
            _before = os.environ.get(_NAME)
            os.environ[_NAME] = "1"
        _inside += 1
    try:
        yield
    finally:
        with _LOCK:
            _inside -= 1
            if _inside == 0:
                if _before is None:
                    os.environ.pop(_NAME, None)
                else:
                    os.environ[_NAME] = _before
