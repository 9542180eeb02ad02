"""`compile=True`: the same tokens as eager and as the library, few graphs, and an eager fall back that says why.

Most tests trace with the backend "aot_eager", which makes the very graphs in static shapes but generates no code; those
named "really" go through the code generator.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.controllers import AutoLength
from decoder.models import compiled
from decoder.models.cache import PositionCache
from decoder.models.compiled import CompiledModel, relative_error, slots_for
from decoder.models.toy import noisy_copy, toy_model
from decoder.types import Step

PROMPT = [7, 33, 12, 50, 9]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {"tie_word_embeddings": False},
    "mistral": {"sliding_window": 8},
}
UNTIED = {"tie_word_embeddings": False}  # a tied random model just repeats its input
MORE: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {},
    "gemma": UNTIED,
    "gemma2": {"sliding_window": 8, "num_hidden_layers": 2, **UNTIED},
    "gemma3_text": {
        "sliding_window": 8,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        **UNTIED,
    },
    "gpt_neox": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, **UNTIED},
    "phi": {},
    "phi3": {},
    "stablelm": {},
    "starcoder2": {"sliding_window": 8, **UNTIED},
    "olmo2": {},
    "cohere": UNTIED,
    "smollm3": UNTIED,
    "granite": UNTIED,
}


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Graphs of one test are not another's; "aot_eager" unless the test is called really."""
    if "really" not in request.node.name:
        monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # nothing falls back unnoticed
        yield
    torch.compiler.reset()


def pair(family: str = "llama", noise: float = 0.05, **changes: Any) -> tuple[Any, Any]:
    """One layer each where nothing else is said: graphs take their time to trace."""
    changes = {"n_layer" if family == "gpt2" else "num_hidden_layers": 1, **FAMILIES.get(family, {}), **changes}
    target = toy_model(family, seed=5, **changes)
    target.generation_config.eos_token_id = None
    return target, noisy_copy(target, noise)


def compiled_pair(*models: Any, **options: Any) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_models(*models, temperature=0, compile=True, **options)


def sizes(spec: SpeculativeDecoder) -> tuple[list[int], list[int]]:
    target, draft = spec.target_model, spec.draft_model
    assert isinstance(target, CompiledModel) and isinstance(draft, CompiledModel)
    return target.compiled_sizes, draft.compiled_sizes


@pytest.mark.parametrize(("family", "attention"), [*((name, "sdpa") for name in FAMILIES), ("mistral", "eager")])
def test_greedy_texts_are_generate_s(family: str, attention: str, greedy: Callable[..., list[int]]) -> None:
    models = pair(family, attn_implementation=attention, **{"n_layer" if family == "gpt2" else "num_hidden_layers": 2})
    spec = compiled_pair(*models)
    wanted = greedy(models[0], PROMPT, 40)
    result = spec.generate(torch.tensor(PROMPT), k=3, max_new_tokens=40)
    assert list(result.token_ids) == wanted
    assert 0 < result.num_accepted_tokens < result.num_draft_tokens, "rollbacks and acceptances must both be seen"
    assert sizes(spec) == ([5], [1, 2])
    baseline = spec.generate_baseline(torch.tensor(PROMPT), max_new_tokens=40)
    assert list(baseline.token_ids) == wanted
    assert sizes(spec) == ([1, 5], [1, 2])


def test_really_compiled_texts_are_generate_s(greedy: Callable[..., list[int]]) -> None:
    target, _ = pair()
    spec = SpeculativeDecoder.from_models(target, temperature=0, drafter="ngram", compile=True)
    for prompt in (PROMPT, [3], list(range(3, 30))):
        wanted = greedy(target, prompt, 24)
        assert list(spec.generate(torch.tensor(prompt), k=3, max_new_tokens=24, invariant=True).token_ids) == wanted
    assert isinstance(spec.target_model, CompiledModel) and spec.target_model.compiled_sizes == [9]


@pytest.mark.slow
@pytest.mark.parametrize("family", MORE)
def test_every_family_is_really_compiled(family: str, greedy: Callable[..., list[int]]) -> None:
    target, _ = pair(family, **MORE[family])
    spec = SpeculativeDecoder.from_models(target, temperature=0, drafter="ngram", compile=True)
    wanted = greedy(target, PROMPT, 40)
    result = spec.generate(torch.tensor(PROMPT), k=3, max_new_tokens=40, eos_token_id=None)
    assert list(result.token_ids) == wanted
    assert isinstance(spec.target_model, CompiledModel) and spec.target_model.compiled_sizes
    assert set(MORE) | set(FAMILIES) | {"gemma3"} == compiled.BATCHED_FAMILIES


@pytest.mark.slow
def test_the_bundled_pair_is_really_compiled() -> None:
    eager, spec = SpeculativeDecoder(temperature=0), SpeculativeDecoder(temperature=0, compile=True)
    for prompt in ("Once upon a time there was a king who", "The fox said"):
        wanted = eager.generate_baseline(prompt, max_new_tokens=60)
        assert spec.generate(prompt, k=4, max_new_tokens=60).token_ids == wanted.token_ids
        assert spec.generate_baseline(prompt, max_new_tokens=60).token_ids == wanted.token_ids
    assert sizes(spec) == ([1, 5], [1, 2])


def test_sampling_draws_the_same_tokens_as_eager() -> None:
    models = pair()
    eager = SpeculativeDecoder.from_models(*models, temperature=0.9)
    spec = SpeculativeDecoder.from_models(*models, temperature=0.9, compile=True)
    options = {"k": 3, "max_new_tokens": 30, "seed": 3}
    assert spec.generate(torch.tensor(PROMPT), **options).token_ids == (
        eager.generate(torch.tensor(PROMPT), **options).token_ids
    )


def test_the_cache_holds_the_truth_after_every_round() -> None:
    target, draft = pair()
    spec = compiled_pair(target, draft)
    result = spec.generate(torch.tensor(PROMPT), k=3, max_new_tokens=30, return_cache=True)
    tokens = [*PROMPT, *result.token_ids]
    for model, cache in ((target, result.cache.target), (draft, result.cache.draft)):
        length = cache.lengths[0]
        fresh = PositionCache(1, 1, length)
        fresh.place([0], length)
        with torch.no_grad():
            name = spec.target_model._cache_name
            model(input_ids=torch.tensor([tokens[:length]]), use_cache=True, **{name: fresh})
        for mine, true in zip(cache.layers, fresh.layers, strict=True):
            torch.testing.assert_close(mine.keys[:, :, :length], true.keys[:, :, :length], atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(mine.values[:, :, :length], true.values[:, :, :length], atol=2e-5, rtol=1e-4)


# ---- which graphs there are ----


def feed(model: CompiledModel, *blocks: int, limit: int = 100) -> None:
    """A prompt of three tokens, then blocks of these sizes, all of them committed."""
    session = model.open(1, limit)
    with torch.inference_mode():
        session.feed(torch.tensor([[5, 6, 7]]), [0])
        at = 3
        session.commit([at])
        for size in blocks:
            tokens = torch.randint(3, 60, (1, size), generator=torch.Generator().manual_seed(size))
            found = session.feed(tokens, [at])
            assert found.shape == (1, size, 64)
            session.commit([at + size])
            at += size


def test_a_size_is_compiled_once_and_rare_ones_are_padded() -> None:
    model = CompiledModel(pair()[0], "target")
    feed(model)
    assert model.compiled_sizes == [], "a prefill of three tokens is not a block"
    feed(model, 4, 5, 4, 2, 3, 1)
    assert model.compiled_sizes == [5], "four tokens are padded to five"
    feed(model, 2, 4, 2, 2)
    assert model.compiled_sizes == [5], "counted within a run"
    feed(model, 2, 2, 2, 2, 7, 18)
    assert model.compiled_sizes == [2, 5, 9], "asked for often; wider than all; too wide for any"
    assert model.compilations == 3


def test_padded_blocks_and_long_runs_give_the_eager_logits() -> None:
    module, _ = pair(max_position_embeddings=600)
    model, plain = CompiledModel(module, "target"), compiled.CausalModel(module, "target")
    tokens = torch.randint(3, 60, (1, 330), generator=torch.Generator().manual_seed(1))
    mine, true = model.open(1, 400), plain.open(1, 400)
    with torch.inference_mode():
        at = 0
        for size in (300, 5, 1, 4, 5, 2, 3, 5):
            block = tokens[:, at : at + size]
            for index in (None, [size - 1]):
                got, wanted = (session.feed(block, [at], index) for session in (mine, true))
                torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
            kept = max(1, size - 1)  # the last token never happened
            for session in (mine, true):
                session.commit([at + kept])
            at += kept
    assert model.compiled_sizes == [5]
    assert mine.cache.capacity == slots_for(400) == 512


def test_runs_of_different_lengths_share_graphs() -> None:
    model = CompiledModel(pair()[0], "target")
    feed(model, 4, limit=30)
    feed(model, 4, limit=200)
    assert len(model._graphs) == 1
    assert [slots_for(limit) for limit in (1, 239, 240, 400, 496)] == [256, 256, 512, 512, 1024]


def test_turns_continue_compiled(greedy: Callable[..., list[int]]) -> None:
    models = pair()
    spec = compiled_pair(*models)
    eager = SpeculativeDecoder.from_models(*models, temperature=0)
    for decoders in ((spec, spec), (eager, spec), (spec, eager)):
        first = decoders[0].generate(torch.tensor(PROMPT), k=3, max_new_tokens=10, return_cache=True)
        prompt = [*PROMPT, *first.token_ids, 8, 9, 10]
        second = decoders[1].generate(torch.tensor(prompt), k=3, max_new_tokens=20, cache=first.cache)
        assert list(second.token_ids) == greedy(models[0], prompt, 20)
    assert sizes(spec) == ([5], [1, 2])


def test_one_shape_for_all_draft_lengths(greedy: Callable[..., list[int]]) -> None:
    """invariant=True: a single graph of the target serves every k."""
    models = pair()
    spec = compiled_pair(*models)
    wanted = greedy(models[0], PROMPT, 20)
    for k in (0, 2, 5):
        assert list(spec.generate(torch.tensor(PROMPT), k=k, max_new_tokens=20, invariant=True).token_ids) == wanted
    assert sizes(spec)[0] == [9]


def test_warm_up_compiles_what_calls_will_run() -> None:
    spec = compiled_pair(*pair())
    assert spec.warm_up(k=3, progress=False) == {"target": [1, 2, 3, 5], "draft": [1, 2]}
    made = spec._compilations()
    for k in (0, 1, 2, 3, 4):
        spec.generate(torch.tensor(PROMPT), k=k, max_new_tokens=40)
    assert sizes(spec) == ([1, 2, 3, 5], [1, 2]) and spec._compilations() == made == 6
    assert spec.warm_up(k=0, progress=False) == {"target": [1]}
    assert compiled_pair(*pair()).warm_up(k="auto", progress=False)["target"] == list(compiled.SIZES)
    with pytest.raises(ValueError, match=r"warm_up\(\) compiles forwards; build the decoder with compile=True"):
        SpeculativeDecoder.from_models(*pair()).warm_up()


def test_auto_is_told_which_rounds_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    cold, made = [], []
    observe = AutoLength.observe

    def spy(self: AutoLength, step: Step) -> None:
        cold.append(step.cold)
        made.append(spec._compilations())
        observe(self, step)

    monkeypatch.setattr(AutoLength, "observe", spy)
    spec = compiled_pair(*pair(num_hidden_layers=2))
    for _ in range(2):
        spec.generate(torch.tensor(PROMPT), k="auto", max_new_tokens=60)
    assert cold == [now > before for before, now in zip([0, *made], made, strict=False)]
    assert any(cold) and not cold[0], "the prefill is eager"


# ---- what is not compiled ----


def test_batches_run_eager_and_say_so(greedy: Callable[..., list[int]]) -> None:
    models = pair()
    spec = compiled_pair(*models)
    prompts = [PROMPT, [3], [4, 19, 44, 8]]
    with pytest.warns(RuntimeWarning, match=r"forwards over 3 rows run eager; use batch_size=1"):
        results = spec.generate([torch.tensor(each) for each in prompts], k=3, max_new_tokens=20)
    assert [list(each.token_ids) for each in results] == [greedy(models[0], each, 20) for each in prompts]
    results = spec.generate([torch.tensor(each) for each in prompts], k=3, max_new_tokens=20, batch_size=1)
    assert [list(each.token_ids) for each in results] == [greedy(models[0], each, 20) for each in prompts]
    assert sizes(spec)[0] == [5]


def test_a_failing_compiler_is_named_and_the_text_goes_on(
    monkeypatch: pytest.MonkeyPatch, greedy: Callable[..., list[int]]
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no C++ compiler here")

    monkeypatch.setattr(torch, "compile", broken)
    models = pair()
    spec = compiled_pair(*models)
    with pytest.warns(RuntimeWarning) as caught:
        result = spec.generate(torch.tensor(PROMPT), k=3, max_new_tokens=20)
    texts = sorted(str(each.message) for each in caught if each.category is RuntimeWarning)
    assert len(texts) == 2, "once for each model"
    assert (
        "the draft LlamaForCausalLM runs eager: torch.compile failed (RuntimeError: no C++ compiler here)" in texts[0]
    )
    assert "the target LlamaForCausalLM" in texts[1] and "install a C++ compiler" in texts[1]
    assert list(result.token_ids) == greedy(models[0], PROMPT, 20)
    assert sizes(spec) == ([], [])


def test_wrong_logits_are_found_and_refused(monkeypatch: pytest.MonkeyPatch, greedy: Callable[..., list[int]]) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda *given: function(*given) * 1.01)
    models = pair()
    spec = compiled_pair(*models)
    with pytest.warns(RuntimeWarning, match=r"compiled logits differ from eager ones by 1\.0%"):
        result = spec.generate(torch.tensor(PROMPT), k=3, max_new_tokens=20)
    assert list(result.token_ids) == greedy(models[0], PROMPT, 20)


def test_families_that_are_not_tested_run_eager(greedy: Callable[..., list[int]]) -> None:
    models = pair("gpt_neo", attention_types=[[["global", "local"], 1]], num_hidden_layers=2)
    with pytest.warns(RuntimeWarning, match=r"model_type='gpt_neo' is not among the families"):
        spec = compiled_pair(*models)
    result = spec.generate(torch.tensor(PROMPT), k=3, max_new_tokens=20)
    assert list(result.token_ids) == greedy(models[0], PROMPT, 20)
    assert sizes(spec) == ([], [])


def test_compile_is_off_by_default_and_a_switch() -> None:
    models = pair()
    assert type(SpeculativeDecoder.from_models(*models).target_model) is compiled.CausalModel
    with pytest.raises(TypeError, match=r"compile='yes' must be True or False"):
        SpeculativeDecoder.from_models(*models, compile="yes")


def test_relative_error() -> None:
    truth = torch.tensor([3.0, 4.0, -torch.inf])
    assert relative_error(truth.clone(), truth) == 0.0
    assert relative_error(torch.tensor([3.0, 4.5, -torch.inf]), truth) == pytest.approx(0.1)
    assert not relative_error(torch.tensor([3.0, torch.nan, 0.0]), truth) <= 0.1
