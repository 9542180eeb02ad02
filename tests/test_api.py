"""`SpeculativeDecoder` from prompt to result: lengths, stopping, batches, turns, processors, library objects."""

from __future__ import annotations

import copy
import gc
import itertools
import weakref

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria
from transformers.generation.logits_process import TopKLogitsWarper

from decoder import GenerationResult, SpeculativeDecoder
from decoder.models.hf import CausalModel, CausalSession
from decoder.models.toy import noisy_copy, toy_model

PROMPT = [7, 33, 12, 50, 9]


@pytest.fixture(scope="module")
def models():
    target = toy_model("llama", seed=5)
    target.generation_config.eos_token_id = None
    return target, noisy_copy(target, 0.05)


@pytest.fixture
def decoder(models) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_models(*models, temperature=0)


@pytest.fixture
def talker(target, draft, tokenizer) -> SpeculativeDecoder:
    """A decoder with text, greedy."""
    return SpeculativeDecoder.from_models(target, draft, tokenizer=tokenizer, temperature=0)


def ids_of(result: GenerationResult) -> list[int]:
    return list(result.token_ids)


# ---- the three lines of the README ----


def test_a_result_and_its_baseline(talker, target, greedy) -> None:
    result = talker.generate("the cat", max_new_tokens=20, k=4)
    baseline = talker.generate_baseline("the cat", max_new_tokens=20, k=4)
    text, seconds = baseline
    assert text == result.text == str(result)
    assert result.full_text == "the cat" + result.text
    assert seconds == baseline.wall_s > 0
    assert baseline.num_draft_tokens == 0 < result.num_draft_tokens
    assert result.lossless and baseline.lossless
    assert ids_of(result) == greedy(target, result.prompt_token_ids, 20)


def test_default_is_128_new_tokens_and_sampling(talker) -> None:
    talker = SpeculativeDecoder.from_models(talker.target, tokenizer=talker.tokenizer)
    assert not talker.params.greedy and talker.params.top_p == 0.9
    result = talker.generate(torch.tensor([5]), eos_token_id=None, seed=1, max_new_tokens=None)
    assert len(result.token_ids) == 127, "the toy's context of 128 caps it"
    assert result.finish_reason == "length"


def test_do_sample_false_and_temperature_0_are_greedy(models, greedy) -> None:
    decoder = SpeculativeDecoder.from_models(*models, temperature=0.9)
    wanted = greedy(models[0], PROMPT, 10)
    assert ids_of(decoder.generate(torch.tensor(PROMPT), max_new_tokens=10, do_sample=False)) == wanted
    assert ids_of(decoder.generate(torch.tensor(PROMPT), max_new_tokens=10, temperature=0)) == wanted


# ---- lengths ----


@pytest.mark.parametrize("k", [0, 1, 8])
@pytest.mark.parametrize("new", [1, 2, 3, 9])
def test_lengths_are_exact(decoder, greedy, k: int, new: int) -> None:
    wanted = greedy(decoder.target, PROMPT, new)
    for options in ({"max_new_tokens": new}, {"max_length": len(PROMPT) + new}):
        result = decoder.generate(torch.tensor(PROMPT), k=k, **options)
        assert ids_of(result) == wanted
        assert result.finish_reason == "length"
    assert ids_of(decoder.generate(torch.tensor(PROMPT), k=k, max_new_tokens=new, max_length=5 + new)) == wanted


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt"])
@pytest.mark.parametrize("k", [0, 3, 8])
def test_the_context_limit_is_reached_and_not_overshot(family: str, k: int, greedy) -> None:
    """Absolute position embeddings have no row beyond the context: an index error would show."""
    changes = {"tie_word_embeddings": False}
    changes |= {"n_positions": 32} if family == "gpt2" else {"max_position_embeddings": 32}
    changes |= {"ffn_dim": 48, "word_embed_proj_dim": 32} if family == "opt" else {}
    target = toy_model(family, seed=5, **changes)
    target.generation_config.eos_token_id = None
    decoder = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.05), temperature=0)
    for length in (3, 25, 30, 31):
        prompt = torch.randint(3, 60, (length,), generator=torch.Generator().manual_seed(length))
        result = decoder.generate(prompt, k=k, max_length=32)
        assert ids_of(result) == greedy(target, prompt, 32 - length)
        more = decoder.generate(prompt, k=k, max_new_tokens=100)
        assert more.token_ids == result.token_ids, "a longer wish is capped at the context"
        assert more.finish_reason == "length"


def test_a_prompt_as_long_as_the_context_still_gets_its_one_token(greedy) -> None:
    target = toy_model("gpt2", seed=5, n_positions=16, tie_word_embeddings=False)
    decoder = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.05), temperature=0)
    prompt = torch.arange(3, 19)
    with torch.no_grad():
        wanted = int(target(prompt[None]).logits[0, -1].argmax())
    for k in (0, 8):
        assert ids_of(decoder.generate(prompt, k=k, max_new_tokens=5, eos_token_id=None)) == [wanted]


@pytest.mark.parametrize("prompt_length", [3, 14, 16, 20])
def test_a_draft_with_a_shorter_context_stops_drafting_there(prompt_length: int, greedy) -> None:
    target = toy_model("gpt2", seed=5, n_positions=48, tie_word_embeddings=False)
    target.generation_config.eos_token_id = None
    draft = toy_model("gpt2", seed=5, n_positions=16, tie_word_embeddings=False)
    state = {name: w for name, w in target.state_dict().items() if "wpe" not in name}
    draft.load_state_dict(state, strict=False)
    draft.transformer.wpe.weight.data = target.transformer.wpe.weight.data[:16].clone()
    decoder = SpeculativeDecoder.from_models(target, draft, temperature=0)
    prompt = torch.randint(3, 60, (prompt_length,), generator=torch.Generator().manual_seed(1))
    result = decoder.generate(prompt, k=8, max_new_tokens=20)
    assert ids_of(result) == greedy(target, prompt, 20)
    assert (result.num_draft_tokens > 0) == (prompt_length < 16)
    assert result.num_accepted_tokens == result.num_draft_tokens, "inside its context the draft is the target"
    both = decoder.generate([prompt, prompt[:2]], k=8, max_new_tokens=20)
    assert [ids_of(r) for r in both] == [ids_of(result), greedy(target, prompt[:2], 20)]


# ---- counting forwards ----


def test_one_forward_per_drafted_token_and_one_per_verification(models, monkeypatch) -> None:
    calls = {"target": 0, "draft": 0}
    original = CausalModel.call

    def counted(self, *args, **kwargs):
        calls[self.role] += 1
        return original(self, *args, **kwargs)

    monkeypatch.setattr(CausalModel, "call", counted)
    decoder = SpeculativeDecoder.from_models(*models, temperature=0)
    result = decoder.generate(torch.tensor(PROMPT), k=4, max_new_tokens=30)
    assert calls["target"] == 1 + result.num_iterations
    assert calls["draft"] == 1 + result.num_draft_tokens
    calls.update(target=0, draft=0)
    plain = decoder.generate_baseline(torch.tensor(PROMPT), max_new_tokens=30)
    assert calls == {"target": 30, "draft": 0}
    assert plain.num_iterations == 29


# ---- EOS and stop strings ----


def test_each_greedy_token_in_turn_declared_eos(decoder, greedy) -> None:
    wanted = greedy(decoder.target, PROMPT, 24)
    for token in dict.fromkeys(wanted):
        end = wanted.index(token) + 1
        for k in (2, 5):
            result = decoder.generate(torch.tensor(PROMPT), k=k, max_new_tokens=24, eos_token_id=token)
            assert ids_of(result) == wanted[:end]
            assert result.finish_reason == ("eos" if end < 25 else "length")


def test_several_eos_ids_and_none_at_all(decoder, greedy) -> None:
    wanted = greedy(decoder.target, PROMPT, 24)
    several = [wanted[9], wanted[4], 63]
    end = min(wanted.index(token) for token in several[:2]) + 1
    for eos in (several, torch.tensor(several)):
        assert ids_of(decoder.generate(torch.tensor(PROMPT), max_new_tokens=24, eos_token_id=eos)) == wanted[:end]
    decoder.target.generation_config.eos_token_id = wanted[3]
    try:
        assert len(decoder.generate(torch.tensor(PROMPT), max_new_tokens=24).token_ids) == wanted.index(wanted[3]) + 1
        assert ids_of(decoder.generate(torch.tensor(PROMPT), max_new_tokens=24, eos_token_id=None)) == wanted
    finally:
        decoder.target.generation_config.eos_token_id = None


def test_a_prompt_that_holds_eos_goes_on(decoder, greedy) -> None:
    prompt = [2, 7, 2, 33, 2]
    wanted = greedy(decoder.target, prompt, 16, eos_token_id=2)
    assert ids_of(decoder.generate(torch.tensor(prompt), max_new_tokens=16, eos_token_id=2)) == wanted
    assert len(wanted) > 1


def test_no_mask_equals_a_mask_of_ones_equals_left_padding(decoder) -> None:
    ids = torch.tensor([PROMPT])
    alone = decoder.generate(ids, max_new_tokens=12)
    ones = decoder.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12)
    padded = torch.tensor([[0, 0, 0, *PROMPT]])
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    left = decoder.generate(padded, attention_mask=mask, max_new_tokens=12)
    assert alone.token_ids == ones.token_ids == left.token_ids
    assert left.prompt_token_ids == tuple(PROMPT)


def test_padding_without_a_mask_is_what_it_is_to_generate(decoder, greedy) -> None:
    """The library takes pad ids for padding, unless pad is an EOS or there is none."""
    padded = torch.tensor([[0, 0, 0, *PROMPT]])
    alone = greedy(decoder.target, PROMPT, 12)
    config = decoder.target.generation_config
    assert config.pad_token_id == 0
    assert ids_of(decoder.generate(padded, max_new_tokens=12)) == alone
    assert decoder.generate(padded, max_new_tokens=12, pad_token_id=63).prompt_token_ids == (0, 0, 0, *PROMPT)
    for eos in (0, [9, 0], torch.tensor([0])):
        result = decoder.generate(padded, max_new_tokens=12, eos_token_id=eos)
        assert result.prompt_token_ids == (0, 0, 0, *PROMPT)
        with torch.no_grad():
            ids = torch.ones_like(padded)
            out = decoder.target.generate(padded, max_new_tokens=12, do_sample=False, eos_token_id=eos, pad_token_id=0)
        assert ids_of(result) == out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("k", [0, 6])
def test_every_two_token_substring_as_a_stop_string(talker, target, tokenizer, greedy, k: int) -> None:
    prompt = tokenizer("the cat")["input_ids"]
    wanted = greedy(target, prompt, 24)
    text = tokenizer.decode(wanted)
    tried = 0
    for at in range(len(wanted) - 1):
        string = tokenizer.decode(wanted[at : at + 2])
        if "\ufffd" in string or not string or string not in text:
            continue
        tried += 1
        end = next(n for n in range(1, 25) if string in tokenizer.decode(wanted[:n]))
        result = talker.generate("the cat", k=k, max_new_tokens=24, stop_strings=string)
        assert ids_of(result) == wanted[:end]
        assert result.finish_reason == "stop"
        assert result.text.endswith(string) and result.text.count(string) == 1
    assert tried >= 3


def test_a_stop_string_over_a_block_boundary(talker, target, tokenizer, greedy) -> None:
    """Every run of four tokens, whatever the rounds were: some of them span two blocks."""
    prompt = tokenizer("the cat")["input_ids"]
    wanted = greedy(target, prompt, 24)
    free = talker.generate("the cat", k=3, max_new_tokens=24)
    ends, n = set(), 0
    for step in free.steps:
        n += len(step.emitted)
        ends.add(n)
    spanning = 0
    for at in range(len(wanted) - 4):
        string = tokenizer.decode(wanted[at : at + 4])
        if "\ufffd" in string or string not in tokenizer.decode(wanted):
            continue
        spanning += any(at < end < at + 4 for end in ends)
        end = next(n for n in range(1, 25) if string in tokenizer.decode(wanted[:n]))
        result = talker.generate("the cat", k=3, max_new_tokens=24, stop_strings=[string, "never said"])
        assert ids_of(result) == wanted[:end]
    assert spanning >= 2


# ---- batches ----


def test_a_ragged_batch_gives_each_prompt_its_own_result_in_order(decoder) -> None:
    prompts = [torch.tensor(PROMPT[: n + 1]) for n in range(5)]
    alone = [decoder.generate(prompt, k=3, max_new_tokens=10 + n, seed=4) for n, prompt in enumerate(prompts)]
    for size in (1, 2, 16):
        together = decoder.generate(prompts, k=3, max_new_tokens=14, batch_size=size)
        assert [r.prompt_token_ids for r in together] == [tuple(prompt.tolist()) for prompt in prompts]
        for n, (one, many) in enumerate(zip(alone, together, strict=True)):
            assert many.token_ids[: 10 + n] == one.token_ids


@pytest.mark.parametrize("verifier", ["token", "block", "match"])
def test_a_sampled_row_does_not_depend_on_its_batch(models, verifier: str) -> None:
    decoder = SpeculativeDecoder.from_models(*models, temperature=0.9, verifier=verifier, seed=11)
    prompts = [torch.tensor(PROMPT[: n + 1]) for n in range(4)]
    whole = decoder.generate(prompts, k=3, max_new_tokens=12)
    pairs = decoder.generate(prompts, k=3, max_new_tokens=12, batch_size=2)
    assert [r.token_ids for r in whole] == [r.token_ids for r in pairs]
    assert decoder.generate(prompts[0], k=3, max_new_tokens=12).token_ids == whole[0].token_ids


def test_num_return_sequences_are_independent_draws(models) -> None:
    decoder = SpeculativeDecoder.from_models(*models, temperature=1.0, top_p=1.0, seed=3)
    results = decoder.generate(torch.tensor(PROMPT), k=3, max_new_tokens=10, num_return_sequences=4)
    assert len(results) == 4 and len({r.token_ids for r in results}) > 1
    two = decoder.generate([torch.tensor(PROMPT), torch.tensor([3])], max_new_tokens=4, num_return_sequences=2)
    assert [r.prompt_token_ids for r in two] == [tuple(PROMPT)] * 2 + [(3,)] * 2


# ---- seeds ----


def test_seeds(models) -> None:
    decoder = SpeculativeDecoder.from_models(*models, temperature=1.0, top_p=1.0)
    prompt = torch.tensor(PROMPT)

    def run(**options):
        return decoder.generate(prompt, k=3, max_new_tokens=16, **options).token_ids

    assert run(seed=1) == run(seed=1) != run(seed=2)
    torch.manual_seed(5)
    first, second = run(), run()
    torch.manual_seed(5)
    assert (run(), run()) == (first, second), "unseeded runs follow torch's global generator"
    assert first != second


# ---- processors, criteria, configurations ----

PROCESSING = {
    "repetition_penalty": {"repetition_penalty": 1.7},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[16], [3, 9], [33, 12, 50]]},
    "suppress_tokens": {"suppress_tokens": [16, 41, 5]},
    "min_new_tokens": {"min_new_tokens": 9},
    "all": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "suppress_tokens": [4, 5], "min_new_tokens": 6},
}


@pytest.mark.parametrize("name", PROCESSING)
def test_processors_equal_generate(decoder, greedy, name: str) -> None:
    options = PROCESSING[name]
    prompts = [PROMPT, [7, 7, 9, 7], [60]]
    free = [greedy(decoder.target, prompt, 20) for prompt in prompts]
    eos = free[0][2]
    wanted = [greedy(decoder.target, prompt, 20, eos_token_id=eos, **options) for prompt in prompts]
    cut = [ids[: ids.index(eos) + 1] if eos in ids else ids for ids in free]
    assert wanted != cut, "the processor changes nothing here: no test"
    for k in (0, 4):
        for prompt, ids in zip(prompts, wanted, strict=True):
            result = decoder.generate(torch.tensor(prompt), k=k, max_new_tokens=20, eos_token_id=eos, **options)
            assert ids_of(result) == ids
    batch = decoder.generate([torch.tensor(p) for p in prompts], k=3, max_new_tokens=20, eos_token_id=eos, **options)
    assert [ids_of(r) for r in batch] == wanted


def test_draft_and_target_see_the_same_processors(models) -> None:
    """With draft = target every sampled proposal passes: the laws are the same, processors and temperature included."""
    decoder = SpeculativeDecoder.from_models(models[0], models[0], temperature=0.8, top_p=0.8, top_k=20, seed=2)
    result = decoder.generate(torch.tensor(PROMPT), k=4, max_new_tokens=40, repetition_penalty=1.5, eos_token_id=None)
    assert result.acceptance_rate == 1.0


class Recorder(LogitsProcessor):
    """Keeps every prefix it has seen; its state decides what it bans."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, input_ids, scores):
        self.seen.append(input_ids[0].tolist())
        banned = (7 * len(self.seen)) % scores.shape[-1]  # another call more or less would change the text
        return scores.index_fill(-1, torch.tensor([banned]), -torch.inf)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", ["model", "ngram"])
@pytest.mark.parametrize("k", [0, 1, 5])
def test_a_processor_with_state_sees_each_committed_prefix_once_in_order(models, temperature, drafter, k) -> None:
    decoder = SpeculativeDecoder.from_models(*models, temperature=temperature, drafter=drafter, seed=6)
    recorder = Recorder()
    result = decoder.generate(torch.tensor(PROMPT), k=k, max_new_tokens=20, logits_processor=[recorder])
    ids = ids_of(result)
    assert recorder.seen == [[*PROMPT, *ids[:n]] for n in range(20)]
    plain = decoder.generate_baseline(torch.tensor(PROMPT), max_new_tokens=20, logits_processor=[Recorder()])
    if temperature == 0:
        assert plain.token_ids == result.token_ids
    if k == 5 and drafter == "model":
        assert result.num_accepted_tokens > 0


def test_a_processor_with_state_equals_generate(models, greedy, decoder) -> None:
    wanted = greedy(models[0], PROMPT, 20, logits_processor=[Recorder()])
    assert ids_of(decoder.generate(torch.tensor(PROMPT), max_new_tokens=20, logits_processor=[Recorder()])) == wanted


def test_a_processor_that_says_it_is_stateless_may_serve_batches(decoder) -> None:
    class Ban(LogitsProcessor):
        stateless = True

        def __call__(self, input_ids, scores):
            return scores.index_fill(-1, torch.tensor([int(input_ids[0, -1])]), -torch.inf)

    for result in decoder.generate(
        [torch.tensor(PROMPT), torch.tensor([3])], max_new_tokens=12, logits_processor=[Ban()]
    ):
        ids = [*result.prompt_token_ids[-1:], *result.token_ids]
        assert all(a != b for a, b in itertools.pairwise(ids))


def test_a_warper_given_as_a_processor_works_as_one(models, decoder) -> None:
    sampled = SpeculativeDecoder.from_models(*models, temperature=1.0, top_p=1.0, seed=1)
    result = sampled.generate(torch.tensor(PROMPT), max_new_tokens=10, logits_processor=[TopKLogitsWarper(1)])
    assert ids_of(result) == ids_of(decoder.generate(torch.tensor(PROMPT), max_new_tokens=10))


class StopAt(StoppingCriteria):
    def __init__(self, token: int) -> None:
        self.token, self.seen = token, []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(input_ids[0].tolist())
        return torch.tensor([bool(input_ids[0, -1] == self.token)])


@pytest.mark.parametrize("k", [0, 5])
def test_stopping_criteria_see_every_prefix_and_stop_inside_a_block(decoder, greedy, k: int) -> None:
    wanted = greedy(decoder.target, PROMPT, 20)
    rule = StopAt(wanted[7])
    result = decoder.generate(torch.tensor(PROMPT), k=k, max_new_tokens=20, stopping_criteria=[rule])
    end = wanted.index(wanted[7]) + 1
    assert ids_of(result) == wanted[:end]
    assert result.finish_reason == "stop"
    assert rule.seen == [[*PROMPT, *wanted[:n]] for n in range(1, end + 1)]


def test_a_generation_config_works_and_keywords_win(decoder, greedy) -> None:
    config = GenerationConfig(max_new_tokens=6, do_sample=False, repetition_penalty=1.7, eos_token_id=63)
    wanted = greedy(decoder.target, PROMPT, 6, repetition_penalty=1.7)
    assert ids_of(decoder.generate(torch.tensor(PROMPT), generation_config=config)) == wanted
    longer = decoder.generate(torch.tensor(PROMPT), generation_config=config, max_length=len(PROMPT) + 9)
    assert ids_of(longer) == greedy(decoder.target, PROMPT, 9, repetition_penalty=1.7)
    several = GenerationConfig(
        max_new_tokens=4,
        num_return_sequences=3,
        return_dict_in_generate=True,
        pad_token_id=0,
        do_sample=True,
        temperature=1.0,
    )
    output = decoder.generate(torch.tensor(PROMPT), generation_config=several)
    assert output.sequences.shape == (3, len(PROMPT) + 4)
    assert config.max_new_tokens == 6, "the caller's object is not modified"


def test_a_models_own_generation_config_counts_as_in_generate(greedy) -> None:
    """Qwen's holds a repetition penalty. What a call says itself wins."""
    target = toy_model("llama", seed=5)
    free = greedy(target, PROMPT, 16)
    own = {"repetition_penalty": 1.6, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "do_sample": True}
    target.generation_config = GenerationConfig(**own, eos_token_id=[63, 62], pad_token_id=0, bos_token_id=1)
    wanted = greedy(target, PROMPT, 16)
    assert wanted != free
    decoder = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.05), temperature=0)
    options = {"max_new_tokens": 16, "do_sample": False}
    assert ids_of(decoder.generate(PROMPT, generation_config=target.generation_config, **options)) == wanted
    assert ids_of(decoder.generate(PROMPT, **options)) == wanted
    assert ids_of(decoder.generate_baseline(PROMPT, **options)) == wanted
    assert ids_of(decoder.generate(PROMPT, repetition_penalty=1.0, **options)) == free


def test_return_dict_pads_on_the_right_with_the_pad_token(decoder, greedy) -> None:
    wanted = greedy(decoder.target, PROMPT, 12)
    prompts = [torch.tensor(PROMPT), torch.tensor([3])]
    output = decoder.generate(
        prompts, max_new_tokens=12, eos_token_id=wanted[3], pad_token_id=0, return_dict_in_generate=True
    )
    end = wanted.index(wanted[3]) + 1
    row = output.sequences[0].tolist()
    assert row[: 5 + end] == [*PROMPT, *wanted[:end]] and set(row[5 + end :]) <= {0}


# ---- turns ----


def test_a_second_turn_with_the_cache_equals_a_fresh_run(decoder, monkeypatch) -> None:
    fed: list[int] = []
    original = CausalSession.feed

    def counted(self, tokens, starts, at=None):
        if self.model.role == "target":
            fed.append(tokens.shape[1])
        return original(self, tokens, starts, at)

    monkeypatch.setattr(CausalSession, "feed", counted)
    first = decoder.generate(torch.tensor(PROMPT), k=3, max_new_tokens=12, return_cache=True)
    prompt = torch.tensor([*PROMPT, *first.token_ids, 8, 21, 44])
    fresh = decoder.generate(prompt, k=3, max_new_tokens=12)
    fed.clear()
    second = decoder.generate(prompt, k=3, max_new_tokens=12, cache=first.cache, return_cache=True)
    assert fed[0] == 4, "three new tokens and the last one, whose state was never needed"
    assert second.token_ids == fresh.token_ids
    third = torch.tensor([*second.prompt_token_ids, *second.token_ids, 9])
    again = decoder.generate(third, k=3, max_new_tokens=12, cache=second.cache)
    assert again.token_ids == decoder.generate(third, k=3, max_new_tokens=12).token_ids
    assert again.cache is None, "not asked for"


def test_an_old_cache_may_be_branched_from(decoder) -> None:
    first = decoder.generate(torch.tensor(PROMPT), k=3, max_new_tokens=12, return_cache=True)
    ways = [torch.tensor([*PROMPT, *first.token_ids[:n], extra]) for n, extra in ((12, 8), (5, 40), (0, 3), (12, 9))]
    for prompt in ways:
        got = decoder.generate(prompt, k=3, max_new_tokens=10, cache=first.cache)
        assert got.token_ids == decoder.generate(prompt, k=3, max_new_tokens=10).token_ids
    unrelated = torch.tensor([50, 51, 52])
    got = decoder.generate(unrelated, k=3, max_new_tokens=10, cache=first.cache)
    assert got.token_ids == decoder.generate(unrelated, k=3, max_new_tokens=10).token_ids
    same = decoder.generate(torch.tensor(PROMPT), k=3, max_new_tokens=12, cache=first.cache)
    assert same.token_ids == first.token_ids


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy])
def test_a_copied_cache_is_a_second_conversation_over_the_same_models(decoder, duplicate) -> None:
    """Both go on by turns, as if each were alone; only the buffers are copied."""
    first = decoder.generate(torch.tensor(PROMPT), k=3, max_new_tokens=12, return_cache=True)
    twin = duplicate(first).cache if duplicate is copy.deepcopy else duplicate(first.cache)
    assert twin.target.model is decoder.target and twin.draft.model is decoder.draft
    assert twin.nbytes == first.cache.nbytes
    ways = {8: first.cache, 40: twin}
    said = {extra: [*PROMPT, *first.token_ids, extra] for extra in ways}
    for _ in range(3):
        streams = []
        for extra, cache in ways.items():
            got = decoder.generate(torch.tensor(said[extra]), k=3, max_new_tokens=9, cache=cache)
            assert got.token_ids == decoder.generate(torch.tensor(said[extra]), k=3, max_new_tokens=9).token_ids
            streams.append(got.token_ids)
            said[extra] += [*got.token_ids, extra]
        assert streams[0] != streams[1]


@pytest.mark.parametrize("turns", [(0, 4, 0, 4), (4, 0, 4, 2)])
def test_turns_may_change_k(decoder, turns) -> None:
    cache, prompt = None, list(PROMPT)
    for k in turns:
        got = decoder.generate(torch.tensor(prompt), k=k, max_new_tokens=8, cache=cache, return_cache=True)
        assert got.token_ids == decoder.generate_baseline(torch.tensor(prompt), max_new_tokens=8).token_ids
        cache, prompt = got.cache, [*prompt, *got.token_ids, 8]


def test_a_sampled_second_turn_equals_a_fresh_one(models) -> None:
    decoder = SpeculativeDecoder.from_models(*models, temperature=0.8, seed=3)
    first = decoder.generate(torch.tensor(PROMPT), k=3, max_new_tokens=12, return_cache=True)
    prompt = torch.tensor([*PROMPT, *first.token_ids, 8])
    second = decoder.generate(prompt, k=3, max_new_tokens=12, cache=first.cache)
    assert second.token_ids == decoder.generate(prompt, k=3, max_new_tokens=12).token_ids


def test_the_targets_cache_is_never_handed_to_the_draft(models) -> None:
    """Also where draft and target are the same model, which could share without an error."""
    decoder = SpeculativeDecoder.from_models(models[0], models[0], temperature=0)
    cache = decoder.generate(torch.tensor(PROMPT), k=3, max_new_tokens=8, return_cache=True).cache
    assert cache.target is not cache.draft
    ours = {layer.keys.data_ptr() for layer in cache.target.layers}
    assert not ours & {layer.keys.data_ptr() for layer in cache.draft.layers}


def test_a_cache_of_another_model_is_refused(decoder) -> None:
    cache = decoder.generate(torch.tensor(PROMPT), max_new_tokens=4, return_cache=True).cache
    stranger = SpeculativeDecoder.from_models(toy_model("llama", seed=9), temperature=0)
    with pytest.raises(ValueError, match="cache= holds the state of another target model"):
        stranger.generate(torch.tensor(PROMPT), cache=cache)


def test_another_drafts_states_are_not_taken_for_this_ones(models) -> None:
    first = SpeculativeDecoder.from_models(*models, temperature=0)
    other = SpeculativeDecoder.from_models(models[0], models[0], temperature=0)
    cache = first.generate(torch.tensor(PROMPT), k=3, max_new_tokens=8, return_cache=True)
    prompt = torch.tensor([*PROMPT, *cache.token_ids, 8])
    result = other.generate(prompt, k=3, max_new_tokens=12, cache=cache.cache)
    assert result.acceptance_rate == 1.0, "the perfect draft read another model's states"


def test_results_hold_no_cache_unless_asked(decoder, monkeypatch) -> None:
    opened = []
    original = CausalModel.open

    def watched(self, *args, **kwargs):
        session = original(self, *args, **kwargs)
        opened.append(weakref.ref(session.cache))
        return session

    monkeypatch.setattr(CausalModel, "open", watched)
    result = decoder.generate(torch.tensor(PROMPT), k=3, max_new_tokens=8)
    gc.collect()
    assert len(opened) == 2 and all(ref() is None for ref in opened)
    assert result.cache is None
    kept = decoder.generate(torch.tensor(PROMPT), k=3, max_new_tokens=8, return_cache=True)
    gc.collect()
    assert sum(ref() is not None for ref in opened) == 2
    assert kept.cache.nbytes > 0


# ---- streamers and progress ----


class Streamer:
    def __init__(self) -> None:
        self.put_ids: list[list[int]] = []
        self.ended = 0

    def put(self, value) -> None:
        assert not self.ended
        self.put_ids.append(value.reshape(-1).tolist())

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("k", [0, 4])
def test_a_streamer_gets_every_token_once_in_order_and_end(decoder, k: int) -> None:
    streamer = Streamer()
    result = decoder.generate(torch.tensor(PROMPT), k=k, max_new_tokens=15, streamer=streamer)
    assert streamer.put_ids[0] == PROMPT
    assert streamer.put_ids[1:] == [[token] for token in result.token_ids]
    assert streamer.ended == 1


def test_a_streamer_is_not_sent_past_eos_or_a_stop_string(talker, target, tokenizer, greedy) -> None:
    wanted = greedy(target, tokenizer("the cat")["input_ids"], 20)
    string = next(
        text for text in (tokenizer.decode(wanted[at : at + 2]) for at in range(4, 18)) if text and "\ufffd" not in text
    )
    for options in ({"eos_token_id": wanted[6]}, {"stop_strings": string}):
        streamer = Streamer()
        result = talker.generate("the cat", k=6, max_new_tokens=20, streamer=streamer, **options)
        assert [ids[0] for ids in streamer.put_ids[1:]] == ids_of(result)
        assert streamer.ended == 1
        assert len(result.token_ids) < 20


def test_text_streamers_of_the_library_work(talker, capsys) -> None:
    from transformers import TextStreamer

    result = talker.generate(
        "the cat", k=4, max_new_tokens=12, streamer=TextStreamer(talker.tokenizer, skip_prompt=True)
    )
    assert capsys.readouterr().out.strip("\n").rstrip("\ufffd") in result.text + "\n"


def test_progress_bars_count_tokens_and_prompts(decoder, capsys) -> None:
    decoder.generate(torch.tensor(PROMPT), max_new_tokens=9, progress=True)
    assert "9/9" in capsys.readouterr().err
    decoder.generate([torch.tensor(PROMPT)] * 3, max_new_tokens=3, batch_size=2, progress=True)
    assert "3/3" in capsys.readouterr().err


# ---- times ----


def test_times_are_a_true_account(talker) -> None:
    import time

    talker.generate("the cat", max_new_tokens=2)
    began = time.perf_counter()
    result = talker.generate("the cat", k=4, max_new_tokens=60, eos_token_id=None)
    outside = time.perf_counter() - began
    parts = result.prefill_s + result.draft_s + result.target_s + result.overhead_s
    assert parts == pytest.approx(result.wall_s, rel=0.01)
    assert 0.8 * outside < result.wall_s <= outside
    assert min(result.prefill_s, result.draft_s, result.target_s, result.overhead_s) > 0
    assert result.tokens_per_second == pytest.approx(60 / result.wall_s)
