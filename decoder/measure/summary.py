"""Samples folded into one account of each method: speed, spread, speed-ups, acceptance, equality of outputs.

    seconds(prompt)   = median over repeats of the wall time
    tokens_per_second = tokens of one pass over the prompts / sum of seconds(prompt)
    speed-up          = sum of the reference's seconds(prompt) / sum of seconds(prompt), bootstrapped over prompts

Where EOS may end texts at different lengths, the reference's seconds are first scaled to the method's own tokens, so
that stopping early is not rewarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from operator import add
from typing import Any

from decoder.measure.statistics import Interval, Spread, bootstrap_ratio, median, spread
from decoder.measure.timing import Counts, Sample

PLAIN = ("hf", "baseline", "baseline compiled")  # the names of methods that draft nothing; the others are set against


@dataclass(frozen=True)
class Agreement:
    """Outputs compared token for token with the reference's; `first_difference` is (prompt, position) or None."""

    equal: int
    of: int
    first_difference: tuple[int, int] | None


@dataclass(frozen=True)
class MethodSummary:
    """One method over all prompts. `counts` pools this project's own loop's accounts (None for others)."""

    name: str
    prompts: int
    tokens: int
    seconds: float
    tokens_per_second: float
    spread: Spread  # of tokens per second over all runs
    speedups: dict[str, Interval] = field(default_factory=dict)  # reference -> interval
    agreement: dict[str, Agreement] = field(default_factory=dict)  # reference -> agreement
    counts: Counts | None = None
    runs: int = 0

    def _share(self, part: float, whole: float) -> float | None:
        return part / whole if whole else None

    @property
    def acceptance_rate(self) -> float | None:
        return None if self.counts is None else self._share(self.counts.accepted, self.counts.drafted)

    @property
    def alpha(self) -> float | None:
        return None if self.counts is None else self._share(self.counts.accepted, self.counts.tested)

    @property
    def tokens_per_iteration(self) -> float | None:
        if self.counts is None:
            return None
        return self._share(self.counts.emitted_after_prefill, self.counts.iterations)

    @property
    def drafting_share(self) -> float | None:
        """Iterations in which anything was proposed, of all: what a silent drafter leaves out."""
        counts = self.counts
        if counts is None or (counts.drafted and not counts.drafting):  # an account that did not say
            return None
        return self._share(counts.drafting, counts.iterations)

    @property
    def overhead_share(self) -> float | None:
        """Time outside the models' forwards and the drafter / wall."""
        if self.counts is None:
            return None
        counts = self.counts
        return self._share(counts.overhead_s, counts.prefill_s + counts.draft_s + counts.target_s + counts.overhead_s)

    def to_dict(self) -> dict[str, Any]:
        names = ("acceptance_rate", "alpha", "tokens_per_iteration", "drafting_share", "overhead_share")
        return asdict(self) | {name: getattr(self, name) for name in names}


def _per_prompt(samples: Sequence[Sample]) -> dict[int, tuple[float, float]]:
    """prompt -> (median seconds, mean tokens)."""
    found = {}
    for prompt in sorted({sample.prompt for sample in samples}):
        mine = [sample for sample in samples if sample.prompt == prompt]
        tokens = sum(len(sample.token_ids) for sample in mine) / len(mine)
        found[prompt] = (median([sample.wall_s for sample in mine]), tokens)
    return found


def speedup(samples: Sequence[Sample], reference: Sequence[Sample], seed: int = 0) -> Interval:
    """The reference's seconds for as many tokens as these, over the seconds of these, with an interval over prompts."""
    mine, theirs = _per_prompt(samples), _per_prompt(reference)
    shared = sorted(mine.keys() & theirs.keys())
    per_token = [theirs[p][0] * mine[p][1] / theirs[p][1] for p in shared]  # their seconds for as many tokens as mine
    return bootstrap_ratio(per_token, [mine[p][0] for p in shared], seed=seed)


def agreement(samples: Sequence[Sample], reference: Sequence[Sample]) -> Agreement:
    """Outputs of the same prompt and repeat, token for token."""
    theirs = {(sample.prompt, sample.repeat): sample.token_ids for sample in reference}
    equal, compared, first = 0, 0, None
    for sample in samples:
        other = theirs.get((sample.prompt, sample.repeat))
        if other is None:
            continue
        compared += 1
        if other == sample.token_ids:
            equal += 1
        elif first is None:
            pairs = zip(sample.token_ids, other, strict=False)
            place = next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(sample.token_ids), len(other)))
            first = (sample.prompt, place)
    return Agreement(equal, compared, first)


def summarise(
    samples: Sequence[Sample], references: Sequence[str] = PLAIN, *, outputs_comparable: bool = True
) -> list[MethodSummary]:
    """A summary of each method in order of appearance, against each reference that was run.

    `outputs_comparable`: greedy, so that outputs should be equal; sampled outputs of different methods never are.
    """
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.method, []).append(sample)
    present = [name for name in references if name in groups]
    summaries = []
    for name, mine in groups.items():
        prompts = _per_prompt(mine)
        seconds, tokens = (sum(pair[i] for pair in prompts.values()) for i in (0, 1))
        accounts = [sample.counts for sample in mine if sample.counts is not None]
        others = [each for each in present if each != name]
        summaries.append(
            MethodSummary(
                name,
                len(prompts),
                round(tokens),
                seconds,
                tokens / seconds,
                spread([len(sample.token_ids) / sample.wall_s for sample in mine]),
                {each: speedup(mine, groups[each]) for each in others},
                {each: agreement(mine, groups[each]) for each in others} if outputs_comparable else {},
                reduce(add, accounts) if accounts else None,
                len(mine),
            )
        )
    return summaries
