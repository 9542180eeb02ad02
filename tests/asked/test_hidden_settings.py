"""What the target's own generation_config holds counts as in `generate`; what a call says itself wins."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import GenerationConfig

from decoder import SamplingParams, SpeculativeDecoder
from decoder.models.toy import noisy_copy, toy_model

PROMPT = [7, 33, 12, 50, 7, 33]
NEW = 14


def hidden_settings(free: list[int]) -> dict[str, tuple[dict, dict]]:
    """(what the model's config holds, the same switched off in a call), each of which changes this greedy text."""
    ends = {"eos_token_id": [free[4]]}
    return {
        "repetition_penalty": ({"repetition_penalty": 1.9}, {"repetition_penalty": 1.0}),
        "no_repeat_ngram_size": ({"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 0}),
        "suppress_tokens": ({"suppress_tokens": [free[1], free[3]]}, {"suppress_tokens": []}),
        "begin_suppress_tokens": ({"begin_suppress_tokens": [free[0]]}, {"begin_suppress_tokens": []}),
        "bad_words_ids": ({"bad_words_ids": [[free[2]], free[5:7]]}, {"bad_words_ids": []}),
        "forced_eos_token_id": ({"forced_eos_token_id": [(free[-1] + 1) % 64]}, {"forced_eos_token_id": []}),
        "forced_bos_token_id": ({"forced_bos_token_id": 9, "suppress_tokens": free[:1]}, {"suppress_tokens": []}),
        "min_new_tokens": ({"min_new_tokens": 11, **ends}, {"min_new_tokens": 0}),
        "min_length": ({"min_length": len(PROMPT) + 9, **ends}, {"min_length": 0}),
        "sequence_bias": ({"sequence_bias": [[[free[0]], -9.0], [[free[5], 5], 3.0]]}, {}),
        "exponential_decay_length_penalty": ({"exponential_decay_length_penalty": (1, 9.0), "eos_token_id": [3]}, {}),
        "encoder_repetition_penalty": ({"encoder_repetition_penalty": 20.0}, {"encoder_repetition_penalty": 1.0}),
    }


@pytest.fixture(scope="module")
def model():
    return toy_model("llama", seed=5)


def with_hidden(model, **hidden):
    own = copy.deepcopy(model)
    own.generation_config = GenerationConfig(**hidden)
    return own


@pytest.mark.parametrize("name", hidden_settings(list(range(NEW))))
def test_a_hidden_setting_is_applied_and_can_be_overridden(model, name: str) -> None:
    ids = torch.tensor([PROMPT])

    def written(own) -> list[int]:
        return own.generate(ids, max_new_tokens=NEW, do_sample=False)[0, len(PROMPT) :].tolist()

    hidden, off = hidden_settings(written(with_hidden(model, pad_token_id=0)))[name]
    own = with_hidden(model, pad_token_id=0, **hidden)
    wanted = written(own)
    free = written(with_hidden(model, pad_token_id=0, eos_token_id=hidden.get("eos_token_id")))
    assert wanted != free, "the setting does something here"
    spec = SpeculativeDecoder.from_models(own, noisy_copy(own, 0.05), temperature=0)
    for call in (spec.generate, spec.generate_baseline):
        assert list(call(ids[0], max_new_tokens=NEW).token_ids) == wanted
    if off:
        assert list(spec.generate(ids[0], max_new_tokens=NEW, **off).token_ids) == free


def test_of_two_hidden_lengths_the_new_tokens_win_and_a_call_wins_over_both(model) -> None:
    own = with_hidden(model, max_new_tokens=5, max_length=9, pad_token_id=0)
    spec = SpeculativeDecoder.from_models(own, temperature=0)
    assert len(own.generate(torch.tensor([PROMPT]), do_sample=False)[0]) == len(PROMPT) + 5
    assert len(spec.generate(torch.tensor(PROMPT)).token_ids) == 5
    assert len(spec.generate(torch.tensor(PROMPT), max_length=8).token_ids) == 2
    both = GenerationConfig(max_new_tokens=3, max_length=30)
    assert len(spec.generate(torch.tensor(PROMPT), generation_config=both).token_ids) == 3


def test_how_the_decoder_samples_is_its_own(model) -> None:
    """Qwen's config says temperature 0.7, top_p 0.8; a decoder's constructor and call say how to sample here."""
    own = with_hidden(model, temperature=0.1, top_k=1, top_p=0.1, do_sample=True, pad_token_id=0)
    ours = SpeculativeDecoder.from_models(own, seed=3).generate(
        torch.tensor(PROMPT), max_new_tokens=12, eos_token_id=None
    )
    free = SpeculativeDecoder.from_models(model, seed=3).generate(
        torch.tensor(PROMPT), max_new_tokens=12, eos_token_id=None
    )
    assert ours.token_ids == free.token_ids


def test_a_model_without_eos_goes_on_as_generate_does_and_says_so(tokenizer) -> None:
    own = toy_model("llama", seed=3, vocab_size=len(tokenizer))
    own.generation_config.eos_token_id = None
    spec = SpeculativeDecoder.from_models(own, tokenizer=tokenizer, temperature=0)
    with pytest.warns(UserWarning, match="names no eos_token_id.*pass eos_token_id="):
        result = spec.generate("the cat", max_new_tokens=30)
    assert result.finish_reason == "length" and len(result.token_ids) == 30


def test_sampling_params_as_one_argument(model) -> None:
    spec = SpeculativeDecoder.from_models(model, seed=1)
    prompt, params = torch.tensor(PROMPT), SamplingParams(temperature=0.6, top_p=0.7, top_k=9, min_p=0.01)
    spelt = spec.generate(prompt, max_new_tokens=12, temperature=0.6, top_p=0.7, top_k=9, min_p=0.01)
    assert spec.generate(prompt, max_new_tokens=12, sampling_params=params).token_ids == spelt.token_ids
    config = GenerationConfig(temperature=3.0, top_k=50)
    both = spec.generate(prompt, max_new_tokens=12, sampling_params=params, generation_config=config)
    assert both.token_ids == spelt.token_ids, "an argument of the call wins over its generation_config"
    cold = spec.generate(prompt, max_new_tokens=12, sampling_params=params, temperature=0.0)
    assert cold.token_ids == spec.generate(prompt, max_new_tokens=12, temperature=0.0).token_ids
    with pytest.raises(TypeError, match=r"sampling_params=.* must be a SamplingParams"):
        spec.generate(prompt, sampling_params={"temperature": 1.0})
