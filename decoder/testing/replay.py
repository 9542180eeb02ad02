"""A random source that replays every outcome, so that the law of the real code can be computed exactly.

Each row follows a script: the outcomes of its first choices. Beyond the script it takes the first outcome of nonzero
probability and leaves every alternative behind as a new script. The probability of a leaf is the product of the
probabilities of its choices, so running all scripts gives the exact law of whatever code asked for the choices, with no
sampling error. Rows branch independently: thousands of leaves run through the loop as one batch.

It does not know what is chosen or why; positions a row does not use (beyond `counts`) never branch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Script = tuple[int, ...]


class ReplayRows:
    """A `RandomSource` over B rows, one script each.

    weights: probability of the path each row took, float64.   forks: (row, script) of every alternative left behind.
    """

    coupled = False

    def __init__(self, scripts: Sequence[Script]) -> None:
        rows = len(scripts)
        self._scripted = torch.tensor([len(script) for script in scripts])
        width = int(self._scripted.max()) + 32
        self._taken = torch.zeros(rows, width, dtype=torch.long)  # outcomes, scripted ones in place from the start
        for row, script in enumerate(scripts):
            self._taken[row, : len(script)] = torch.tensor(script, dtype=torch.long)
        self._cursor = torch.zeros(rows, dtype=torch.long)
        self._live = torch.arange(rows)  # which of the rows the loop still holds, in its order
        self._weights = torch.ones(rows, dtype=torch.float64)
        self.forks: list[tuple[int, Script]] = []

    @property
    def weights(self) -> list[float]:
        return [float(weight) for weight in self._weights]

    @property
    def finished(self) -> bool:
        """Whether every row came to the end of its script; if not, the code asked for fewer choices this time."""
        return bool((self._cursor >= self._scripted).all())

    def _choose(self, rows: Tensor, law: Tensor) -> Tensor:
        """Outcomes [m] for `rows` [m], from law [m, n] in float64."""
        assert bool((law >= 0).all()) and bool(torch.isfinite(law).all()), "a law with negative or non-finite mass"
        total = law.sum(-1, keepdim=True)
        assert bool((total > 0).all()), "a law without mass"
        cursor = self._cursor[rows]
        if int(cursor.max()) >= self._taken.shape[1]:
            self._taken = torch.cat([self._taken, torch.zeros_like(self._taken)], dim=1)
        possible = law > 0
        scripted = cursor < self._scripted[rows]
        chosen = torch.where(scripted, self._taken[rows, cursor], possible.long().argmax(-1))
        self._taken[rows, cursor] = chosen
        self._cursor[rows] = cursor + 1
        chance = (law / total).gather(-1, chosen[:, None]).squeeze(-1)
        assert bool((chance > 0).all()), (
            "a replayed choice has become impossible: the run is not a function of its past"
        )
        self._weights[rows] *= chance
        others = possible & ~scripted[:, None]
        others.scatter_(1, chosen[:, None], False)
        self._leave(rows, cursor, others)
        return chosen

    def _leave(self, rows: Tensor, cursor: Tensor, others: Tensor) -> None:
        """Record the alternatives others [m, n] of this choice as scripts to run later."""
        index, outcome = others.nonzero(as_tuple=True)
        if len(index) == 0:
            return
        row, depth = rows[index].tolist(), cursor[index].tolist()
        taken = self._taken[rows[index]].tolist()
        for r, d, before, other in zip(row, depth, taken, outcome.tolist(), strict=True):
            self.forks.append((r, (*before[:d], other)))

    def _using(self, counts: Sequence[int], position: int) -> Tensor:
        """Which of the loop's rows use this position."""
        return (torch.tensor(list(counts)) > position).nonzero().squeeze(1)

    def draw(self, probs: Tensor, starts: Sequence[int], counts: Sequence[int]) -> Tensor:
        assert len(starts) == len(counts) == probs.shape[0] == len(self._live)
        tokens = torch.zeros(probs.shape[:2], dtype=torch.long)
        for position in range(probs.shape[1]):
            using = self._using(counts, position)
            if len(using):
                tokens[using, position] = self._choose(self._live[using], probs[using, position].double().cpu())
        return tokens.to(probs.device)

    def accept(self, numerator: Tensor, denominator: Tensor, counts: Sequence[int]) -> Tensor:
        assert len(counts) == numerator.shape[0] == len(self._live)
        passed = torch.zeros(numerator.shape, dtype=torch.bool)
        for position in range(numerator.shape[1]):
            using = self._using(counts, position)
            if len(using):
                above = numerator[using, position].double().cpu()
                below = denominator[using, position].double().cpu()
                # u * below < above with u uniform in [0, 1): certain where above >= below > 0, or above > 0 = below
                chance = torch.where(above >= below, (above > 0).double(), above / below)
                outcome = self._choose(self._live[using], torch.stack([1.0 - chance, chance], dim=-1))
                passed[using, position] = outcome.bool()
        return passed.to(numerator.device)

    def select(self, rows: Sequence[int]) -> None:
        self._live = self._live[torch.tensor(list(rows))]
