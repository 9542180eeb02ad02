"""Methods take turns, warm up first, and are timed by the clock around the whole call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from decoder.measure.summary import agreement, speedup, summarise
from decoder.measure.timing import Counts, RunOutput, Sample, interleaved
from measure.simulated import Clock, install


@dataclass
class Steady:
    """Takes `seconds` a prompt token and says `token` three times."""

    name: str
    seconds: float
    clock: Clock
    calls: list[tuple[str, tuple[int, ...], int]]
    token: int = 7
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __call__(self, prompt: Sequence[int], seed: int) -> RunOutput:
        self.calls.append((self.name, tuple(prompt), seed))
        self.clock.now += self.seconds * len(prompt)
        return RunOutput((self.token,) * 3)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return install(monkeypatch)


def test_turns(clock: Clock) -> None:
    calls: list[tuple[str, tuple[int, ...], int]] = []
    methods = [Steady("a", 1.0, clock, calls), Steady("b", 2.0, clock, calls)]
    samples = interleaved(methods, [[1], [2, 3]], repeats=2, warm_up=1, seed=10)
    assert calls[:2] == [("a", (1,), 10), ("b", (1,), 10)]  # warm-up, not in the samples
    order = [(name, prompt) for name, prompt, _ in calls[2:]]
    assert order[:4] == [("a", (1,)), ("b", (1,)), ("b", (2, 3)), ("a", (2, 3))]  # who begins moves on
    assert len(samples) == 8
    assert {(s.method, s.prompt, s.wall_s) for s in samples} == {("a", 0, 1), ("a", 1, 2), ("b", 0, 2), ("b", 1, 4)}
    seeds = {(prompt, seed) for _, prompt, seed in calls[2:]}
    assert seeds == {((1,), 10), ((2, 3), 10), ((1,), 11), ((2, 3), 11)}  # the same for all methods


def test_speedup_and_summary(clock: Clock) -> None:
    calls: list[tuple[str, tuple[int, ...], int]] = []
    methods = [Steady("baseline", 3.0, clock, calls), Steady("fast", 1.5, clock, calls, token=8)]
    samples = interleaved(methods, [[1], [2, 3], [4, 5, 6]], repeats=3)
    baseline, fast = summarise(samples)
    assert fast.tokens == 9 and fast.seconds == pytest.approx(9.0)
    assert fast.tokens_per_second == pytest.approx(1.0)
    interval = fast.speedups["baseline"]
    assert (interval.lower, interval.ratio, interval.upper) == pytest.approx((2.0, 2.0, 2.0))
    assert fast.agreement["baseline"].equal == 0 and fast.agreement["baseline"].of == 9
    assert fast.agreement["baseline"].first_difference == (0, 0)
    assert not baseline.speedups and baseline.alpha is None


def test_a_slow_repeat_does_not_move_the_median() -> None:
    calm = [Sample("x", 0, r, 1.0, (1, 2)) for r in range(3)]
    hit = [Sample("y", 0, 0, 50.0, (1, 2)), Sample("y", 0, 1, 1.0, (1, 2)), Sample("y", 0, 2, 1.0, (1, 2))]
    assert speedup(hit, calm).ratio == 1.0


def test_stopping_early_is_not_a_speedup() -> None:
    """Half the tokens in half the time is the same speed."""
    whole = [Sample("x", p, 0, 2.0, (1,) * 10) for p in range(2)]
    half = [Sample("y", p, 0, 1.0, (1,) * 5) for p in range(2)]
    assert speedup(half, whole).ratio == pytest.approx(1.0)


def test_agreement_names_the_first_difference() -> None:
    ours = [Sample("x", 0, 0, 1.0, (1, 2, 3)), Sample("x", 1, 0, 1.0, (4, 5, 9)), Sample("x", 2, 0, 1.0, (1, 2))]
    theirs = [Sample("y", 0, 0, 1.0, (1, 2, 3)), Sample("y", 1, 0, 1.0, (4, 5, 6)), Sample("y", 2, 0, 1.0, (1,))]
    found = agreement(ours, theirs)
    assert (found.equal, found.of, found.first_difference) == (1, 3, (1, 2))
    assert agreement(ours[2:], theirs[2:]).first_difference == (2, 1)  # one is the start of the other


def test_counts_add_and_shares_follow() -> None:
    one = Counts(8, 4, 6, 6, 2, 0.5, 1.0, 2.0, 0.5)
    samples = [Sample("x", 0, r, 4.0, (1,) * 7, one) for r in range(2)]
    (found,) = summarise(samples)
    assert found.counts == Counts(16, 8, 12, 12, 4, 1.0, 2.0, 4.0, 1.0)
    assert (found.acceptance_rate, found.tokens_per_iteration, found.overhead_share) == (0.5, 3.0, 0.125)
    assert found.alpha == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("names", "prompts", "options", "message"),
    [
        ([], [[1]], {}, "at least one"),
        (["a", "a"], [[1]], {}, "name of its own"),
        (["a"], [], {}, "prompts is empty"),
        (["a"], [[1]], {"repeats": 0}, "repeats=0"),
        (["a"], [[1]], {"warm_up": -1}, "warm_up=-1"),
    ],
)
def test_bad_input(clock: Clock, names: list[str], prompts: list[list[int]], options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interleaved([Steady(name, 1.0, clock, []) for name in names], prompts, **options)
