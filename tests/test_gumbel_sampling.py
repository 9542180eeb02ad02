"""`sampling="gumbel"`: a seed gives the same tokens for plain decoding, every drafter, every k and every batch.

Equality, token for token, on float64 models, where no near-tie can be decided by rounding.
"""

from __future__ import annotations

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.drafters import ModelDrafter
from decoder.models.hf import CausalModel
from decoder.models.toy import noisy_copy, toy_model
from decoder.randomness import GumbelRows
from decoder.types import Draft, Drafter

PROMPTS = [[3, 4, 5, 6, 3, 4], [9], [7, 8, 7, 8, 7, 8, 7], [11, 12, 13]]
CALL = {"max_new_tokens": 14, "seed": 5}


@pytest.fixture(scope="module")
def pair():
    target = toy_model("llama", seed=1).double()
    return target, noisy_copy(target, 0.15)


@pytest.fixture(scope="module")
def spec(pair):
    return SpeculativeDecoder.from_models(*pair, temperature=0.9, top_p=0.95, sampling="gumbel")


@pytest.fixture(scope="module")
def plain(spec):
    return [result.token_ids for result in spec.generate_baseline(PROMPTS, **CALL)]


class Honest(Drafter):
    """A custom drafter that samples from a law of its own and reports it, knowing nothing of coupled noise."""

    def start(self, contexts, warp, random, limit):
        run = Honest()
        run.random = random
        return run

    def propose(self, contexts, counts):
        q = torch.full((len(contexts), max(counts), 64), 1 / 64, dtype=torch.float64)
        return Draft(self.random.draw(q, [len(c) for c in contexts], counts), list(counts), q)


@pytest.mark.parametrize("k", range(1, 7))
@pytest.mark.parametrize("drafter", ["model", "ngram", "none"])
def test_same_tokens_whatever_the_drafter_and_k(spec, plain, drafter: str, k: int) -> None:
    found = spec.generate(PROMPTS, k=k, drafter=drafter, **CALL)
    assert [result.token_ids for result in found] == plain


def test_same_tokens_for_greedy_and_custom_drafts(spec, plain, pair) -> None:
    for drafter in (ModelDrafter(spec.draft_model, sample=False), Honest()):
        found = spec.generate(PROMPTS, k=3, drafter=drafter, **CALL)
        assert [result.token_ids for result in found] == plain


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_same_tokens_in_every_batch(spec, plain, batch_size: int) -> None:
    found = spec.generate(PROMPTS, k=4, batch_size=batch_size, **CALL)
    assert [result.token_ids for result in found] == plain


def test_first_prompt_alone_has_its_row_of_the_batch(spec, plain) -> None:
    assert spec.generate(PROMPTS[0], k=2, **CALL).token_ids == plain[0]


def test_processors_change_nothing_about_that(spec) -> None:
    options = CALL | {"repetition_penalty": 1.4}
    expected = [result.token_ids for result in spec.generate_baseline(PROMPTS, **options)]
    assert [result.token_ids for result in spec.generate(PROMPTS, k=3, **options)] == expected


@pytest.mark.parametrize("drafter", ["model", "ngram"])
def test_processors_that_may_keep_state_change_nothing_about_that(spec, drafter: str) -> None:
    """They are run in order, position by position, through another part of the loop."""
    for prompt in PROMPTS:
        options = CALL | {"logits_processor": [lambda ids, scores: scores * 0.9]}
        expected = spec.generate_baseline(prompt, **options).token_ids
        assert spec.generate(prompt, k=3, drafter=drafter, **options).token_ids == expected


class Uncoupled(ModelDrafter):
    """Drafts with noise of its own: what acceptance would be if draft and target did not share theirs."""

    def start(self, contexts, warp, random, limit):
        return super().start(contexts, warp, GumbelRows(999, range(len(contexts))), limit)


def test_drafts_share_the_noise_so_that_they_are_accepted(spec, pair) -> None:
    """draft = target accepts everything; a partly agreeing draft far more than chance would."""
    itself = SpeculativeDecoder.from_models(pair[0], pair[0], temperature=0.9, top_p=0.95, sampling="gumbel")
    assert all(result.acceptance_rate == 1.0 for result in itself.generate(PROMPTS, k=3, **CALL))
    close = CausalModel(noisy_copy(pair[0], 0.05), "draft", 64)
    accepted = {}
    for drafter in (ModelDrafter(close), Uncoupled(close)):
        found = [spec.generate(p, k=2, drafter=drafter, max_new_tokens=30, eos_token_id=None, seed=1) for p in PROMPTS]
        accepted[type(drafter)] = sum(result.num_accepted_tokens for result in found)
    assert accepted[ModelDrafter] > 2 * accepted[Uncoupled] > 0


def test_seeds_differ_and_rejection_sampling_is_another_text(spec, plain) -> None:
    other = [result.token_ids for result in spec.generate(PROMPTS, **CALL | {"seed": 6})]
    rejection = [result.token_ids for result in spec.generate(PROMPTS, sampling="rejection", **CALL)]
    assert other != plain and rejection != plain


def test_option_per_call_equals_option_of_the_decoder(pair, plain) -> None:
    spec = SpeculativeDecoder.from_models(*pair, temperature=0.9, top_p=0.95)
    assert [result.token_ids for result in spec.generate(PROMPTS, sampling="gumbel", **CALL)] == plain


def test_copies_of_a_prompt_differ(spec) -> None:
    found = {result.token_ids for result in spec.generate(PROMPTS[0], num_return_sequences=6, **CALL)}
    assert len(found) == 6


def test_greedy_is_greedy(spec, pair) -> None:
    ids = torch.tensor([PROMPTS[0]])
    expected = pair[0].generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False)
    found = spec.generate(PROMPTS[0], temperature=0.0, max_new_tokens=10)
    assert list(found.token_ids) == expected[0, ids.shape[1] :].tolist()


def test_wrong_arguments_are_named(pair, spec) -> None:
    with pytest.raises(ValueError, match="sampling='gumble' is unknown; use one of"):
        SpeculativeDecoder.from_models(*pair, sampling="gumble")
    with pytest.raises(ValueError, match="verifier='block' does not go with sampling='gumbel'"):
        spec.generate(PROMPTS[0], verifier="block", **CALL)
    with pytest.raises(ValueError, match="does not go with"):
        SpeculativeDecoder.from_models(*pair, sampling="gumbel", verifier="token")
