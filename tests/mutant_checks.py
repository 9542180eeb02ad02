"""The checks that kill the mutants: what the suite's own tests do, by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

for folder in (Path(__file__).parent, Path(__file__).parent / "verify"):  # the checks live in the tests that use them
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

import test_verdicts as verdicts  # noqa: E402

import test_enumeration as enumeration  # noqa: E402
import test_monte_carlo as monte_carlo  # noqa: E402
import test_randomness as randomness  # noqa: E402
import test_tree_enumeration as trees  # noqa: E402
from branching_drafters import BUSH, COMB, ModelTrees  # noqa: E402
from decoder import SpeculativeDecoder  # noqa: E402
from decoder.models.toy import noisy_copy, toy_model  # noqa: E402
from decoder.testing import assert_exact  # noqa: E402
from decoder.verify import TokenVerifier  # noqa: E402


def law(verifier: str, drafter: str, warp: str = "plain", k: int = 2, **changes) -> None:
    """One configuration of test_enumeration.py."""
    with torch.inference_mode():
        assert_exact(enumeration.case_of(verifier, drafter, warp, k).with_(**changes), 1e-9)


def greedy_parity_of_a_ragged_batch(family: str = "llama") -> None:
    """Greedy text equals transformers' generate, for rows of different length and acceptance, on real caches."""
    target = toy_model(family, seed=2).double()
    draft = noisy_copy(target, 0.12)
    prompts = [[5, 9, 11, 5, 9], [7], [3, 3, 4]]
    spec = SpeculativeDecoder.from_models(target, draft, temperature=0.0)
    found = spec.generate(prompts, k=3, max_new_tokens=20, eos_token_id=None)
    accepted = [[step.accepted for step in result.steps] for result in found]
    for prompt, result in zip(prompts, found, strict=True):
        expected = spec.generate_baseline(prompt, max_new_tokens=20, eos_token_id=None).token_ids
        with torch.inference_mode():
            ids = list(prompt)
            for _ in range(20):
                ids.append(int(target(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        assert result.token_ids == expected == tuple(ids[len(prompt) :])
    assert len({tuple(row) for row in accepted}) == 3, (
        "the rows must be accepted differently for this to mean something"
    )


def law_of_trees(verifier: str, how: str, shape: str = "fork", warp: str = "plain", k: int = 3, vocab: int = 3) -> None:
    """One configuration of test_tree_enumeration.py."""
    with torch.inference_mode():
        case = trees.case_of(verifier, how, "good", shape, warp, k, vocab)
        assert_exact(case.with_(processors=case.processors[:1]), 1e-9)


def greedy_parity_of_trees(family: str = "llama", **changes) -> None:
    """Greedy text equals that of forwards without a cache, for ragged rows whose accepted nodes do not stand first."""
    target = toy_model(family, seed=2, **changes).double()
    prompts = [[5, 9, 11, 5, 9, 40, 12, 33, 8, 21], [7], [3, 3, 4]]
    drafter = ModelTrees(noisy_copy(target, 0.1), (BUSH, COMB))
    spec = SpeculativeDecoder.from_models(target, drafter=drafter, temperature=0.0)
    found = spec.generate(prompts, k=7, max_new_tokens=20, eos_token_id=None)
    for prompt, result in zip(prompts, found, strict=True):
        with torch.inference_mode():
            ids = list(prompt)
            for _ in range(20):
                ids.append(int(target(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        assert result.token_ids == tuple(ids[len(prompt) :])
    assert len({tuple(step.path for step in result.steps) for result in found}) == 3, (
        "the rows must keep different paths for this to mean something"
    )


def everything_of_an_equal_draft_is_accepted(**options) -> None:
    monte_carlo.check_equal_models_accept_everything(k=4, **options)


CHECKS: dict[str, Callable[[], None]] = {
    "enumeration: token, poor draft": partial(law, "token", "poor"),
    "enumeration: token, good draft": partial(law, "token", "good"),
    "enumeration: token, wavering draft, ragged pair": partial(law, "token", "wavering", prompts=enumeration.PAIR),
    "enumeration: block, ten tables": enumeration.check_block_on_many_tables,
    "enumeration: block, poor draft": partial(law, "block", "poor"),
    "enumeration: token, good draft, top-p": partial(law, "token", "good", "top-p"),
    "enumeration: token, good draft, temperature": partial(law, "token", "good", "temperature"),
    "enumeration: token, good draft, processors": partial(law, "token", "good", "processors"),
    "enumeration: match, n-gram draft": partial(law, "match", "ngram"),
    "enumeration: match, greedy draft, ragged pair": partial(law, "match", "greedy", prompts=enumeration.PAIR),
    "acceptance of draft = target: T = 0.8": partial(
        everything_of_an_equal_draft_is_accepted, temperature=0.8, top_p=1.0
    ),
    "acceptance of draft = target: all warpers": partial(
        everything_of_an_equal_draft_is_accepted, temperature=0.8, top_p=0.7, top_k=9, min_p=0.01
    ),
    "acceptance of draft = target: processors": partial(
        everything_of_an_equal_draft_is_accepted, temperature=0.7, repetition_penalty=2.5
    ),
    "acceptance is the overlap: partly agreeing draft": partial(monte_carlo.check_acceptance, rows=300),
    "greedy parity: ragged batch, llama": greedy_parity_of_a_ragged_batch,
    "greedy parity: ragged batch, gpt2": partial(greedy_parity_of_a_ragged_batch, "gpt2"),
    "enumeration: siblings": lambda: assert_exact(trees.siblings_case("good", 2), 1e-9),
    "enumeration: match, trees of best tokens": partial(law_of_trees, "match", "best", "comb", k=4),
    "enumeration: token, trees of best tokens": partial(law_of_trees, "token", "best", "comb", k=4),
    "enumeration: token, trees of best tokens, processors": partial(
        law_of_trees, "token", "best", "fork", "processors", 3
    ),
    "greedy parity: trees, llama": greedy_parity_of_trees,
    "greedy parity: trees, windows": partial(greedy_parity_of_trees, "mistral", sliding_window=4),
    "direct: accepts at two positions are independent": randomness.check_accepts_are_independent,
    "direct: a zero never passes at u = 0": randomness.check_zero_never_passes,
    "direct: residual without mass": verdicts.TestResidual().test_is_p_where_no_mass_is_left,
    "direct: the first token has p's law (token)": partial(
        verdicts.test_first_token_has_the_targets_law, TokenVerifier
    ),
}
