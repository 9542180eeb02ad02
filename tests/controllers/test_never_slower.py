"""The promise of docs/never-slower.md in simulation: time <= (1 + epsilon) plain + allowance + reading + one round."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from simulated_machine import SHAPES, Alpha, Machine, Outcome, flat, play

from decoder.controllers import AutoLength, Experience
from decoder.controllers.ledger import ALLOWANCE_ROUNDS, EPSILON, SAVED_ROUNDS

ROOT = Path(__file__).parents[2]
ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95)


def plain_seconds(machine: Machine, lengths: list[int]) -> float:
    return sum(machine.batch(sum(length >= n for length in lengths)) for n in range(1, max(lengths) + 1))


def bound(outcome: Outcome, machine: Machine, most_rows: int = 1) -> float:
    plain_s = plain_seconds(machine, outcome.row_tokens)
    allowance_s = ALLOWANCE_ROUNDS * machine.batch(most_rows)
    return (1 + EPSILON) * plain_s + allowance_s + outcome.first_proposal_s + outcome.worst_excess_s


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("c", [0.02, 0.1, 0.3, 0.6])
def test_time_stays_within_the_bound(shape: str, c: float) -> None:
    for alpha in ALPHAS:
        for read in (0.0, 0.05):
            machine, experience = Machine(SHAPES[shape], c, read=read), Experience()
            for seed in (1, 2, 3):
                outcome = play(AutoLength(experience), machine, alpha, 128, seed, prompt=100)
                assert outcome.seconds <= bound(outcome, machine) + 1e-9, (alpha, read, seed)


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("c", [0.02, 0.6])
def test_a_hopeless_draft_costs_little(shape: str, c: float) -> None:
    """The ledger allows 5 % of 128 tokens; comparing speeds stops before that, and later calls hardly try."""
    machine, experience = Machine(SHAPES[shape], c), Experience()
    first = play(AutoLength(experience), machine, 0.02, 256, seed=4)
    second = play(AutoLength(experience), machine, 0.02, 256, seed=5)
    assert first.seconds <= 256 / 0.95
    assert second.seconds <= 256 / 0.97


def collapses(position: int) -> float:
    return 0.95 if position < 300 else 0.02


def recovers(position: int) -> float:
    return 0.02 if position < 300 else 0.95


def alternates(position: int) -> float:
    return 0.98 if position // 40 % 2 else 0.01


@pytest.mark.parametrize("alpha", [collapses, recovers, alternates])
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_bound_holds_whatever_acceptance_does(alpha: Alpha, shape: str) -> None:
    for c in (0.02, 0.2, 0.6):
        machine, experience = Machine(SHAPES[shape], c), Experience()
        for seed in (6, 7):
            outcome = play(AutoLength(experience), machine, alpha, 600, seed)
            assert outcome.seconds <= bound(outcome, machine) + 1e-9, (c, seed)


def test_bound_holds_against_an_adversary() -> None:
    """Everything is accepted until the controller trusts it with long drafts; then nothing, until it has given up."""
    machine, controller = Machine(flat, 0.5), AutoLength(Experience())
    asked: list[int] = []

    class Watched:
        def next_length(self) -> int:
            asked.append(controller.next_length())
            return asked[-1]

        def observe(self, step: object) -> None:
            controller.observe(step)  # type: ignore[arg-type]

    outcome = play(Watched(), machine, lambda position: 0.999 if not asked or max(asked[-4:]) < 3 else 0.0, 800, seed=8)
    assert sum(k > 0 for k in asked) > 40  # the adversary did get its rounds
    assert outcome.seconds <= bound(outcome, machine) + 1e-9


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_bound_holds_with_noise(shape: str) -> None:
    """Plain decoding meets the same noise, so its time is scaled by the mean of that."""
    for c in (0.02, 0.2, 0.6):
        for alpha in (0.1, 0.5, 0.9):
            machine, experience = Machine(SHAPES[shape], c, noise=0.08, spikes=0.01), Experience()
            for seed in (9, 10):
                outcome = play(AutoLength(experience), machine, alpha, 300, seed)
                luck = 0.035 * 300  # three standard errors of the mean of 300 such times
                assert outcome.seconds <= machine.mean_factor * bound(outcome, machine) + luck, (c, alpha, seed)


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("batch", [lambda rows: 1.0, lambda rows: 0.5 + 0.5 * rows], ids=["free", "priced"])
def test_bound_holds_in_ragged_batches(shape: str, batch: object) -> None:
    lengths = [20, 300, 70, 70, 150, 8]
    for c in (0.05, 0.6):
        for alpha in (0.1, 0.6, 0.9):
            machine = Machine(SHAPES[shape], c, batch=batch)  # type: ignore[arg-type]
            experience = Experience()
            for seed in (11, 12):
                outcome = play(AutoLength(experience), machine, alpha, lengths, seed)
                assert outcome.seconds <= bound(outcome, machine, len(lengths)) + 1e-9, (c, alpha, seed)


def test_the_ledger_alone_keeps_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that believes every length pays is held by the ledger, and by nothing else."""
    machine = Machine(SHAPES["cliff"], 0.6)
    monkeypatch.setattr("decoder.controllers.auto.GAIN", 0.0)
    kept = play(AutoLength(Experience()), machine, 0.02, 600, seed=13)
    assert sum(k > 0 for k in kept.lengths) > 3
    assert kept.seconds <= bound(kept, machine)
    monkeypatch.setattr("decoder.controllers.auto.Ledger.affords", lambda *_, **__: True)
    broken = play(AutoLength(Experience()), machine, 0.02, 600, seed=13)
    assert broken.seconds > 2 * bound(broken, machine)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_no_more_is_lost_than_earlier_calls_have_saved(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that was good turns hopeless and goes on being believed; over both calls the old bound holds."""
    machine, experience = Machine(SHAPES[shape], 0.05), Experience()
    good = play(AutoLength(experience), machine, 0.95, 400, seed=14)
    saved = experience.saved_rounds
    assert 0.0 < saved <= SAVED_ROUNDS
    monkeypatch.setattr("decoder.controllers.auto.GAIN", 0.0)
    bad = play(AutoLength(experience), machine, 0.0, 400, seed=15)
    assert bound(bad, machine) < bad.seconds <= bound(bad, machine) + saved
    assert good.seconds + bad.seconds <= bound(good, machine) + bound(bad, machine)
    assert experience.saved_rounds <= 0.0  # and it is lost once only
    again = play(AutoLength(experience), machine, 0.0, 400, seed=16)
    assert again.seconds <= bound(again, machine) + 1e-9


def test_the_page_says_what_the_code_does() -> None:
    page = (ROOT / "docs" / "never-slower.md").read_text(encoding="utf-8")
    assert f"ε = {EPSILON:g}," in page and f"A = {ALLOWANCE_ROUNDS:g} plain rounds" in page
    assert f"G = {SAVED_ROUNDS:g} plain rounds" in page
    rows = re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", page)
    assert len(rows) >= 8
    for file, name in rows:
        source = (Path(__file__).parent / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in source, f"{file} has no {name}"
