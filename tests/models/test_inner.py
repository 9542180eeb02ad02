"""Wrapped and quantised models: PEFT's, compiled ones, torch.ao's and torchao's run exactly, or an error names the
remedy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.models.toy import noisy_copy, toy_model

PROMPT = [7, 33, 12, 50, 9]
IDS = torch.tensor([PROMPT])


def base(**changes: Any) -> Any:
    return toy_model("llama", seed=5, hidden_size=64, intermediate_size=128, **changes)


def check_exact(greedy, model: Any, inner: Any, **options: Any) -> None:
    """Token for token `generate` of the same model, alone and in a ragged batch, with drafts kept and rejected."""
    spec = SpeculativeDecoder.from_models(model, noisy_copy(base(), 0.02), temperature=0, **options)
    assert spec.target is inner
    wanted = greedy(inner, PROMPT, 20, eos_token_id=None)
    result = spec.generate(IDS, k=3, max_new_tokens=20, eos_token_id=None)
    assert list(result.token_ids) == wanted and result.num_draft_tokens > 0
    texts = spec.generate([IDS[0], IDS[0, :2]], k=3, max_new_tokens=20, eos_token_id=None)
    assert [list(text.token_ids) for text in texts] == [
        wanted,
        greedy(inner, PROMPT[:2], 20, eos_token_id=None),
    ]


# ---- adapters ----


def lora(model: Any, **changes: Any) -> Any:
    peft = pytest.importorskip("peft")
    options = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False, "task_type": "CAUSAL_LM"}
    torch.manual_seed(3)
    return peft.get_peft_model(model, peft.LoraConfig(**{**options, **changes})).eval()


@pytest.mark.parametrize("options", [{}, {"packed": True}], ids=["plain", "packed"])
@pytest.mark.parametrize("saved", [None, ["lm_head", "embed_tokens"]])
def test_an_adapter_of_peft_is_part_of_the_target(greedy, saved, options) -> None:
    without = greedy(base(), PROMPT, 20, eos_token_id=None)
    model = lora(base(), modules_to_save=saved)
    check_exact(greedy, model, model.get_base_model(), **options)
    spec = SpeculativeDecoder.from_models(model, temperature=0, **options)
    assert list(spec.generate(IDS, max_new_tokens=20, eos_token_id=None).token_ids) != without
    ours = model.generate(input_ids=IDS, custom_generate=spec, max_new_tokens=12, do_sample=False)
    assert torch.equal(ours, model.generate(input_ids=IDS, max_new_tokens=12, do_sample=False))


@pytest.mark.parametrize("drafter", ["quantized", "layerskip"])
def test_drafts_are_made_out_of_a_target_with_adapter(greedy, drafter: str) -> None:
    model = lora(base())
    spec = SpeculativeDecoder.from_models(model, temperature=0, drafter=drafter)
    result = spec.generate(IDS, k=3, max_new_tokens=20, eos_token_id=None)
    assert list(result.token_ids) == greedy(model.get_base_model(), PROMPT, 20, eos_token_id=None)


def test_adapters_that_are_switched_or_added_are_followed_unless_packed(greedy) -> None:
    plain = base()
    bare = SpeculativeDecoder.from_models(plain, temperature=0)
    bare_packed = SpeculativeDecoder.from_models(plain, temperature=0, packed=True)
    without = greedy(plain, PROMPT, 20)
    model = lora(plain)  # put into the model that both were built from
    adapted = greedy(plain, PROMPT, 20)
    assert adapted != without
    spec = SpeculativeDecoder.from_models(model, temperature=0)
    packed = SpeculativeDecoder.from_models(model, temperature=0, packed=True)
    for each in (bare, spec, packed):
        assert list(each.generate(IDS, max_new_tokens=20).token_ids) == adapted
    with pytest.raises(ValueError, match=r"packed=True: module 'model.layers.0.self_attn.q_proj' of the target was"):
        bare_packed.generate(IDS)
    with model.disable_adapter():
        for each in (bare, spec):
            assert list(each.generate(IDS, max_new_tokens=20).token_ids) == without
        with pytest.raises(ValueError, match=r"packed=True: module .*q_proj' of the target changed its settings"):
            packed.generate(IDS)
    assert list(packed.generate(IDS, max_new_tokens=20).token_ids) == adapted


def test_an_adapter_is_a_draft_too(greedy) -> None:
    spec = SpeculativeDecoder.from_models(base(), lora(base()), temperature=0)
    result = spec.generate(IDS, k=3, max_new_tokens=20, eos_token_id=None)
    assert list(result.token_ids) == greedy(base(), PROMPT, 20, eos_token_id=None)
    assert result.num_draft_tokens > 0


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("kind", ["PromptTuning", "PrefixTuning", "aLoRA"])
def test_what_acts_outside_the_layers_is_refused(kind: str, role: str) -> None:
    peft = pytest.importorskip("peft")
    if kind == "aLoRA":
        model = lora(base(), alora_invocation_tokens=[3, 4])
    else:
        config = getattr(peft, f"{kind}Config")(task_type="CAUSAL_LM", num_virtual_tokens=4)
        model = peft.get_peft_model(base(), config).eval()
    models = (model, base()) if role == "target" else (base(), model)
    with pytest.raises(ValueError, match=rf"the {role} Peft\w+ \(\w+\) does more than the layers.*merge_and_unload"):
        SpeculativeDecoder.from_models(*models)


# ---- compiled ----


def test_a_compiled_module_is_opened_with_a_warning(greedy) -> None:
    inner = base()
    model = torch.compile(inner, backend="eager")
    with pytest.warns(UserWarning, match=r"the target was compiled by torch.compile\(model\).*compile=True"):
        spec = SpeculativeDecoder.from_models(model, temperature=0)
    assert spec.target is inner
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_exact(greedy, model, inner)
        adapted = lora(base())
        check_exact(greedy, torch.compile(adapted, backend="eager"), adapted.get_base_model())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SpeculativeDecoder.from_models(model, compile=True)


def test_forwards_compiled_in_place_run_as_they_are(greedy) -> None:
    model = base()
    wanted = greedy(model, PROMPT, 12, eos_token_id=None)
    model.compile(backend="eager", dynamic=True)
    spec = SpeculativeDecoder.from_models(model, noisy_copy(base(), 0.02), temperature=0)
    assert list(spec.generate(IDS, k=3, max_new_tokens=12, eos_token_id=None).token_ids) == wanted


# ---- quantised ----


def dynamic_int8(model: Any) -> Any:
    """One scale for the inputs of all tokens of a forward."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is on its way out
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def torchao(name: str) -> Callable[[Any], Any]:
    ao = pytest.importorskip("torchao.quantization")
    granularity = pytest.importorskip("torchao.quantization.granularity")
    config = {
        "int8": lambda: ao.Int8WeightOnlyConfig(),
        "int4": lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=granularity.PerGroup(32)),
    }[name]()

    def quantised(model: Any) -> Any:
        ao.quantize_(model, config)
        return model

    return quantised


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_weights_quantised_by_torchao_run_exactly(greedy, name: str) -> None:
    model = torchao(name)(base())
    check_exact(greedy, model, model)
    skipping = SpeculativeDecoder.from_models(model, temperature=0, drafter="layerskip")
    assert list(skipping.generate(IDS, max_new_tokens=16).token_ids) == greedy(model, PROMPT, 16)
    with pytest.raises(ValueError, match=r"cannot be packed: it has no linear layers without .*quantised weights"):
        SpeculativeDecoder.from_models(model, packed=True)
    with pytest.raises(ValueError, match="has no linear layer that torch's packed kernels take; use drafter='ngram'"):
        SpeculativeDecoder.from_models(model, drafter="quantized")


def test_a_target_whose_logits_depend_on_later_tokens_is_refused() -> None:
    """Dynamic int8 scales all tokens of a forward together: what is drafted would change what is said before it."""
    model = dynamic_int8(base())
    with pytest.raises(ValueError, match=r"target Llama.*logits change by \d+% with the tokens after it.*weights only"):
        SpeculativeDecoder.from_models(model)
    with pytest.raises(ValueError, match="it has no linear layers without hooks, adapters or quantised weights"):
        SpeculativeDecoder.from_models(model, packed=True)


@pytest.mark.parametrize("quantise", [dynamic_int8, "int8", "int4"])
def test_any_quantised_model_may_draft(greedy, quantise) -> None:
    draft = (torchao(quantise) if isinstance(quantise, str) else quantise)(base())
    spec = SpeculativeDecoder.from_models(base(), draft, temperature=0)
    result = spec.generate(IDS, k=3, max_new_tokens=24, eos_token_id=None)
    assert list(result.token_ids) == greedy(base(), PROMPT, 24, eos_token_id=None)
    assert result.num_accepted_tokens > 0


def test_a_reduced_vocabulary_needs_the_rows_of_the_head() -> None:
    from decoder.drafters.reduced import cut_head
    from decoder.models.hf import CausalModel

    with pytest.raises(ValueError, match="rows of the draft's head; this one is quantised: use it whole"):
        cut_head(CausalModel(dynamic_int8(base()), "draft"), range(32))
