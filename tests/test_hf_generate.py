"""`model.generate(..., custom_generate=spec)`: the same ids as without it, whatever else the call asks for."""

from __future__ import annotations

import inspect

import pytest
import torch
from transformers import (
    Cache,
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StaticCache,
    StoppingCriteria,
)
from transformers.generation import logits_process as library

from decoder import SpeculativeDecoder
from decoder.asked.processors import split
from decoder.models.toy import noisy_copy, toy_model

ROWS = [[7, 33, 12, 50, 9, 41], [11], [4, 19, 44]]
WIDTH = 6
IDS = torch.tensor([[0] * (WIDTH - len(row)) + row for row in ROWS])
MASK = torch.tensor([[0] * (WIDTH - len(row)) + [1] * len(row) for row in ROWS])


@pytest.fixture(scope="module")
def model():
    return toy_model("llama", seed=5)


@pytest.fixture(scope="module")
def spec(model):
    return SpeculativeDecoder.from_models(model, noisy_copy(model, 0.05))


def both(model, spec, ids=IDS, **options):
    plain = model.generate(ids, do_sample=False, **options)
    ours = model.generate(ids, do_sample=False, custom_generate=spec, **options)
    return plain, ours


OPTIONS = {
    "plain": {},
    "eos": {"eos_token_id": [16, 41, 5]},
    "no-eos": {"eos_token_id": 63},
    "penalty": {"repetition_penalty": 1.6},
    "ngrams": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"min_new_tokens": 9, "eos_token_id": [16, 41, 5]},
    "min_length": {"min_length": 14, "eos_token_id": [16, 41, 5]},
    "begin_suppress": {"begin_suppress_tokens": [16, 41, 5, 9]},
    "suppress": {"suppress_tokens": [16, 41]},
    "bad_words": {"bad_words_ids": [[16], [3, 9]]},
    "forced_eos": {"forced_eos_token_id": 2},
    "decay": {"exponential_decay_length_penalty": (3, 1.5), "eos_token_id": [16, 41, 5]},
    "bias": {"sequence_bias": {(16,): -5.0, (3, 9): 4.0}},
    "everything": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "min_new_tokens": 5, "suppress_tokens": [4]},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_left_padded_batch_equals_generate(model, spec, name: str) -> None:
    """Processors see the padding that transformers shows them (every one of them: `asked/test_processors.py`)."""
    plain, ours = both(model, spec, attention_mask=MASK, max_new_tokens=16, pad_token_id=0, **OPTIONS[name])
    assert torch.equal(plain, ours)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["gpt2", "mistral", "qwen3"])
def test_families(family: str, attention: str) -> None:
    changes = {"gpt2": {"tie_word_embeddings": False}, "mistral": {"sliding_window": 8}}.get(family, {})
    model = toy_model(family, seed=5, attn_implementation=attention, **changes)
    spec = SpeculativeDecoder.from_models(model, noisy_copy(model, 0.05))
    plain, ours = both(model, spec, attention_mask=MASK, max_new_tokens=20, eos_token_id=63)
    assert torch.equal(plain, ours)


def test_any_model_of_the_vocabulary_may_be_the_target(model, spec) -> None:
    other = toy_model("llama", seed=6)
    plain, ours = both(other, spec, max_new_tokens=12, attention_mask=MASK)
    assert torch.equal(plain, ours)


def test_a_model_of_another_vocabulary_is_refused(spec) -> None:
    for size in (40, 90):
        with pytest.raises(ValueError, match=rf"serves a vocabulary of 64 ids, but the model's head has {size}"):
            toy_model("llama", vocab_size=size).generate(IDS[:1], custom_generate=spec, max_new_tokens=4)


def test_max_length_and_generation_config(model, spec) -> None:
    config = GenerationConfig(max_length=15, do_sample=False, eos_token_id=63, pad_token_id=0)
    plain = model.generate(IDS, attention_mask=MASK, generation_config=config)
    ours = model.generate(IDS, attention_mask=MASK, generation_config=config, custom_generate=spec)
    assert torch.equal(plain, ours)
    output = model.generate(
        IDS, attention_mask=MASK, max_new_tokens=4, custom_generate=spec, do_sample=False, return_dict_in_generate=True
    )
    assert torch.equal(output.sequences[:, :WIDTH], IDS)


def test_sampling_follows_the_call_and_not_the_decoder(model) -> None:
    """top_k=1 sampling is greedy: if temperature or top-k were lost, or applied elsewhere, the texts would differ."""
    cold = SpeculativeDecoder.from_models(model, noisy_copy(model, 0.05), temperature=0)
    greedy = model.generate(IDS, attention_mask=MASK, do_sample=False, max_new_tokens=12)
    ours = model.generate(
        IDS, attention_mask=MASK, do_sample=True, top_k=1, temperature=1.7, max_new_tokens=12, custom_generate=cold
    )
    assert torch.equal(greedy, ours)
    torch.manual_seed(0)
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": 12, "custom_generate": cold, "temperature": 1.5}
    first = model.generate(IDS[:1], **options)
    assert not torch.equal(first, model.generate(IDS[:1], **options)), "a temperature-0 decoder must not make it greedy"
    torch.manual_seed(0)
    assert torch.equal(first, model.generate(IDS[:1], **options)), "torch.manual_seed governs it"


def test_num_return_sequences(model, spec) -> None:
    torch.manual_seed(1)
    out = model.generate(IDS[:1], do_sample=True, num_return_sequences=5, max_new_tokens=8, custom_generate=spec)
    assert out.shape[0] == 5 and len({tuple(row.tolist()) for row in out}) > 1


def test_warpers_at_the_end_become_parameters_and_the_rest_stays_in_place() -> None:
    own = library.TopKLogitsWarper(5)
    penalty = library.RepetitionPenaltyLogitsProcessor(1.2)
    chain = [
        penalty,
        own,
        library.TemperatureLogitsWarper(0.5),
        library.TopKLogitsWarper(50),
        library.TopPLogitsWarper(0.9),
    ]
    params, rest = split([*chain, library.LogitNormalization()])
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 50, 0.9, 0.0)
    assert rest == (penalty, own), "a warper of the caller's own is not overwritten by the default one"
    unusual = library.TopPLogitsWarper(0.9, min_tokens_to_keep=3)
    params, rest = split([library.TemperatureLogitsWarper(0.5), unusual])
    assert (params.temperature, params.top_p) == (1.0, 1.0) and len(rest) == 2
    turned = [library.TopPLogitsWarper(0.9), library.TemperatureLogitsWarper(0.5)]
    params, rest = split(turned)
    assert (params.temperature, params.top_p, rest) == (0.5, 1.0, (turned[0],)), "another order is another law"
    later = [library.TemperatureLogitsWarper(0.5), library.MinLengthLogitsProcessor(3, 2)]
    assert split(later)[1] == tuple(later)


@pytest.mark.parametrize("name", ["typical_p", "epsilon_cutoff", "eta_cutoff"])
def test_other_warpers_keep_their_law(model, name: str) -> None:
    """The law after one token, against transformers' own processor list."""
    value = {"typical_p": 0.4, "epsilon_cutoff": 0.05, "eta_cutoff": 0.2}[name]
    spec = SpeculativeDecoder.from_models(model, model)
    support = set()
    torch.manual_seed(0)
    draws = IDS[:1].repeat(200, 1)
    plain = model.generate(draws, do_sample=True, top_k=0, max_new_tokens=1, **{name: value})
    support = set(plain[:, -1].tolist())
    torch.manual_seed(1)
    ours = model.generate(draws, do_sample=True, top_k=0, max_new_tokens=1, custom_generate=spec, **{name: value})
    free = model.generate(draws, do_sample=True, top_k=0, max_new_tokens=1)
    assert set(ours[:, -1].tolist()) <= support < set(free[:, -1].tolist())


class Recorder(LogitsProcessor):
    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, input_ids, scores):
        self.seen.append(input_ids[0].tolist())
        return scores.index_fill(-1, torch.tensor([7 * len(self.seen) % 64]), -torch.inf)


def test_a_users_processor_with_state(model, spec) -> None:
    first, second = Recorder(), Recorder()
    ids = torch.tensor([ROWS[0]])
    plain = model.generate(
        ids, do_sample=False, max_new_tokens=14, eos_token_id=63, logits_processor=LogitsProcessorList([first])
    )
    ours = model.generate(
        ids,
        do_sample=False,
        max_new_tokens=14,
        eos_token_id=63,
        logits_processor=LogitsProcessorList([second]),
        custom_generate=spec,
    )
    assert torch.equal(plain, ours)
    assert first.seen == second.seen
    with pytest.raises(ValueError, match="logits_processor Recorder may keep state and cannot serve 3 texts"):
        model.generate(
            IDS, attention_mask=MASK, custom_generate=spec, logits_processor=LogitsProcessorList([Recorder()])
        )


def test_a_constraint_function_is_asked_in_order(model, spec) -> None:
    def allowed(row: int, ids: torch.Tensor) -> list[int]:
        return [int(ids[-1]) % 20 + 5, int(ids[-1]) % 7 + 30]

    ids = torch.tensor([ROWS[0]])
    plain = model.generate(ids, do_sample=False, max_new_tokens=14, prefix_allowed_tokens_fn=allowed)
    ours = model.generate(
        ids, do_sample=False, max_new_tokens=14, prefix_allowed_tokens_fn=allowed, custom_generate=spec
    )
    assert torch.equal(plain, ours)


class StopAt(StoppingCriteria):
    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] == self.token


def test_stopping_criteria(model, spec, greedy) -> None:
    token = greedy(model, ROWS[0], 10, eos_token_id=None)[5]
    plain, ours = both(
        model, spec, torch.tensor([ROWS[0]]), max_new_tokens=14, eos_token_id=63, stopping_criteria=[StopAt(token)]
    )
    assert torch.equal(plain, ours)
    assert plain.shape[1] < WIDTH + 14


def test_the_callers_own_length_and_eos_rules_take_the_place_of_the_configs(model, spec) -> None:
    from transformers import MaxLengthCriteria, StoppingCriteriaList
    from transformers.generation.stopping_criteria import EosTokenCriteria

    options = {"max_new_tokens": 24, "eos_token_id": 63, "pad_token_id": 0}
    end = int(model.generate(IDS[:1], do_sample=False, **options)[0, WIDTH + 5])
    for rules in ([MaxLengthCriteria(WIDTH + 9)], [EosTokenCriteria(end)], [MaxLengthCriteria(WIDTH + 30)]):
        plain, ours = both(model, spec, IDS[:1], stopping_criteria=StoppingCriteriaList(rules), **options)
        assert torch.equal(plain, ours) and plain.shape[1] != WIDTH + 24


def test_criteria_see_a_rows_padding(model, spec) -> None:
    class Width(StoppingCriteria):
        def __call__(self, ids, scores, **kwargs):
            return torch.full((ids.shape[0],), ids.shape[1] >= WIDTH + 5)

    options = {"max_new_tokens": 20, "pad_token_id": 0, "attention_mask": MASK, "stopping_criteria": [Width()]}
    plain, ours = both(model, spec, **options)
    assert plain.shape[1] == ours.shape[1] == WIDTH + 5


def test_k_and_the_statistics_of_the_run(model, spec) -> None:
    plain = model.generate(IDS[:1], do_sample=False, max_new_tokens=20, pad_token_id=0)
    drafted = {}
    for k in (0, 2, "auto"):
        ours = model.generate(
            IDS[:1],
            do_sample=False,
            max_new_tokens=20,
            pad_token_id=0,
            custom_generate=spec,
            k=k,
            return_dict_in_generate=True,
        )
        assert torch.equal(ours.sequences, plain)
        drafted[k] = max(len(step.drafted) for step in ours.results[0].steps)
    assert drafted[0] == 0 and drafted[2] == 2
    with pytest.raises(ValueError, match="k=-1 must be >= 0"):
        model.generate(IDS[:1], custom_generate=spec, k=-1)


def test_what_would_have_to_be_ignored_is_refused(model, spec) -> None:
    with pytest.raises(ValueError, match="num_beams=3 is not supported"):
        model.generate(IDS[:1], custom_generate=spec, num_beams=3)
    with pytest.raises(ValueError, match="use_cache=False is not supported"):
        model.generate(IDS[:1], custom_generate=spec, use_cache=False)
    with pytest.raises(ValueError, match=r"received .*output_attentions"):
        model.generate(IDS[:1], custom_generate=spec, output_attentions=True, return_dict_in_generate=True)
    with pytest.raises(ValueError, match="inputs_embeds"):
        model.generate(
            input_ids=IDS[:1],
            inputs_embeds=model.get_input_embeddings()(IDS[:1]),
            custom_generate=spec,
            max_new_tokens=3,
        )
    with pytest.raises(ValueError, match="prompt 1 holds no token ids"):
        model.generate(IDS[:2], attention_mask=MASK[:2] * 0 + torch.tensor([[1], [0]]), custom_generate=spec)


def cache_name(model) -> str:
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


CACHES = {
    "dynamic": lambda model: DynamicCache(),
    "by-config": lambda model: DynamicCache(config=model.config),
    "static": lambda model: StaticCache(config=model.config, max_cache_len=40),
}


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_callers_empty_cache_is_filled_as_transformers_fills_it(family: str, kind: str) -> None:
    changes = {"sliding_window": 8} if family == "mistral" else {}
    model = toy_model(family, seed=5, **changes)
    spec = SpeculativeDecoder.from_models(model, noisy_copy(model, 0.05))
    name, options = cache_name(model), {"do_sample": False, "max_new_tokens": 12, "eos_token_id": 63}
    true, ours = CACHES[kind](model), CACHES[kind](model)
    plain = model.generate(IDS[:1], **options, **{name: true})
    output = model.generate(IDS[:1], **options, **{name: ours}, custom_generate=spec, return_dict_in_generate=True)
    assert torch.equal(output.sequences, plain) and output[name] is ours
    assert ours.get_seq_length() == true.get_seq_length() == plain.shape[1] - 1
    for mine, wanted in zip(ours.layers, true.layers, strict=True):
        torch.testing.assert_close(mine.keys, wanted.keys, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(mine.values, wanted.values, atol=1e-5, rtol=1e-4)
    longer = torch.cat([plain, torch.tensor([[8, 21]])], dim=1)
    fresh = model.generate(longer, **options)
    assert torch.equal(model.generate(longer, **options, **{name: ours}), fresh)


def test_a_cache_that_cannot_be_filled_exactly_is_refused(model, spec) -> None:
    name = cache_name(model)
    for prompts in ({"inputs": IDS, "attention_mask": MASK}, {"inputs": IDS[1:2], "attention_mask": MASK[1:2]}):
        with pytest.raises(ValueError, match="fills a cache for one prompt without padding"):
            model.generate(**prompts, custom_generate=spec, max_new_tokens=3, **{name: DynamicCache()})

    class Own(Cache):
        pass

    with pytest.raises(ValueError, match="fills a DynamicCache or a StaticCache, no Own"):
        model.generate(IDS[:1], custom_generate=spec, max_new_tokens=3, **{name: Own(layers=[])})
    cache = DynamicCache()
    model(IDS[:1], use_cache=True, **{name: cache})
    with pytest.raises(ValueError, match="cache that already holds tokens"):
        model.generate(torch.cat([IDS[:1], IDS[:1, -1:]], 1), custom_generate=spec, max_new_tokens=3, **{name: cache})
