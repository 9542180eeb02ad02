"""Interrupts, exceptions, threads, memory, long texts, and arguments drawn at random."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decoder import SpeculativeDecoder
from decoder.models.hf import CausalModel
from decoder.models.toy import noisy_copy, toy_model

PROMPT = torch.tensor([7, 33, 12, 50, 9])


@pytest.fixture(scope="module")
def models():
    target = toy_model("llama", seed=5)
    target.generation_config.eos_token_id = None
    return target, noisy_copy(target, 0.05)


@pytest.fixture(scope="module")
def decoder(models):
    return SpeculativeDecoder.from_models(*models, temperature=0)


# ---- interrupted in the middle ----


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("at", [1, 2, 5])
def test_an_interrupt_inside_a_model_leaves_the_decoder_correct(
    decoder, monkeypatch, error, role: str, at: int
) -> None:
    wanted = decoder.generate(PROMPT, k=3, max_new_tokens=20)
    calls = 0
    original = CausalModel.call

    def failing(self, *args, **kwargs):
        nonlocal calls
        calls += self.role == role
        if calls == at and self.role == role:
            raise error("stop here")
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(CausalModel, "call", failing)
        with pytest.raises(error, match="stop here"):
            decoder.generate(PROMPT, k=3, max_new_tokens=20)
    assert not torch.is_inference_mode_enabled()
    assert decoder.generate(PROMPT, k=3, max_new_tokens=20).token_ids == wanted.token_ids


@pytest.mark.parametrize("at", [1, 3, 6])
def test_an_interrupt_leaves_a_given_cache_true(decoder, monkeypatch, at: int) -> None:
    first = decoder.generate(PROMPT, k=3, max_new_tokens=12, return_cache=True)
    prompt = torch.tensor([*PROMPT.tolist(), *first.token_ids, 8])
    wanted = decoder.generate(prompt, k=3, max_new_tokens=12)
    calls = 0
    original = CausalModel.call

    def failing(self, *args, **kwargs):
        nonlocal calls
        calls += 1
        logits = original(self, *args, **kwargs)  # the buffers have been written by now
        if calls == at:
            raise KeyboardInterrupt
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(CausalModel, "call", failing)
        with pytest.raises(KeyboardInterrupt):
            decoder.generate(prompt, k=3, max_new_tokens=12, cache=first.cache)
    for text in (prompt, PROMPT):
        again = decoder.generate(text, k=3, max_new_tokens=12, cache=first.cache)
        assert again.token_ids == decoder.generate(text, k=3, max_new_tokens=12).token_ids
    assert decoder.generate(prompt, k=3, max_new_tokens=12, cache=first.cache).token_ids == wanted.token_ids


class Failing:
    """A callback that fails at its third call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.calls == 3:
            raise RuntimeError("the user's own error")
        return args[1] if len(args) > 1 and args[1] is not None else False

    put = __call__

    def end(self) -> None:
        pass


@pytest.mark.parametrize("where", ["logits_processor", "stopping_criteria", "streamer"])
def test_an_exception_in_a_callback_reaches_the_caller_unchanged(decoder, where: str) -> None:
    wanted = decoder.generate(PROMPT, k=3, max_new_tokens=12)
    failing = Failing()
    with pytest.raises(RuntimeError, match=r"^the user's own error$"):
        decoder.generate(PROMPT, k=3, max_new_tokens=12, **{where: failing if where == "streamer" else [failing]})
    assert failing.calls == 3
    assert decoder.generate(PROMPT, k=3, max_new_tokens=12).token_ids == wanted.token_ids


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), MemoryError()]
)
def test_out_of_memory_says_what_was_asked_and_what_to_do(decoder, monkeypatch, error) -> None:
    wanted = decoder.generate(PROMPT, k=3, max_new_tokens=12)

    def full(*args, **kwargs):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(CausalModel, "call", full)
        with pytest.raises(type(error), match=r"out of memory on cpu with 2 rows of up to 5 tokens.*lower batch_size"):
            decoder.generate([PROMPT, PROMPT[:2]], k=3, max_new_tokens=12)
    assert decoder.generate(PROMPT, k=3, max_new_tokens=12).token_ids == wanted.token_ids


# ---- threads ----


def test_threads_on_one_decoder_do_not_mix(decoder) -> None:
    prompts = [torch.tensor([n + 3, 2 * n + 5, 9]) for n in range(4)]
    wanted = [decoder.generate(prompt, k=3, max_new_tokens=20).token_ids for prompt in prompts]
    found: dict[int, list] = {n: [] for n in range(4)}

    def work(n: int) -> None:
        for k in (1, 3, 4):
            found[n].append(decoder.generate(prompts[n], k=k, max_new_tokens=20).token_ids)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [wanted[n]] * 3 for n in range(4)}


def test_two_threads_with_one_cache_get_results_or_an_error(decoder) -> None:
    first = decoder.generate(PROMPT, k=3, max_new_tokens=8, return_cache=True)
    wanted = decoder.generate(PROMPT, k=3, max_new_tokens=16).token_ids
    outcomes = []

    def work() -> None:
        for _ in range(4):
            try:
                outcomes.append(decoder.generate(PROMPT, k=3, max_new_tokens=16, cache=first.cache).token_ids)
            except ValueError as error:
                assert "in use by another call" in str(error)
                outcomes.append(None)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 12
    assert {outcome for outcome in outcomes if outcome is not None} == {wanted}


# ---- memory and long texts ----


def tensors_alive() -> int:
    gc.collect()
    return sum(1 for thing in gc.get_objects() if isinstance(thing, torch.Tensor))


def test_300_calls_of_different_lengths_do_not_grow(decoder, target, draft, tokenizer) -> None:
    talker = SpeculativeDecoder.from_models(target, draft, tokenizer=tokenizer, temperature=1.0)

    def calls(count: int) -> None:
        for n in range(count):
            prompt = torch.arange(3, 4 + n % 7)
            if n % 3 == 0:
                decoder.generate([prompt, prompt[:1]], k=n % 4, max_new_tokens=2 + n % 3)
            elif n % 3 == 1:
                next(talker.stream(prompt, k=2, max_new_tokens=3), None)  # abandoned
            else:
                talker.generate(prompt, k=n % 5, max_new_tokens=3, return_cache=True)

    calls(30)
    tensors = tensors_alive()
    tracemalloc.start()
    try:
        calls(30)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        calls(240)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tensors_alive() <= tensors + 3
    assert after - before < 200_000, f"{after - before} bytes more after 240 calls"


@pytest.mark.slow
def test_4000_tokens_cost_a_flat_time_each() -> None:
    """The tokens of the last quarter may cost what attention over the longer context adds, and no quadratic copying.

    A toy of width 32 attends over 4,096 positions in well under a millisecond: three times the time means a copy.
    """
    target = toy_model("llama", seed=5, max_position_embeddings=4096)
    decoder = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.05), temperature=0)
    result = decoder.generate(PROMPT, k=4, max_new_tokens=4000, eos_token_id=None)
    assert len(result.token_ids) == 4000
    walls = [step.wall_s for step in result.steps[1:]]
    quarter = len(walls) // 4
    early, late = sorted(walls[:quarter])[quarter // 2], sorted(walls[-quarter:])[quarter // 2]
    assert late < 3 * early, f"a round took {early * 1e3:.2f} ms at the beginning and {late * 1e3:.2f} ms at the end"


@pytest.mark.slow
def test_long_texts_with_everything_on_stay_linear(tokenizer) -> None:
    """Stop strings, criteria, streaming and prompt lookup on 2,000 tokens: what they add per token must not grow."""
    target = toy_model("llama", seed=3, vocab_size=len(tokenizer), max_position_embeddings=4096)
    decoder = SpeculativeDecoder.from_models(target, tokenizer=tokenizer, drafter="ngram", temperature=1.0, top_p=1.0)
    stream = decoder.stream(
        "the cat",
        k=3,
        max_new_tokens=2000,
        eos_token_id=None,
        stop_strings=["never, never said"],
        repetition_penalty=1.1,
    )
    times = []
    last = time.perf_counter()
    for n, _ in enumerate(stream, 1):
        if n % 100 == 0:
            times.append(time.perf_counter() - last)
            last = time.perf_counter()
    assert len(stream.result.token_ids) == 2000
    quarter = len(times) // 4
    assert sorted(times[-quarter:])[quarter // 2] < 3 * sorted(times[:quarter])[quarter // 2]


# ---- arguments at random ----

QUIET = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
VALID = st.fixed_dictionaries(
    {"k": st.integers(0, 9), "max_new_tokens": st.integers(1, 14), "seed": st.integers(0, 2**62)},
    optional={
        "temperature": st.one_of(st.just(0), st.floats(0.05, 5.0)),
        "top_p": st.floats(0.01, 1.0),
        "top_k": st.integers(0, 80),
        "min_p": st.floats(0.0, 1.0),
        "repetition_penalty": st.floats(0.5, 2.0),
        "no_repeat_ngram_size": st.integers(0, 3),
        "min_new_tokens": st.integers(0, 20),
        "eos_token_id": st.one_of(st.none(), st.integers(0, 80), st.lists(st.integers(0, 63), max_size=20)),
        "suppress_tokens": st.lists(st.integers(0, 63), max_size=5),
        "bad_words_ids": st.lists(st.lists(st.integers(0, 63), min_size=1, max_size=3), max_size=3),
        "drafter": st.sampled_from(["model", "ngram", "none"]),
        "verifier": st.sampled_from(["auto", "match", "token", "block"]),
        "batch_size": st.integers(1, 5),
        "num_return_sequences": st.integers(1, 2),
    },
)
PROMPTS = st.lists(st.lists(st.integers(0, 63), min_size=1, max_size=9), min_size=1, max_size=3)


def check_result(result, prompt: list[int], options: dict) -> None:
    """What holds for every result, whatever was asked."""
    ids, rounds = list(result.token_ids), result.steps[1:]
    assert list(result.prompt_token_ids) == prompt
    assert 1 <= len(ids) <= options["max_new_tokens"]
    assert len(ids) == sum(len(step.emitted) for step in result.steps)
    assert [token for step in result.steps for token in step.emitted] == ids
    assert len(result.fates) == len(ids)
    assert result.num_iterations == len(rounds)
    assert result.num_draft_tokens == sum(len(step.drafted) for step in rounds)
    assert all(len(step.drafted) <= options["k"] and step.accepted <= len(step.drafted) for step in rounds)
    assert all(step.emitted[: step.accepted] == step.drafted[: step.accepted] for step in rounds)
    assert all(step.accepted <= len(step.emitted) <= step.accepted + 1 for step in rounds)
    assert result.num_accepted_tokens == result.fates.count("accepted")
    parts = result.prefill_s + result.draft_s + result.target_s + result.overhead_s
    assert parts == pytest.approx(result.wall_s, rel=0.01)
    assert result.overhead_s > -0.01 * result.wall_s
    eos = options.get("eos_token_id")
    eos = [] if eos is None else [eos] if isinstance(eos, int) else eos
    assert not set(ids[:-1]) & set(eos)
    assert (result.finish_reason == "eos") == (ids[-1] in eos)
    assert result.finish_reason in ("eos", "length")
    if result.finish_reason == "length":
        assert len(ids) == options["max_new_tokens"]
    if eos and len(ids) < options["max_new_tokens"]:
        assert len(ids) > options.get("min_new_tokens", 0)
    assert not set(ids) & set(options.get("suppress_tokens", []))
    for word in options.get("bad_words_ids", []):
        if len(word) == 1 and word[0] not in eos:
            assert word[0] not in ids
    result.to_dict()


@QUIET
@given(prompts=PROMPTS, options=VALID)
def test_valid_arguments_give_a_result_that_adds_up(decoder, prompts, options) -> None:
    copies = options.get("num_return_sequences", 1)
    results = decoder.generate([torch.tensor(prompt) for prompt in prompts], **options)
    assert len(results) == copies * len(prompts)
    for number, result in enumerate(results):
        check_result(result, prompts[number // copies], options)


@QUIET
@given(prompt=PROMPTS.map(lambda prompts: prompts[0]), options=VALID, seed=st.integers(0, 1000))
def test_greedy_speculation_equals_the_baseline_whatever_else_is_asked(decoder, prompt, options, seed) -> None:
    options = {**options, "temperature": 0, "num_return_sequences": 1}
    mine = decoder.generate(torch.tensor(prompt), **options)
    mine = mine[0] if isinstance(mine, list) else mine
    plain = decoder.generate_baseline(torch.tensor(prompt), **options)
    assert mine.token_ids == plain.token_ids
    assert mine.finish_reason == plain.finish_reason


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-3, 70), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.just(object()),
)
NAMES = (
    "k temperature top_p top_k min_p max_new_tokens max_length min_new_tokens repetition_penalty no_repeat_ngram_size "
    "bad_words_ids suppress_tokens eos_token_id pad_token_id stop_strings do_sample num_beams num_return_sequences "
    "use_cache batch_size seed drafter verifier sampling logits_processor stopping_criteria generation_config streamer "
    "cache return_cache progress attention_mask return_dict_in_generate invariant unheard_of"
).split()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(NAMES), value=JUNK)
def test_any_value_of_any_argument_works_or_is_refused_by_name(decoder, name: str, value) -> None:
    options = {"max_new_tokens": 2, "k": 2} | {name: value}
    if name == "max_length" and value is not None:
        options.pop("max_new_tokens")
    try:
        decoder.generate(PROMPT, **options)
    except (TypeError, ValueError) as error:
        assert (name if name != "k" else "k=") in str(error), f"{name}={value!r}: {error}"
        assert "\n" not in str(error)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(prompt=JUNK)
def test_any_prompt_works_or_is_refused(decoder, prompt) -> None:
    try:
        decoder.generate(prompt, max_new_tokens=1)
    except (TypeError, ValueError) as error:
        assert "prompt" in str(error)
