"""A draft with a cut head: q is zero outside the kept tokens, the law is the target's, only the rows kept are new."""

from __future__ import annotations

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.drafters import ModelDrafter
from decoder.drafters.reduced import ReducedModel, ReducedVocabularyDrafter, cut_head, most_frequent
from decoder.models.hf import CausalModel
from decoder.models.toy import TableModel, noisy_copy, toy_model
from decoder.testing import check_lossless

PROMPTS = [[1, 5, 9], [4, 4, 8, 9, 10, 11, 3], [7]]


class Columns:
    """A table model that speaks some of its tokens only, as a model with a cut head does."""

    context_length = None
    can_batch = True

    def __init__(self, table: TableModel, tokens: list[int]) -> None:
        self._table, self._tokens = table, tokens
        self.device, self.embedding_size = table.device, table.embedding_size

    def open(self, rows: int, limit: int, cache: object = None):
        session = self._table.open(rows, limit)
        whole = session.feed
        session.feed = lambda *given: whole(*given)[..., self._tokens]
        return session


@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_every_outcome_follows_the_target(noise) -> None:
    def recipe(target: TableModel) -> ModelDrafter:
        tokens = list(range(1, target.vocab_size))
        return ModelDrafter(ReducedModel(Columns(target.near(1, noise), tokens), tokens, target.vocab_size))

    print(check_lossless(recipe))


@pytest.fixture(scope="module")
def model():
    return toy_model("llama", seed=1)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("tokens", [16, [3, 8, 9, 40, 41, 63]], ids=["first", "list"])
def test_greedy_equals_the_library(family, tokens, greedy) -> None:
    model = toy_model(family, seed=1)
    spec = SpeculativeDecoder.from_models(
        model, noisy_copy(model, 0.05), temperature=0.0, drafter=ReducedVocabularyDrafter(tokens)
    )
    results = spec.generate(PROMPTS, max_new_tokens=20, eos_token_id=None)
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert list(result.token_ids) == greedy(model, prompt, 20, eos_token_id=None)
        assert {token for step in result.steps for token in step.drafted} <= set(spec.drafter.tokens)


def test_the_cut_head_says_what_the_head_says(model) -> None:
    """Oracle: the whole head's logits at the kept tokens; -inf elsewhere."""
    ids = torch.tensor([[3, 1, 4]])
    kept = [2, 5, 63]
    whole = CausalModel(model, "draft")
    reduced = ReducedModel(cut_head(whole, kept), kept, 64)
    with torch.inference_mode():
        logits = reduced.open(1, 8).feed(ids, [0])
        wanted = model(ids).logits
    assert torch.allclose(logits[..., kept], wanted[..., kept], atol=1e-5)
    others = [token for token in range(64) if token not in kept]
    assert bool((logits[..., others] == -torch.inf).all())
    assert model.lm_head.weight.shape[0] == 64


def test_only_the_rows_kept_are_new(model) -> None:
    drafter = ReducedVocabularyDrafter(10)
    spec = SpeculativeDecoder.from_models(model, noisy_copy(model, 0.1), drafter=drafter)
    assert drafter.nbytes == 10 * 32 * 4  # rows, hidden size, bytes of float32
    assert "10 tokens" in repr(spec.drafter)


def test_more_tokens_agree_more() -> None:
    model = toy_model("llama", seed=1)
    rates = []
    for size in (4, 32, 64):
        spec = SpeculativeDecoder.from_models(
            model, model, temperature=1.0, top_p=1.0, drafter=ReducedVocabularyDrafter(size), seed=3
        )
        results = spec.generate(PROMPTS * 4, max_new_tokens=20, eos_token_id=None)
        rates.append(sum(r.num_accepted_tokens for r in results) / sum(r.num_draft_tokens for r in results))
    assert rates[0] < rates[1] < rates[2] == 1.0


def test_eos_can_always_be_drafted(model) -> None:
    drafter = ReducedVocabularyDrafter([40, 41])
    spec = SpeculativeDecoder.from_models(model, model, temperature=0.0, drafter=drafter)
    assert spec.drafter.tokens == (2, 40, 41)


def test_processors_that_leave_none_of_the_tokens(model, greedy) -> None:
    """Constrained decoding outside the kept tokens: nothing can be accepted, and nothing breaks."""
    options = {"suppress_tokens": list(range(20)), "eos_token_id": None}
    spec = SpeculativeDecoder.from_models(model, model, temperature=0.0, drafter=ReducedVocabularyDrafter(20))
    result = spec.generate([30, 31], max_new_tokens=8, **options)
    assert list(result.token_ids) == greedy(model, [30, 31], 8, **options)
    sampled = spec.generate([30, 31], max_new_tokens=8, temperature=1.0, seed=1, **options)
    assert min(sampled.token_ids) >= 20
    assert sampled.num_accepted_tokens == 0


def test_frequency_is_counted(tokenizer) -> None:
    cat, the = tokenizer(" cat")["input_ids"], tokenizer(" the")["input_ids"]
    found = most_frequent([" the the the", [*cat, *the]], tokenizer, len(cat) + len(the) + 2)
    assert found[: len(the)] == the or set(found[: len(the)]) == set(the)
    assert set(cat) <= set(found)
    filler = [token for token in found if token not in {*cat, *the}]
    assert filler == [token for token in range(300) if token not in {*cat, *the}][: len(filler)]
    assert len(found) == len(set(found)) == len(cat) + len(the) + 2


def test_measured_binds_to_a_decoder(target, draft, tokenizer, greedy) -> None:
    drafter = ReducedVocabularyDrafter.measured(["once upon a time the cat"], tokenizer, 60)
    spec = SpeculativeDecoder.from_models(target, draft, tokenizer=tokenizer, temperature=0.0, drafter=drafter)
    prompt = tokenizer("once upon")["input_ids"]
    result = spec.generate(prompt, max_new_tokens=15, eos_token_id=None)
    assert list(result.token_ids) == greedy(target, prompt, 15, eos_token_id=None)


@pytest.mark.parametrize(("tokens", "error"), [([], ValueError), ([64], ValueError), (0, ValueError), (65, ValueError)])
def test_tokens_out_of_range_are_refused(model, tokens, error) -> None:
    with pytest.raises(error, match="tokens="):
        SpeculativeDecoder.from_models(model, model, drafter=ReducedVocabularyDrafter(tokens))


def test_needs_a_draft(model) -> None:
    with pytest.raises(ValueError, match="draft_model_name"):
        SpeculativeDecoder.from_models(model, drafter="reduced")


def test_cuts_another_drafters_model(model, greedy) -> None:
    """A quantised copy of the target with a cut head."""
    quantized = SpeculativeDecoder.from_models(model, drafter="quantized")
    drafter = ReducedVocabularyDrafter(32, draft=quantized.drafter.model)
    result = quantized.generate([1, 5, 9], temperature=0.0, max_new_tokens=15, eos_token_id=None, drafter=drafter)
    assert list(result.token_ids) == greedy(model, [1, 5, 9], 15, eos_token_id=None)
    assert result.num_accepted_tokens > 0
