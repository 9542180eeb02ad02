"""Drafters whose proposals are trees, for tests: over a table, by sampling or not, and over a model without a cache."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch

from decoder.drafters.branching import draw_children
from decoder.models.toy import TableModel
from decoder.trees import Tree
from decoder.types import Draft, Drafter, ragged

# Parents; each a prefix-closed list, so that a smaller budget takes its beginning.
FORK = (-1, -1, 0)  # two children, then one below the first
COMB = (-1, 0, -1, 2)  # two paths of two
BUSH = (-1, -1, 0, 1, 1, 0, 3)
CHAIN = (-1, 0, 1)
SHAPES = {"fork": (FORK,), "comb": (COMB,), "bush": (BUSH,), "chain": (CHAIN,), "many": (FORK, COMB, CHAIN, (-1, -1))}


class TableTrees(Drafter):
    """Trees over a table's distributions. Which of the shapes a row takes depends on its past.

    how: "without" or "with" replacement, or "best": the likeliest tokens, as a function of the past.
    """

    name = "table trees"

    def __init__(self, model: TableModel, shapes: Sequence[Sequence[int]], how: str = "without") -> None:
        self.table, self.shapes, self.how = model, shapes, how
        self.deterministic = how == "best"
        self.kept: list[Sequence[Sequence[int]]] = []

    def start(self, contexts, warp, random, limit):
        run = copy.copy(self)
        run.warp, run.random = warp, random
        return run

    def chains(self):
        return TableTrees(self.table, (CHAIN,), self.how) if self.shapes != (CHAIN,) else self

    def keep_paths(self, paths):
        self.kept.append(paths)

    def _q(self, contexts, rows):
        before = torch.tensor([context[-2] if len(context) > 1 else 0 for context in contexts])
        logits = self.table.table[before, torch.tensor([context[-1] for context in contexts])][:, None]
        scores = self.warp.scores(logits, contexts, rows=rows)[:, 0]
        return torch.softmax(scores, -1) if self.warp.greedy else self.warp.probs(scores[:, None], rows)[:, 0]

    def propose(self, contexts, counts):
        shapes = [self.shapes[sum((i + 2) * (t + 1) for i, t in enumerate(c)) % len(self.shapes)] for c in contexts]
        parents = [list(shape[:n]) for shape, n in zip(shapes, counts, strict=True)]
        best = self.deterministic or self.warp.greedy
        tokens, laws, left = [], [], [{} for _ in contexts]
        for i in range(max(map(len, parents))):
            rows = [b for b, mine in enumerate(parents) if i < len(mine)]
            paths = [self._path(tokens, parents[b], b, i) for b in rows]
            q = self._q([[*contexts[b], *path] for b, path in zip(rows, paths, strict=True)], rows)
            law = torch.ones(len(contexts), self.table.vocab_size, dtype=q.dtype) / self.table.vocab_size
            for place, b in enumerate(rows):
                law[b] = left[b].get(parents[b][i], q[place])
            places = [len(context) for context in contexts]
            for place, b in enumerate(rows):
                places[b] += len(paths[place])
            if best:
                token = law.argmax(-1, keepdim=True)
            else:
                token = self.random.draw(law[:, None], places, [int(b in rows) for b in range(len(contexts))])
            for b in rows:
                rest = law[b].clone()
                if self.how != "with":
                    rest[token[b]] = 0.0
                    # a sibling too many: it is drawn from what cannot hold any more, the elder ones again
                    rest = rest / rest.sum() if rest.sum() > 0 else torch.full_like(rest, 1.0 / len(rest))
                left[b][parents[b][i]] = rest
            tokens.append(token)
            laws.append(law)
        if not tokens:
            return Draft.nothing(len(contexts))
        probs = None if best or self.random.coupled else torch.stack(laws, dim=1)
        tree = None if self.shapes == (CHAIN,) else Tree(parents)
        return Draft(torch.cat(tokens, dim=1), [len(mine) for mine in parents], probs, tree=tree)

    @staticmethod
    def _path(tokens, parents, b, node):
        path = []
        while parents[node] >= 0:
            node = parents[node]
            path.insert(0, int(tokens[node][b]))
        return path


class Siblings(Drafter):
    """One level of children, drawn by `draw_children`."""

    name = "siblings"

    def __init__(self, model: TableModel, breadth: int = 2) -> None:
        self.table, self.breadth = model, breadth

    def start(self, contexts, warp, random, limit):
        run = copy.copy(self)
        run.inner = TableTrees(self.table, (FORK,)).start(contexts, warp, random, limit)
        return run

    def chains(self):
        return TableTrees(self.table, (CHAIN,))

    def propose(self, contexts, counts):
        q = self.inner._q(contexts, list(range(len(contexts))))
        wanted = [min(k, self.breadth) for k in counts]
        tokens, laws, counts = draw_children(q, wanted, self.inner.random, [len(context) for context in contexts])
        return Draft(tokens, counts, laws, tree=Tree([[-1] * n for n in counts]))


class ModelTrees(Drafter):
    """The likeliest tokens of a Hugging Face model, read without a cache: slow, and right by construction.

    swaps: puts the second-best sibling first, so that what is accepted does not stand first in the tree.
    """

    name = "model trees"
    deterministic = True

    def __init__(self, model, shapes: Sequence[Sequence[int]], swaps: bool = True) -> None:
        self._reads, self.shapes, self.swaps = model, shapes, swaps

    def chains(self):
        return ModelTrees(self._reads, (CHAIN,), False)

    def propose(self, contexts, counts):
        drafts = [self._row(context, k) for context, k in zip(contexts, counts, strict=True)]
        tree = None if self.shapes == (CHAIN,) else Tree([parents for _, parents in drafts])
        return Draft(ragged([tokens for tokens, _ in drafts]), [len(tokens) for tokens, _ in drafts], tree=tree)

    def _row(self, context, k):
        parents = list(self.shapes[len(context) % len(self.shapes)][:k])
        tokens: list[int] = []
        for node, parent in enumerate(parents):
            path, at = [], parent
            while at >= 0:
                path.insert(0, tokens[at])
                at = parents[at]
            with torch.no_grad():
                logits = self._reads(torch.tensor([[*context, *path]]), use_cache=False).logits[0, -1]
            order = logits.topk(4).indices.tolist()
            if self.swaps and parents.count(parent) > 1:
                order[:2] = order[1::-1]
            tokens.append(order[sum(other == parent for other in parents[:node])])
        return tokens, parents


Build = Callable[[TableModel], Drafter]
