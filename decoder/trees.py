"""Trees of drafted tokens: which one follows which. Arithmetic on indices; knows no model and no random choice.

A node is the index of a drafted token in its row. Its parent stands before it, -1 is the last committed token, and
siblings stand in the order in which they are tried, the best guess first. A prefix of such a list is a tree again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

Label = TypeVar("Label", bound=Hashable)


class Tree:
    """The shapes of one round's proposals, a tree for each row. It may be kept and proposed again, as Medusa's static
    trees are.

    parents: of each node of each row; rows may differ in size and shape.

    Raises:
        ValueError: a parent that does not stand before its node.
    """

    def __init__(self, parents: Sequence[Sequence[int]]) -> None:
        self.parents = tuple(tuple(row) for row in parents)
        for b, row in enumerate(self.parents):
            for node, parent in enumerate(row):
                if not -1 <= parent < node:
                    raise ValueError(
                        f"parents[{b}][{node}]={parent} must be -1 (the last committed token) or an earlier node."
                    )

    @property
    def width(self) -> int:
        """K, the nodes of the largest row; smaller ones are padded with children of the root."""
        return max(map(len, self.parents), default=0)

    @cached_property
    def sees(self) -> Tensor:
        """[B, K+1, K+1] bool: whether one token fed sees another: its ancestors and itself. The root stands first."""
        width, rows = self.width, []
        for parents in self.parents:
            lines = [[True] + [False] * width]
            for node in range(width):
                line = list(lines[parents[node] + 1 if node < len(parents) else 0])
                line[node + 1] = True
                lines.append(line)
            rows.append(lines)
        return torch.tensor(rows, dtype=torch.bool)

    @cached_property
    def depths(self) -> Tensor:
        """[B, K+1] long: distance from the root, which stands first."""
        return self.sees.sum(-1) - 1

    def paths(self, b: int) -> list[list[int]]:
        """[K+1] lists: the nodes from the root down to each token fed of row b, itself included; padding has none."""
        found: list[list[int]] = [[]]
        for node, parent in enumerate(self.parents[b]):
            found.append([*found[parent + 1], node])
        return found + [[]] * (self.width - len(self.parents[b]))

    def cut(self, counts: Sequence[int]) -> Tree:
        """The first counts[b] nodes of each row."""
        if all(n == len(row) for n, row in zip(counts, self.parents, strict=True)):
            return self
        return Tree([row[:n] for n, row in zip(counts, self.parents, strict=True)])


def chain_parents(count: int) -> list[int]:
    """A chain as a tree."""
    return list(range(-1, count - 1))


def depths_of(parents: Sequence[int]) -> list[int]:
    """Of one row's nodes, 1 for children of the root."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return depths


def join(paths: Sequence[Sequence[Label]]) -> tuple[list[Label], list[int]]:
    """The tree of several paths from the root, common beginnings shared: (label of each node, its parent).

    Labels are token ids, or ranks among a head's guesses (Medusa, arXiv 2401.10774). A path stands together, the first
    one at the start: if that is accepted no key has to move.
    """
    labels: list[Label] = []
    parents: list[int] = []
    known: dict[tuple[int, Label], int] = {}
    for path in paths:
        node = -1
        for label in path:
            key = (node, label)
            if key not in known:
                known[key] = len(labels)
                labels.append(label)
                parents.append(node)
            node = known[key]
    return labels, parents


def best_nodes(chances: Sequence[float], size: int) -> list[int]:
    """The `size` nodes likeliest to be reached, in their order (the reranking of EAGLE-2, arXiv 2406.16858).

    chances: of each node to be reached, at most its parent's: then every node kept has its parent kept, the earlier
    node winning a tie.
    """
    order = sorted(range(len(chances)), key=lambda node: (-chances[node], node))
    return sorted(order[:size])


def renumbered(parents: Sequence[int], kept: Sequence[int]) -> list[int]:
    """The parents among the nodes kept."""
    place = {node: i for i, node in enumerate(kept)} | {-1: -1}
    return [place[parents[node]] for node in kept]


def moves(roots: Sequence[int], paths: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """From which slots to which [B, n] the nodes of each row's path go, to stand in order behind the root.

    roots: the root's slot in each row; node i was written i + 1 slots behind. Shorter rows move the root onto itself.
    """
    width = max(map(len, paths), default=0)
    sources, targets = [], []
    for root, path in zip(roots, paths, strict=True):
        padding = [root] * (width - len(path))
        sources.append([root + 1 + node for node in path] + padding)
        targets.append([root + 1 + i for i in range(len(path))] + padding)
    return sources, targets
