"""The distribution of trees, to the last digit: every outcome of the real loop, as in `test_enumeration.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent))

from branching_drafters import BUSH, SHAPES, Siblings, TableTrees
from decoder.loop import Row, run
from decoder.models.toy import TableModel
from decoder.testing import Case, ReplayRows, assert_exact
from decoder.types import Limits, SamplingParams
from test_enumeration import PAIR, WARPS

QUALITIES = {"good": lambda t: t.near(1, 0.3), "poor": lambda t: TableModel.random(t.vocab_size, 9, 1.5, t.table.dtype)}


def case_of(
    verifier: str, how: str, quality: str, shape: str = "fork", warp: str = "plain", k: int = 3, vocab: int = 3
) -> Case:
    """Enough tokens for a whole tree of k nodes after the prefilled one, and for what follows it."""
    params, processors = WARPS[warp]
    target = TableModel.random(vocab, 0)
    drafter = TableTrees(QUALITIES[quality](target), SHAPES[shape], how)
    return Case(target, drafter, verifier, params, processors, k, new_tokens=k + 2, prompts=((0, 1),))


RULES = [("token", "without"), ("token", "with"), ("token", "best"), ("match", "best"), ("auto", "best")]


@pytest.mark.parametrize("quality", QUALITIES)
@pytest.mark.parametrize("shape", ["fork", "many"])
@pytest.mark.parametrize(("verifier", "how"), RULES)
def test_law(verifier: str, how: str, shape: str, quality: str) -> None:
    assert_exact(case_of(verifier, how, quality, shape), 1e-12)


@pytest.mark.parametrize("quality", QUALITIES)
@pytest.mark.parametrize(("verifier", "how"), RULES)
def test_law_of_two_paths(verifier: str, how: str, quality: str) -> None:
    """Over two tokens where q is drawn from: three make a hundred thousand leaves."""
    assert_exact(case_of(verifier, how, quality, "comb", k=4, vocab=3 if how == "best" else 2), 1e-12)


@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize(("verifier", "how"), [("auto", "without"), ("auto", "best")])
def test_law_under_warpers_and_processors(verifier: str, how: str, warp: str) -> None:
    case = case_of(verifier, how, "good", "fork", warp)
    assert_exact(case.with_(processors=case.processors[:1]), 1e-12)  # bans of pairs would ban everything


@pytest.mark.slow
@pytest.mark.parametrize("quality", QUALITIES)
@pytest.mark.parametrize("shape", ["comb", "bush"])
def test_law_of_everything(shape: str, quality: str) -> None:
    assert_exact(case_of("token", "without", quality, shape, k=4), 1e-12)


@pytest.mark.parametrize("how", ["without", "best"])
def test_law_of_ragged_rows_with_different_trees_that_end_apart(how: str) -> None:
    case = case_of("auto", how, "good", "many")
    assert_exact(case.with_(prompts=PAIR, eos=frozenset({2})), 1e-12)


def test_law_of_a_deep_and_bushy_tree_of_functions_of_the_past() -> None:
    assert_exact(case_of("auto", "best", "good", "bush", k=len(BUSH), vocab=2), 1e-12)


PLAIN = SamplingParams(top_p=1.0)


def siblings_case(quality: str, breadth: int, params: SamplingParams = PLAIN) -> Case:
    target = TableModel.random(3, 0)
    drafter = Siblings(QUALITIES[quality](target), breadth)
    return Case(target, drafter, "auto", params, k=breadth, new_tokens=breadth + 2, prompts=((0, 1),))


@pytest.mark.parametrize("quality", QUALITIES)
def test_law_of_siblings_drawn_without_replacement(quality: str) -> None:
    """Two of three tokens; all of them; one more than there are."""
    for breadth in (2, 3):
        assert_exact(siblings_case(quality, breadth), 1e-12)
    assert_exact(siblings_case(quality, 3, SamplingParams(top_k=2, top_p=1.0)), 1e-12)


def test_a_verifier_without_trees_is_given_chains() -> None:
    assert_exact(case_of("block", "without", "good", "comb"), 1e-12)


def test_a_drafter_that_knows_no_chains_is_refused_by_name() -> None:
    case = case_of("block", "without", "good", "fork")

    class Stubborn(TableTrees):
        name = "stubborn"

        def chains(self):
            return self

    with pytest.raises(ValueError, match=r"'stubborn' proposes trees.*chains"):
        assert_exact(case.with_(drafter=Stubborn(case.target, SHAPES["fork"])), 1e-9)


def first_token_kept(shape: str) -> float:
    """The chance that the first drafted round keeps a token."""
    case = case_of("token", "without", "poor", shape, k=2)
    scripts: list[tuple[int, ...]] = [()]
    total = 0.0
    while scripts:
        random = ReplayRows([scripts.pop()])
        rounds = run([Row(0, [0, 1], 2, Limits(4, 1 << 30))], case.parts(1, random))
        next(rounds)
        total += (next(rounds).rows[0].accepted > 0) * random.weights[0]
        scripts += [script for _, script in random.forks]
    return total


def test_a_second_sibling_is_worth_something() -> None:
    assert first_token_kept("fork") > first_token_kept("chain") + 0.05


def test_in_float32() -> None:
    target = TableModel.random(3, 0, dtype=torch.float32)
    for how in ("without", "best"):
        drafter = TableTrees(target.near(1, 0.3), SHAPES["fork"], how)
        assert_exact(Case(target, drafter, "auto", k=3, new_tokens=5, prompts=((0, 1),)), 1e-6)
