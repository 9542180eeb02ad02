"""Every fault of `mutants.py` is put into the real code, one at a time; a check of this suite must object.

A mutant whose string is no longer found in the source fails its test: it must then be written anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from decoder.drafters import ModelDrafter
from decoder.testing import check_lossless
from decoder.verify import TokenVerifier
from mutant_checks import CHECKS
from mutants import FAULTS, MODEL, MUTANTS, TOKEN, Mutant, document
from mutation import mutated

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "mutants.md"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.fault}: {mutant.what}")
def test_mutant_is_killed(mutant: Mutant) -> None:
    with mutated(mutant.module, *mutant.changes), pytest.raises(AssertionError):
        CHECKS[mutant.killer]()


@pytest.mark.parametrize("name", CHECKS)
def test_checks_do_not_object_to_the_real_code(name: str) -> None:
    CHECKS[name]()


def test_check_lossless_would_kill_the_faults_of_a_drafter() -> None:
    """What a drafter's author runs objects to the drafter's share of the faults."""

    def recipe(target):
        return ModelDrafter(target.near(1, 0.5))

    wanted = {"tokens discarded by confidence", "greedy draft with a soft q", "q warped but reported unwarped"}
    for mutant in MUTANTS:
        if mutant.module == MODEL and mutant.fault in wanted:
            with mutated(mutant.module, *mutant.changes), pytest.raises(AssertionError, match="not lossless"):
                check_lossless(recipe, ks=(2,), verifiers=("token",))


def test_every_check_kills_something_and_every_fault_of_the_list_is_covered() -> None:
    assert {mutant.killer for mutant in MUTANTS} == set(CHECKS)
    assert {mutant.fault for mutant in MUTANTS} == set(FAULTS)


class TestTheMethod:
    def test_a_string_that_is_gone_fails_loudly(self) -> None:
        with pytest.raises(LookupError, match="write the mutant anew"), mutated(TOKEN, ("no such line", "")):
            pass

    def test_a_change_that_reaches_no_function_fails_loudly(self) -> None:
        with pytest.raises(LookupError, match="reaches no function"), mutated(TOKEN, ('name = "token"', 'name = "t"')):
            pass

    def test_the_real_code_is_back_afterwards(self) -> None:
        before = TokenVerifier.__call__.__code__
        with pytest.raises(KeyError), mutated(MUTANTS[0].module, *MUTANTS[0].changes):
            assert TokenVerifier.__call__.__code__ != before
            raise KeyError
        assert TokenVerifier.__call__.__code__ is before


def test_the_document_agrees() -> None:
    assert DOCUMENT.read_text() == document(), "run: python tests/mutants.py > docs/mutants.md"
