"""Every outcome of one round, by walking the real verifier through all its random choices in float64.

`Walk` answers each random choice from a script and multiplies up the chance of having answered so; an odometer over
scripts visits every path once. Expected values come from the formulas alone, never through the code under test.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from decoder.types import Draft, Verdict, Verifier

V = 3
Law = dict[tuple[int, ...], np.ndarray]  # prefix -> probabilities [V]


@dataclass
class Walk:
    """A random source for one row: answers from a script, 0 beyond its end, and counts the possible answers."""

    script: list[int] = field(default_factory=list)
    weight: float = 1.0
    choices: list[int] = field(default_factory=list)
    coupled: bool = False

    def _choose(self, probs: Sequence[float]) -> int:
        if len(self.choices) == len(self.script):
            self.script.append(0)
        answer = self.script[len(self.choices)]
        self.choices.append(len(probs))
        self.weight *= probs[answer]
        return answer

    def draw(self, probs: Tensor, starts: Sequence[int], counts: Sequence[int]) -> Tensor:
        drawn = [self._choose(probs[0, i].tolist()) for i in range(counts[0])]
        return torch.tensor([drawn + [0] * (probs.shape[1] - len(drawn))])

    def accept(self, numerator: Tensor, denominator: Tensor, counts: Sequence[int]) -> Tensor:
        chances = [min(1.0, float(a) / float(b)) for a, b in zip(numerator[0], denominator[0], strict=True)]
        return torch.tensor([[bool(self._choose([1.0 - chance, chance])) for chance in chances]])

    def select(self, rows: Sequence[int]) -> None:
        raise AssertionError("a single row is never selected from")


class StopAtFirstFailure(Walk):
    """A wrong reading of block verification: later positions are not looked at once one has failed."""

    def accept(self, numerator: Tensor, denominator: Tensor, counts: Sequence[int]) -> Tensor:
        return super().accept(numerator, denominator, counts).long().cumprod(-1).bool()


def random_law(k: int, seed: int, sharpness: float = 1.0) -> Law:
    """A different Dirichlet law after every prefix of up to k tokens."""
    generator = np.random.default_rng(seed)
    prefixes = [prefix for n in range(k + 1) for prefix in itertools.product(range(V), repeat=n)]
    return {prefix: generator.dirichlet(np.full(V, sharpness)) for prefix in prefixes}


def mix(one: Law, other: Law, share: float) -> Law:
    """A draft that partly agrees: share of `other`, the rest of `one`."""
    return {prefix: (1 - share) * one[prefix] + share * other[prefix] for prefix in one}


def rows(law: Law, tokens: Sequence[int], n: int) -> Tensor:
    """[1, n, V]: the law after each of the first n prefixes of `tokens`."""
    return torch.tensor(np.stack([law[tuple(tokens[:i])] for i in range(n)]))[None]


def product(law: Law, tokens: Sequence[int]) -> float:
    return math.prod(law[tuple(tokens[:i])][token] for i, token in enumerate(tokens))


def verdicts(
    verifier: Verifier, p: Tensor, draft: Draft, source: Callable[[list[int]], Walk] = Walk
) -> Iterator[tuple[float, Verdict]]:
    """(probability, verdict) for every way the verifier's choices can fall."""
    script: list[int] = []
    while True:
        walk = source(script)
        verdict = verifier(p, draft, walk, [0])
        if walk.weight > 0:
            yield walk.weight, verdict
        while script and script[-1] == walk.choices[len(script) - 1] - 1:
            script.pop()
        if not script:
            return
        script[-1] += 1


@dataclass
class Round:
    """All outcomes of one round: the law of the emitted tokens and how many were accepted."""

    emitted: dict[tuple[int, ...], float]
    accepted: np.ndarray  # [k + 1] probability of each count
    overlaps: np.ndarray  # [k] mean of prod_{j <= i} min(1, p/q), as the verifier reports it

    @property
    def mean_accepted(self) -> float:
        return float(self.accepted @ np.arange(len(self.accepted)))

    def survival(self) -> np.ndarray:
        """[k]: probability that at least i tokens are accepted, i = 1 ... k."""
        return np.cumsum(self.accepted[::-1])[::-1][1:]


def enumerate_round(
    verifier: Verifier, p: Law, q: Law, k: int, source: Callable[[list[int]], Walk] = Walk, sampled: bool = True
) -> Round:
    """Draft every block with its probability under q (or the argmax block), and walk the verifier through it."""
    emitted: dict[tuple[int, ...], float] = {}
    accepted, overlaps = np.zeros(k + 1), np.zeros(k)
    for tokens in itertools.product(range(V), repeat=k):
        if sampled:
            chance, probs = product(q, tokens), rows(q, tokens, k)
        else:
            chance = float(all(token == q[tokens[:i]].argmax() for i, token in enumerate(tokens)))
            probs = None
        if chance == 0:
            continue
        draft = Draft(torch.tensor([tokens]), [k], probs)
        for weight, verdict in verdicts(verifier, rows(p, tokens, k + 1), draft, source):
            n, y = int(verdict.accepted[0]), int(verdict.next_tokens[0])
            text = (*tokens[:n], y)
            emitted[text] = emitted.get(text, 0.0) + chance * weight
            accepted[n] += chance * weight
            if verdict.overlap is not None:
                overlaps += chance * weight * verdict.overlap[0].cumprod(-1).numpy()
    return Round(emitted, accepted, overlaps)


def distance_from_target(emitted: dict[tuple[int, ...], float], p: Law, k: int) -> float:
    """Total variation between texts of k + 1 tokens: the round's, continued by the target, against the target's own."""
    total = 0.0
    for text in itertools.product(range(V), repeat=k + 1):
        ours = sum(
            emitted.get(text[:n], 0.0) * math.prod(p[text[:i]][text[i]] for i in range(n, k + 1))
            for n in range(1, k + 2)
        )
        total += abs(ours - product(p, text))
    return total / 2


PAIRS = [(seed, share) for seed in range(4) for share in (0.1, 1.0)]  # a good draft and an unrelated one


def pair(seed: int, share: float, k: int) -> tuple[Law, Law]:
    p = random_law(k, seed)
    return p, mix(p, random_law(k, seed + 100), share)


def token_survival(p: Law, q: Law, k: int) -> list[float]:
    """A_i = sum over drafted prefixes of prod min(p, q), from the formula alone."""
    return [
        sum(
            math.prod(min(p[text[:j]][text[j]], q[text[:j]][text[j]]) for j in range(i))
            for text in itertools.product(range(V), repeat=i)
        )
        for i in range(1, k + 1)
    ]


def running_minimum(p: Law, q: Law, tokens: Sequence[int]) -> float:
    """P_i of a drafted prefix, from the recurrence."""
    value = 1.0
    for j, token in enumerate(tokens):
        value = min(value * p[tuple(tokens[:j])][token] / q[tuple(tokens[:j])][token], 1.0)
    return value
