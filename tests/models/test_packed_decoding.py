"""`packed=True` in decoders: the same texts and laws, with every drafter, in turns, compiled; and no stale weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.models import compiled, packed
from decoder.models.fixed import FixedWidthSession
from decoder.models.hf import CausalModel
from decoder.models.packed import BlockedLinear, check_unchanged, packed_copy
from decoder.models.quantize import PackedLinear, quantized_copy
from decoder.models.sharing import own_bytes, tensors_of
from decoder.models.toy import noisy_copy, toy_model
from decoder.types import SamplingParams
from decoder.warpers import warped_probs

PROMPTS = [[1, 5, 9], [4, 4, 8, 9, 10, 11, 3], [7]]


def toy(family: str = "llama", seed: int = 5, **changes: Any) -> Any:
    model = toy_model(family, seed=seed, **changes)
    model.generation_config.eos_token_id = None
    return model


def blocked(model: Any) -> list[BlockedLinear]:
    return [module for module in model.modules() if isinstance(module, BlockedLinear)]


def test_packed_is_off_by_default_and_a_switch() -> None:
    model = toy()
    assert SpeculativeDecoder.from_models(model).target_model.model is model
    for value in ("yes", 1, None):
        with pytest.raises(TypeError, match=rf"packed={value!r} must be True or False"):
            SpeculativeDecoder.from_models(model, packed=value)
    spec = SpeculativeDecoder("tiny", packed=True, temperature=0)
    plain = SpeculativeDecoder("tiny", temperature=0)
    assert blocked(spec.target_model.model) and blocked(spec.draft_model.model) and not blocked(spec.target)
    prompt = "The old man went to the"
    wanted = plain.generate_baseline(prompt, max_new_tokens=24).token_ids
    assert spec.generate(prompt, max_new_tokens=24).token_ids == wanted
    assert spec.generate_baseline(prompt, max_new_tokens=24).token_ids == wanted


@pytest.mark.parametrize("drafter", ["model", "quantized", "layerskip", "reduced", "ngram"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_greedy_texts_are_generate_s(family: str, drafter: str, greedy: Any) -> None:
    """Batches and single rows, with every drafter that is made out of packed models."""
    model = toy(family, tie_word_embeddings=False)
    spec = SpeculativeDecoder.from_models(model, noisy_copy(model, 0.1), temperature=0.0, drafter=drafter, packed=True)
    wanted = [greedy(model, prompt, 16, eos_token_id=None) for prompt in PROMPTS]
    for size in (1, 16):
        found = spec.generate(PROMPTS, k=3, max_new_tokens=16, batch_size=size)
        assert [list(each.token_ids) for each in found] == wanted
    drafted, accepted = (sum(getattr(r, f"num_{n}_tokens") for r in found) for n in ("draft", "accepted"))
    assert accepted < drafted, "rollbacks must be seen"
    baseline = spec.generate_baseline(PROMPTS, max_new_tokens=16)
    assert [list(each.token_ids) for each in baseline] == wanted


def test_derived_drafts_share_the_packed_tensors_and_round_the_dense_ones() -> None:
    model = toy()
    spec = SpeculativeDecoder.from_models(model, noisy_copy(model, 0.1), packed=True)
    ours = {id(tensor) for tensor in tensors_of(spec.target_model.model)}
    narrow, plain = spec.drafter_for("quantized"), quantized_copy(model, 4)
    for mine in narrow.model.model.modules():
        if isinstance(mine, PackedLinear):
            assert isinstance(mine.original, BlockedLinear) and id(mine.original.blocked) in ours
    scales = [[m.scale for m in each.modules() if isinstance(m, PackedLinear)] for each in (narrow.model.model, plain)]
    assert scales[0] and all(torch.equal(*pair) for pair in zip(*scales, strict=True))
    assert narrow.nbytes == own_bytes(plain, model)
    skipping = spec.drafter_for("layerskip").model.model
    assert blocked(skipping) and all(id(module.blocked) in ours for module in blocked(skipping))
    assert own_bytes(skipping, spec.target_model.model) == 0
    head = spec.drafter_for("reduced").model.inner.model.get_output_embeddings()
    assert isinstance(head, BlockedLinear) and head.outputs == 16


def test_a_narrow_draft_stays_narrow_beside_a_packed_target(greedy: Any) -> None:
    model = toy()
    narrow = quantized_copy(model, 8)
    spec = SpeculativeDecoder.from_models(model, narrow, temperature=0.0, packed=True)
    assert spec.draft_model.model is narrow and blocked(spec.target_model.model) and not blocked(narrow)
    result = spec.generate(PROMPTS[1], max_new_tokens=20)
    assert list(result.token_ids) == greedy(model, PROMPTS[1], 20, eos_token_id=None)
    again = SpeculativeDecoder.from_models(spec.target_model.model, packed=True)
    assert again.target_model.model is spec.target_model.model, "packed already"


def test_a_draft_of_another_tokenizer_is_packed_too(target: Any, draft: Any, tokenizer: Any) -> None:
    spec = SpeculativeDecoder.from_models(
        target,
        draft,
        tokenizer=tokenizer,
        draft_tokenizer=tokenizer,
        drafter="crosstokenizer",
        packed=True,
        temperature=0.0,
    )
    assert blocked(spec.drafter.model.model)
    wanted = spec.generate_baseline("once upon a", max_new_tokens=20).token_ids
    assert spec.generate("once upon a", max_new_tokens=20).token_ids == wanted


def test_weights_that_change_are_noticed() -> None:
    model = toy("gpt2", tie_word_embeddings=False)
    spec = SpeculativeDecoder.from_models(model, temperature=0.0, packed=True)
    spec.generate(PROMPTS[0], max_new_tokens=4)
    with torch.no_grad():
        model.transformer.wte.weight.mul_(1.5)  # not packed: shared, so it follows
    check_unchanged(spec.target_model.model)
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight.mul_(1.5)
    for call in (spec.generate, spec.generate_baseline):
        with pytest.raises(ValueError, match=r"'transformer.h.1.mlp.c_fc' have changed since they were packed; build"):
            call(PROMPTS[0], max_new_tokens=4)


def test_turns_go_on_in_the_packed_cache(greedy: Any) -> None:
    model = toy()
    spec = SpeculativeDecoder.from_models(model, noisy_copy(model, 0.1), temperature=0.0, packed=True)
    first = spec.generate(PROMPTS[1], k=3, max_new_tokens=10, return_cache=True)
    prompt = [*PROMPTS[1], *first.token_ids, 8, 9, 10]
    second = spec.generate(prompt, k=3, max_new_tokens=20, cache=first.cache)
    assert list(second.token_ids) == greedy(model, prompt, 20, eos_token_id=None)
    hooked = model.generate(
        torch.tensor([PROMPTS[1]]), custom_generate=spec, max_new_tokens=10, do_sample=False, eos_token_id=None
    )
    assert hooked[0].tolist() == [*PROMPTS[1], *first.token_ids]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_one_shape_gives_the_same_bits_for_every_block(family: str, dtype: torch.dtype) -> None:
    """invariant=True: the rows of a packed product do not depend on their place among nine."""
    if packed.why_not(dtype) is not None:
        pytest.skip(str(packed.why_not(dtype)))
    wide = {"n_embd": 128} if family == "gpt2" else {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
    model = packed_copy(toy(family, tie_word_embeddings=False, **wide).to(dtype))
    tokens = torch.randint(3, 60, (51,), generator=torch.Generator().manual_seed(2))
    found = []
    for width in (1, 2, 5, 9):
        session = FixedWidthSession.open(CausalModel(model, "target"), 1, 60, None, 9)
        with torch.inference_mode():
            session.feed(tokens[None, :6], [0])
            session.commit([6])
            rows = []
            for start in range(6, 51, width):
                block = tokens[None, start : start + width]
                rows.append(session.feed(block, [start])[0])
                session.commit([start + block.shape[1]])
        found.append(torch.cat(rows))
    assert all(torch.equal(found[0], each) for each in found[1:])


@pytest.mark.parametrize("verifier", ["token", "block"])
def test_sampled_tokens_follow_the_packed_target(verifier: str) -> None:
    """Chi-square of the first two new tokens of 3,000 rows, the second one drafted, against the dense target's law."""
    model = toy_model("llama", seed=2, vocab_size=5, eos_token_id=None, bos_token_id=None)
    spec = SpeculativeDecoder.from_models(
        model, noisy_copy(model, 0.3), temperature=2.0, top_p=1.0, verifier=verifier, seed=7, packed=True
    )
    rows, params = 3000, SamplingParams(temperature=2.0, top_p=1.0)
    results = spec.generate([[1, 2, 3]] * rows, max_new_tokens=3, k=1, batch_size=rows)
    observed = torch.zeros(5, 5)
    for result in results:
        observed[result.token_ids[0], result.token_ids[1]] += 1
    with torch.inference_mode():
        first = warped_probs(model(torch.tensor([[1, 2, 3]])).logits[0, -1].float(), params)
        after = model(torch.tensor([[1, 2, 3, token] for token in range(5)])).logits[:, -1].float()
        expected = rows * first[:, None] * torch.stack([warped_probs(each, params) for each in after])
    statistic = float(((observed - expected) ** 2 / expected.clamp(min=1e-9)).sum())
    accepted, drafted = sum(r.num_accepted_tokens for r in results), sum(r.num_draft_tokens for r in results)
    assert 0.1 * drafted < accepted < 0.98 * drafted
    assert statistic < 55.0, statistic  # the 0.9997 quantile of chi-square with 24 degrees of freedom is 54.3


# ---- compiled ----


def compiled_run(model: Any, greedy: Any) -> None:
    spec = SpeculativeDecoder.from_models(model, noisy_copy(model, 0.05), temperature=0.0, packed=True, compile=True)
    wanted = greedy(model, PROMPTS[1], 30, eos_token_id=None)
    try:
        assert list(spec.generate(PROMPTS[1], k=3, max_new_tokens=30).token_ids) == wanted
        assert spec.target_model.compiled_sizes == [5] and spec.draft_model.compiled_sizes == [1, 2]
    finally:
        torch.compiler.reset()


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_packed_models_are_traced(monkeypatch: pytest.MonkeyPatch, greedy: Any) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    called: list[int] = []
    product = packed._product
    monkeypatch.setattr(packed, "_product", lambda *given: called.append(1) or product(*given))
    compiled_run(toy(num_hidden_layers=1), greedy)
    assert called, "the graphs go through the packed weights"


@pytest.mark.slow
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_packed_models_are_really_compiled(family: str, greedy: Any) -> None:
    layers = {"n_layer": 1} if family == "gpt2" else {"num_hidden_layers": 1}
    compiled_run(toy(family, tie_word_embeddings=False, **layers), greedy)
