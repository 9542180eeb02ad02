"""On a CUDA device: the same text as the library, true device times, models on different devices, any draft length."""

from __future__ import annotations

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.models.compiled import CompiledModel
from decoder.models.toy import noisy_copy, toy_model

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PROMPTS = [[3, 4, 5, 6, 7], [9, 8, 7, 6, 5, 4, 3], [11, 12]]
NEW = 32


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def pair(request: pytest.FixtureRequest) -> tuple[torch.nn.Module, torch.nn.Module]:
    target = toy_model(request.param, seed=1)
    return target.cuda(), noisy_copy(target, 0.3).cuda()


def library(target: torch.nn.Module, prompt: list[int]) -> tuple[int, ...]:
    ids = torch.tensor([prompt], device="cuda")
    out = target.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, eos_token_id=None, pad_token_id=0
    )
    return tuple(out[0, len(prompt) :].tolist())


@pytest.mark.parametrize("k", [0, 1, 4, "auto"])
def test_greedy_text_is_the_library_s(pair: tuple[torch.nn.Module, torch.nn.Module], k: int | str) -> None:
    spec = SpeculativeDecoder.from_models(*pair, temperature=0.0)
    for prompt in PROMPTS:
        result = spec.generate(prompt, k=k, max_new_tokens=NEW, eos_token_id=None)
        assert result.token_ids == library(pair[0], prompt)


@pytest.mark.filterwarnings("error::RuntimeWarning")  # nothing falls back
def test_compiled_forwards_replayed_from_cuda_graphs(pair: tuple[torch.nn.Module, torch.nn.Module]) -> None:
    spec = SpeculativeDecoder.from_models(*pair, temperature=0.0, compile=True)
    target, draft = spec.target_model, spec.draft_model
    assert isinstance(target, CompiledModel) and isinstance(draft, CompiledModel)
    for prompt in (*PROMPTS, *PROMPTS):  # each run has buffers, and so graphs, of its own
        result = spec.generate(prompt, k=3, max_new_tokens=NEW, eos_token_id=None, return_cache=True)
        assert result.token_ids == library(pair[0], prompt)
        for model, cache in ((target, result.cache.target), (draft, result.cache.draft)):
            assert model._runs[cache].captured, "replayed, not launched one by one"
    assert target.compiled_sizes == [5] and draft.compiled_sizes == [1, 2]
    baseline = spec.generate_baseline(PROMPTS[0], max_new_tokens=NEW, eos_token_id=None)
    assert baseline.token_ids == library(pair[0], PROMPTS[0])


def test_a_ragged_batch_is_its_rows(pair: tuple[torch.nn.Module, torch.nn.Module]) -> None:
    spec = SpeculativeDecoder.from_models(*pair, temperature=0.0)
    results = spec.generate(PROMPTS, k=3, max_new_tokens=NEW, eos_token_id=None)
    assert [result.token_ids for result in results] == [library(pair[0], prompt) for prompt in PROMPTS]


def test_sampled_text_repeats_with_its_seed(pair: tuple[torch.nn.Module, torch.nn.Module]) -> None:
    spec = SpeculativeDecoder.from_models(*pair, temperature=0.9, top_p=0.9)
    texts = {spec.generate(PROMPTS[0], k=3, max_new_tokens=NEW, seed=seed).token_ids for seed in (5, 5, 5)}
    assert len(texts) == 1
    assert spec.generate(PROMPTS[0], k=3, max_new_tokens=NEW, seed=6).token_ids not in texts


def test_device_times_are_part_of_the_wall(pair: tuple[torch.nn.Module, torch.nn.Module]) -> None:
    spec = SpeculativeDecoder.from_models(*pair, temperature=0.0)
    result = spec.generate(PROMPTS[0], k=4, max_new_tokens=NEW, eos_token_id=None)
    assert min(result.prefill_s, result.draft_s, result.target_s) > 0
    assert result.prefill_s + result.draft_s + result.target_s < result.wall_s * 1.05
    total = result.prefill_s + result.draft_s + result.target_s + result.overhead_s
    assert total == pytest.approx(result.wall_s)


def test_the_draft_may_sit_on_the_processor() -> None:
    target = toy_model("llama", seed=1)
    draft = noisy_copy(target, 0.3)
    spec = SpeculativeDecoder.from_models(target.cuda(), draft, temperature=0.0)
    result = spec.generate(PROMPTS[0], k=3, max_new_tokens=NEW, eos_token_id=None)
    assert result.token_ids == library(target, PROMPTS[0])
    assert result.num_draft_tokens > 0


def test_bfloat16_sampling_with_a_wide_vocabulary() -> None:
    target = toy_model("llama", seed=2, vocab_size=4096).to("cuda", torch.bfloat16)
    draft = noisy_copy(target, 0.1)
    spec = SpeculativeDecoder.from_models(target, draft, temperature=0.8, top_p=0.95)
    result = spec.generate(PROMPTS[1], k=4, max_new_tokens=NEW, eos_token_id=None, seed=0)
    assert len(result.token_ids) == NEW
    assert result.num_accepted_tokens > 0


def test_profile_and_advice(pair: tuple[torch.nn.Module, torch.nn.Module]) -> None:
    spec = SpeculativeDecoder.from_models(*pair, temperature=0.0)
    profile = spec.profile(PROMPTS[0], k=3, repeats=2, widths=(1, 2, 4), max_new_tokens=16, eos_token_id=None)
    assert profile.seconds("target forwards") > 0 and profile.draft is not None
    assert sum(phase.seconds for phase in profile.phases) == pytest.approx(profile.wall_s)
    advice = spec.advise(PROMPTS, repeats=1, max_new_tokens=16, eos_token_id=None)
    assert advice.measured_speedup > 0
