"""The exact law of the real loop on a table model: every random choice replayed, every leaf weighed.

The target is a `TableModel`; loop, drafter, verifier, warper and processors are the real ones. What comes out is a law
over whole generated sequences, to be compared with `exact_law`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from decoder.clock import HostClock
from decoder.controllers import FixedLength
from decoder.loop import Parts, Row, run
from decoder.models.toy import TableModel
from decoder.testing.law import Law, exact_law, table_next, total_variation, worst_sequence
from decoder.testing.replay import ReplayRows, Script
from decoder.testing.watched import WatchedDrafter
from decoder.types import Controller, Drafter, Limits, RandomSource, SamplingParams
from decoder.verify import VERIFIERS, GreedyVerifier
from decoder.warpers import Warper

MAX_LEAVES = 100_000


@dataclass(frozen=True)
class Case:
    """One configuration of the decoder on a table model.

    drafter: the recipe, copied afresh for every batch of leaves.   prompts: a ragged batch; their leaves run mixed.
    batch_rows: leaves that share a run; 1 sends each through the loop alone.
    """

    target: TableModel
    drafter: Drafter
    verifier: str = "auto"
    params: SamplingParams = field(default_factory=lambda: SamplingParams(top_p=1.0))
    processors: tuple[Any, ...] = ()
    k: int = 2
    new_tokens: int = 4
    eos: frozenset[int] = frozenset()
    prompts: tuple[tuple[int, ...], ...] = ((0, 1),)
    controller: Callable[[int], Controller] = FixedLength
    batch_rows: int = 2000

    def parts(self, rows: int, random: RandomSource) -> Parts:
        """The real parts, around the table and this random source."""
        warp = Warper(self.params, self.processors)
        clock = HostClock()
        target = self.target.open(rows, 1 << 30)
        return Parts(
            target=target,
            drafter=WatchedDrafter(copy.deepcopy(self.drafter).attach(target)),
            verifier=GreedyVerifier() if self.params.greedy else VERIFIERS[self.verifier](),
            controller=self.controller(self.k),
            warp=warp,
            draft_warp=warp,
            random=random,
            target_clock=clock,
            draft_clock=clock,
        )

    def expected(self, prompt: Sequence[int]) -> Law:
        """The law this case must have."""
        return exact_law(table_next(self.target, self.params, self.processors), prompt, self.new_tokens, self.eos)

    def with_(self, **changes: Any) -> Case:
        return replace(self, **changes)


@dataclass(frozen=True)
class Enumeration:
    """What the real code does: a law for each prompt of the case, and how many leaves it took to know."""

    laws: tuple[Law, ...]
    leaves: int


def _run_batch(case: Case, jobs: Sequence[tuple[int, Script]]) -> tuple[ReplayRows, list[Row]]:
    random = ReplayRows([script for _, script in jobs])
    rows = []
    for number, (which, _) in enumerate(jobs):
        prompt = case.prompts[which]
        rows.append(Row(number, list(prompt), len(prompt), Limits(case.new_tokens, 1 << 30, case.eos)))
    for _ in run(rows, case.parts(len(rows), random)):
        pass
    return random, rows


def enumerate_law(case: Case) -> Enumeration:
    """Walk all outcomes of the case, depth first.

    Raises:
        AssertionError: the drafter's proposals depend on something other than its row's past, or the tree is too large.
    """
    laws: tuple[Law, ...] = tuple({} for _ in case.prompts)
    stack: list[tuple[int, Script]] = [(which, ()) for which in range(len(case.prompts))]
    leaves = 0
    while stack:
        jobs = stack[-case.batch_rows :]
        del stack[-case.batch_rows :]
        random, rows = _run_batch(case, jobs)
        assert random.finished, "a replayed run asked for fewer choices than before: it is not a function of its past"
        for (which, _), row, weight in zip(jobs, rows, random.weights, strict=True):
            tokens = tuple(row.tokens[row.prompt_length :])
            laws[which][tokens] = laws[which].get(tokens, 0.0) + weight
        stack += [(jobs[row][0], script) for row, script in random.forks]
        leaves += len(jobs)
        assert leaves <= MAX_LEAVES, (
            f"more than {MAX_LEAVES} outcomes; use fewer tokens, a smaller table or a smaller k"
        )
    return Enumeration(laws, leaves)


def law_error(case: Case) -> float:
    """Total variation between what the code does and what it must do: the worst over the prompts."""
    found = enumerate_law(case)
    return max(
        total_variation(law, case.expected(prompt)) for law, prompt in zip(found.laws, case.prompts, strict=True)
    )


def assert_exact(case: Case, tolerance: float, name: str = "") -> float:
    """Total variation of the case, which must stay below `tolerance`.

    Raises:
        AssertionError: naming the total variation and the sequence whose probability is most wrong.
    """
    found = enumerate_law(case)
    worst = 0.0
    for law, prompt in zip(found.laws, case.prompts, strict=True):
        expected = case.expected(prompt)
        mass = sum(law.values())
        assert abs(mass - 1.0) < max(tolerance, 1e-9), (
            f"{name or case.drafter.name}: all outcomes together have probability {mass!r}; "
            "the drafter's proposals depend on something other than its row's past"
        )
        distance = total_variation(law, expected)
        key = worst_sequence(law, expected)
        assert distance < tolerance, (
            f"{name or case.drafter.name}: not lossless, total variation {distance:.3g} (allowed {tolerance:.0e}); "
            f"after prompt {list(prompt)} the tokens {list(key)} come with probability {law.get(key, 0.0):.6g} "
            f"instead of {expected.get(key, 0.0):.6g} (verifier {case.verifier!r}, k={case.k}, {case.params})"
        )
        worst = max(worst, distance)
    return worst
