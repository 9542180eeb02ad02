"""Drafting with some of the target's own layers: exact, shares every tensor, shares the cache where it can."""

from __future__ import annotations

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.drafters.layerskip import LayerSkipDrafter, default_layers
from decoder.models.hf import CausalModel
from decoder.models.sharing import check_layers, find_layers, layer_subset, own_bytes
from decoder.models.toy import toy_model
from decoder.types import SamplingParams
from decoder.warpers import warped_probs

PROMPTS = [[1, 5, 9], [4, 4, 8, 9, 10, 11, 3], [7]]
FOUR = {"num_hidden_layers": 4}
FAMILIES = [
    ("llama", FOUR),
    ("gpt2", {"n_layer": 4}),
    ("gemma3_text", {**FOUR, "sliding_window": 8}),
    ("opt", {**FOUR, "ffn_dim": 48, "word_embed_proj_dim": 32}),
]


@pytest.fixture(scope="module")
def model():
    return toy_model("llama", seed=5, num_hidden_layers=4)


@pytest.mark.parametrize(("family", "changes"), FAMILIES, ids=[family for family, _ in FAMILIES])
@pytest.mark.parametrize("drafter", [LayerSkipDrafter(2), LayerSkipDrafter([0, 2, 3])], ids=["prefix", "subset"])
def test_greedy_equals_the_library(family, changes, drafter, greedy) -> None:
    model = toy_model(family, **changes)
    spec = SpeculativeDecoder.from_models(model, temperature=0.0, drafter=drafter)
    results = spec.generate(PROMPTS, max_new_tokens=20, eos_token_id=None)
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert list(result.token_ids) == greedy(model, prompt, 20, eos_token_id=None)
        assert result.num_draft_tokens > 0


def test_rows_that_end_early_leave_the_shared_cache_right(model, greedy) -> None:
    spec = SpeculativeDecoder.from_models(model, temperature=0.0, drafter=LayerSkipDrafter(2))
    longest = [greedy(model, prompt, 40, eos_token_id=None) for prompt in PROMPTS]
    end = longest[0][5]
    results = spec.generate(PROMPTS, max_new_tokens=40, eos_token_id=end, k=5)
    lengths = set()
    for result, whole in zip(results, longest, strict=True):
        wanted = whole[: whole.index(end) + 1] if end in whole else whole
        assert list(result.token_ids) == wanted
        lengths.add(len(wanted))
    assert len(lengths) > 1


def test_a_prefix_needs_no_cache_no_prefill_and_no_weights(model) -> None:
    drafter = LayerSkipDrafter(2)
    spec = SpeculativeDecoder.from_models(model, temperature=0.0, drafter=drafter)
    assert own_bytes(drafter.model.model, model) == 0
    result = spec.generate(PROMPTS[0], max_new_tokens=12, eos_token_id=None, return_cache=True)
    assert result.cache.draft is None and result.cache.nbytes == result.cache.target.nbytes
    assert "KV cache the target's" in repr(spec.drafter)


def test_shared_and_own_cache_draft_the_same_tokens(model) -> None:
    rounds = []
    for share in (True, False):
        drafter = LayerSkipDrafter(3, share_cache=share)
        spec = SpeculativeDecoder.from_models(model, temperature=0.0, drafter=drafter)
        result = spec.generate(PROMPTS[1], max_new_tokens=30, eos_token_id=None)
        rounds.append([step.drafted for step in result.steps])
        assert result.num_accepted_tokens > 0
    assert rounds[0] == rounds[1]


def test_a_kept_cache_continues_a_conversation(model, greedy) -> None:
    spec = SpeculativeDecoder.from_models(model, temperature=0.0, drafter=LayerSkipDrafter(2))
    first = spec.generate(PROMPTS[0], max_new_tokens=8, eos_token_id=None, return_cache=True)
    prompt = [*PROMPTS[0], *first.token_ids, 7, 8]
    second = spec.generate(prompt, max_new_tokens=12, eos_token_id=None, cache=first.cache)
    assert list(second.token_ids) == greedy(model, prompt, 12, eos_token_id=None)


def test_a_kept_cache_of_another_drafter_is_not_mistaken_for_ones_own(model, greedy) -> None:
    spec = SpeculativeDecoder.from_models(model, temperature=0.0, drafter=LayerSkipDrafter(2))
    first = spec.generate(PROMPTS[0], max_new_tokens=8, eos_token_id=None, return_cache=True)
    prompt = [*PROMPTS[0], *first.token_ids, 7, 8]
    other = LayerSkipDrafter([0, 2, 3])
    second = spec.generate(prompt, max_new_tokens=12, eos_token_id=None, cache=first.cache, drafter=other)
    assert list(second.token_ids) == greedy(model, prompt, 12, eos_token_id=None)


@pytest.mark.parametrize("verifier", ["token", "block"])
@pytest.mark.parametrize("layers", [2, [0, 2, 3]], ids=["prefix", "subset"])
def test_sampled_first_two_tokens_follow_the_target(verifier, layers) -> None:
    """Chi-square over the pair of new tokens of 3,000 rows, against the target's own law."""
    model = toy_model("llama", seed=2, num_hidden_layers=4, vocab_size=5, eos_token_id=None, bos_token_id=None)
    params = SamplingParams(temperature=2.0, top_p=1.0)
    spec = SpeculativeDecoder.from_models(
        model, temperature=2.0, top_p=1.0, drafter=LayerSkipDrafter(layers), verifier=verifier, seed=11
    )
    rows = 3000
    results = spec.generate([[1, 2, 3]] * rows, max_new_tokens=3, k=2, eos_token_id=None, batch_size=rows)
    observed = torch.zeros(25)
    for result in results:
        observed[result.token_ids[1] * 5 + result.token_ids[2]] += 1
    expected = torch.zeros(25)
    with torch.inference_mode():
        for first in range(5):
            start = warped_probs(model(torch.tensor([[1, 2, 3]])).logits[0, -1].float(), params)[first]
            second = warped_probs(model(torch.tensor([[1, 2, 3, first]])).logits[0, -1].float(), params)
            for token in range(5):
                third = warped_probs(model(torch.tensor([[1, 2, 3, first, token]])).logits[0, -1].float(), params)
                expected[token * 5 : token * 5 + 5] += start * second[token] * third
    expected *= rows
    statistic = float(((observed - expected) ** 2 / expected.clamp(min=1e-9)).sum())
    accepted, drafted = sum(r.num_accepted_tokens for r in results), sum(r.num_draft_tokens for r in results)
    assert 0.1 * drafted < accepted < 0.98 * drafted  # both branches of the verifier are taken
    assert statistic < 55.0, statistic  # the 0.9997 quantile of chi-square with 24 degrees of freedom is 54.3


def test_a_subset_is_the_model_with_the_other_layers_gone() -> None:
    """Oracle: the same weights loaded into a two-layer model."""
    model = toy_model("llama", seed=5, num_hidden_layers=4)
    small = toy_model("llama", seed=9, num_hidden_layers=2)
    state = model.state_dict()
    for ours, theirs in ((0, 0), (1, 3)):
        for name in list(state):
            if name.startswith(f"model.layers.{theirs}."):
                small.state_dict()[name.replace(f"layers.{theirs}.", f"layers.{ours}.")].copy_(state[name])
    for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
        small.state_dict()[name].copy_(state[name])
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    subset = CausalModel(layer_subset(model, [0, 3]), "draft")
    subset.layers = 4
    with torch.inference_mode():
        logits = subset.open(1, 8).feed(ids, [0])
        assert torch.allclose(logits, small(ids).logits, atol=1e-5)
        assert torch.allclose(model(ids).logits, toy_model("llama", seed=5, num_hidden_layers=4)(ids).logits)


@pytest.mark.parametrize("layers", [0, 4, -1, [], [0, 0], [2, 1], [0, 4], [0, 1, 2, 3]])
def test_layers_out_of_range_are_refused(layers) -> None:
    with pytest.raises(ValueError, match="layers="):
        check_layers(layers, 4)


@pytest.mark.parametrize("layers", ["2", 1.5, True, [0, "1"], [True]])
def test_layers_of_a_wrong_type_are_refused(layers) -> None:
    with pytest.raises(TypeError, match="layers="):
        check_layers(layers, 4)


def test_a_model_of_one_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="two layers"):
        SpeculativeDecoder.from_models(toy_model("llama", num_hidden_layers=1), drafter="layerskip")


def test_a_tree_without_a_list_of_layers_is_refused(model) -> None:
    twin = layer_subset(model, [0, 1])
    twin.config.num_hidden_layers = 3
    with pytest.raises(ValueError, match="0 lists of 3"):
        find_layers(twin)


def test_an_unbound_recipe_says_so() -> None:
    with pytest.raises(ValueError, match="not bound"):
        LayerSkipDrafter(2).start([[1]], None, None, 8)


def test_default_layers_keep_the_ends() -> None:
    assert default_layers(2) == [0]
    assert default_layers(3) == [0, 2]
    assert default_layers(12) == [0, 1, 2, 4, 6, 8, 9, 10, 11]
