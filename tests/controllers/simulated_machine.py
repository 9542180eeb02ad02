"""A simulated device, drafter and loop: real controllers are fed real `Step`s whose seconds are computed.

One plain round of one row takes 1 second. No model, no clock, fixed seeds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from decoder.clock import Seconds
from decoder.types import Controller, RowStep, Step

Alpha = Callable[[int], float]  # position in the text -> chance that a tested token is accepted


def flat(m: int) -> float:
    return 1.0


def sloped(m: int) -> float:
    return 1.0 + 0.08 * (m - 1)


def cliff(m: int) -> float:
    """float32 on a processor: a jump from one token to two, then flat."""
    return 1.0 if m == 1 else 2.5


def late_cliff(m: int) -> float:
    """A tile ends after four tokens."""
    return 1.0 if m <= 4 else 1.8


SHAPES = {"flat": flat, "sloped": sloped, "cliff": cliff, "late_cliff": late_cliff}


@dataclass
class Machine:
    """c: a draft step in plain rounds; noise: relative spread of every time; spikes: chance of a fivefold delay.

    read: seconds the drafter needs for each token it has missed beyond the last; batch: what a round costs for B rows.
    """

    verify: Callable[[int], float] = flat
    c: float = 0.1
    noise: float = 0.0
    spikes: float = 0.0
    read: float = 0.0
    batch: Callable[[int], float] = field(default=lambda rows: 1.0)
    speed: Callable[[int], float] = field(default=lambda round_number: 1.0)  # a load that comes and goes

    @property
    def mean_factor(self) -> float:
        """How much longer than without noise things take on average."""
        return math.exp(self.noise**2 / 2) * (1.0 + 4.0 * self.spikes)

    def timed(self, seconds: float, rng: random.Random) -> float:
        if self.noise:
            seconds *= rng.lognormvariate(0.0, self.noise)
        if self.spikes and rng.random() < self.spikes:
            seconds *= 5.0
        return seconds


@dataclass
class Outcome:
    seconds: float
    lengths: list[int]  # asked in each round
    row_tokens: list[int]
    first_proposal_s: float = 0.0  # reads the prompt
    worst_excess_s: float = 0.0  # the most that a drafting round took beyond a plain one

    def efficiency(self, machine: Machine, alpha: float, supply: float = 1.0) -> float:
        """Speed over the best fixed length's, with the tokens each round could expect instead of those it drew."""
        tokens = sum(expected_tokens(k, alpha, supply) for k in self.lengths)
        return tokens / self.seconds / best_rate(machine, alpha, supply)[0]


def overlap_of(alpha: float, rng: random.Random) -> float:
    """A chance to pass with mean alpha, spread as real ones are: often 1, sometimes anything."""
    if alpha < 0.5:
        return rng.random() * 2.0 * alpha
    return 1.0 if rng.random() < 2.0 * alpha - 1.0 else rng.random()


def play(
    controller: Controller,
    machine: Machine,
    alpha: Alpha | float,
    tokens: int | Sequence[int],
    seed: int = 0,
    *,
    prompt: int = 20,
    greedy: bool = False,
    supply: float = 1.0,
    room: bool = True,
    prefill_s: float = 1.0,
) -> Outcome:
    """Emit `tokens` after the prefill in each row and count the seconds of the rounds after it."""
    rng = random.Random(seed)
    wanted = [tokens] if isinstance(tokens, int) else list(tokens)
    chance = alpha if callable(alpha) else lambda position: alpha
    done = [0] * len(wanted)
    outcome = Outcome(0.0, [], wanted)
    prefill = tuple(RowStep(b, (), 0, (0,), None, (), prompt + 1, n) for b, n in enumerate(wanted))
    controller.observe(Step(0, prefill, prefill_s, Seconds(prefill_s), Seconds(0.0)))
    missed, index = prompt, 0
    while any(have < want for have, want in zip(done, wanted, strict=True)):
        index += 1
        live = [b for b, want in enumerate(wanted) if done[b] < want]
        k = controller.next_length()
        counts = [min(k, wanted[b] - done[b] - 1) for b in live]
        found = [n if rng.random() < supply else 0 for n in counts]
        width = max(found)
        rows = []
        for b, n in zip(live, found, strict=True):
            ratios = [overlap_of(chance(done[b] + i), rng) for i in range(n)]
            passed = [rng.random() < ratio for ratio in ratios]
            accepted = passed.index(False) if False in passed else n
            done[b] += accepted + 1
            left = wanted[b] - done[b]
            rows.append(
                RowStep(
                    b, (1,) * n, accepted, (1,) * (accepted + 1), None if left else "length",
                    () if greedy else tuple(ratios), prompt + 1 + done[b], left if room else None,
                )
            )  # fmt: skip
        scale = machine.batch(len(live)) * machine.speed(index)
        target_s = machine.timed(machine.verify(width + 1) * scale, rng)
        draft_s, lap = 0.0, None
        if any(counts):
            reading_s = machine.read * missed
            draft_s = machine.timed(machine.c * width * scale, rng) + reading_s
            outcome.first_proposal_s = outcome.first_proposal_s or draft_s
            lap, missed = Seconds(draft_s), 0
        else:
            missed += 1
        wall_s = target_s + draft_s
        controller.observe(Step(index, tuple(rows), wall_s, Seconds(target_s), lap, k))
        outcome.seconds += wall_s
        if lap is not None:
            outcome.worst_excess_s = max(outcome.worst_excess_s, wall_s - scale)
        outcome.lengths.append(k)
    return outcome


def expected_tokens(k: int, alpha: float, supply: float = 1.0) -> float:
    return 1.0 + supply * sum(alpha**i for i in range(1, k + 1))


def fixed_rate(k: int, machine: Machine, alpha: float, supply: float = 1.0) -> float:
    """Tokens a second of a fixed length, in expectation."""
    return expected_tokens(k, alpha, supply) / (
        supply * (k * machine.c + machine.verify(k + 1)) + (1.0 - supply) * machine.verify(1)
    )


def best_rate(machine: Machine, alpha: float, supply: float = 1.0) -> tuple[float, int]:
    """The best fixed length's tokens a second, and that length."""
    return max((fixed_rate(k, machine, alpha, supply), k) for k in range(17))
