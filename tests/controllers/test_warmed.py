"""k="auto" where a new width is compiled when it is first used, which takes as long as hundreds of rounds."""

from __future__ import annotations

from statistics import mean

from simulated_machine import Machine, play

from decoder.controllers import AutoLength, Experience, Warmed


def compiling() -> tuple[Machine, set[int]]:
    made: set[int] = set()

    def verify(m: int) -> float:
        if m not in made:
            made.add(m)
            return 500.0
        return 1.0

    return Machine(verify, 0.1), made


def drafting(warmed: bool, alpha: float, calls: int = 3) -> float:
    """The share of rounds that draft, from the second call on."""
    machine, made = compiling()
    experience = Experience()
    shares = []
    for call in range(calls):
        controller = AutoLength(experience)
        told = Warmed(controller, lambda: len(made)) if warmed else controller
        shares.append(mean(k > 0 for k in play(told, machine, alpha, 128, seed=call).lengths))
    return mean(shares[1:])


def test_a_good_draft_is_used_although_its_widths_were_compiled_first() -> None:
    assert drafting(True, 0.85) > 0.8
    assert drafting(False, 0.85) < 0.5, "the time of a compilation, taken for the draft's"


def test_a_hopeless_draft_is_still_found_out() -> None:
    assert drafting(True, 0.0) < 0.2
