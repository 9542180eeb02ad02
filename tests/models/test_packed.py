"""`packed=True`: the same products from another layout, the model given untouched, refusals that say why."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from transformers.pytorch_utils import Conv1D

from decoder import SpeculativeDecoder
from decoder.models import packed
from decoder.models.packed import BlockedLinear, packed_copy
from decoder.models.sharing import own_bytes, tensors_of
from decoder.models.toy import toy_model

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 8},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "gpt_neox": {},
    "bloom": {},
    "gemma2": {"sliding_window": 8},
    "phi": {},
}
ROUNDING = {torch.float32: 2e-5, torch.bfloat16: 0.03, torch.float16: 0.004}
DTYPES = [dtype for dtype in ROUNDING if packed.why_not(dtype) is None]


def toy(family: str = "llama", seed: int = 5, **changes: Any) -> Any:
    model = toy_model(family, seed=seed, **{**FAMILIES[family], **changes})
    model.generation_config.eos_token_id = None
    return model


def seeded(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def blocked(model: nn.Module) -> list[BlockedLinear]:
    return [module for module in model.modules() if isinstance(module, BlockedLinear)]


def relative(got: torch.Tensor, truth: torch.Tensor) -> float:
    return float((got.double() - truth.double()).norm() / truth.double().norm())


# ---- one layer ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["linear", "linear without bias", "conv1d"])
def test_a_packed_layer_multiplies_by_its_matrix(kind: str, dtype: torch.dtype) -> None:
    """Against a product in float64, for inputs of every kind a model may hand over, none and views among them."""
    layer = Conv1D(50, 36) if kind == "conv1d" else nn.Linear(36, 50, bias=kind == "linear")
    with torch.no_grad():
        layer.weight.copy_(seeded(*layer.weight.shape))
        if layer.bias is not None:
            layer.bias.copy_(seeded(50))
    layer = layer.to(dtype)
    matrix = layer.weight.detach().double()
    bias = 0.0 if layer.bias is None else layer.bias.detach().double()
    whole = seeded(7, 3, 72).to(dtype)
    views = [whole[..., :36], whole[..., ::2], whole.transpose(0, 1)[..., 36:], whole[:0, :, :36], whole[:, :0, :36]]
    with torch.inference_mode():
        made = BlockedLinear(layer)
        for given in [*views, whole[0, 0, :36], whole[:1, :1, :36], seeded(300, 36).to(dtype)]:
            got = made(given)
            wanted = given.double() @ (matrix if kind == "conv1d" else matrix.T) + bias
            assert got.shape == wanted.shape and got.dtype == dtype and got.layout == torch.strided
            assert got.numel() == 0 or relative(got, wanted) < ROUNDING[dtype]
    assert made.weight is layer.weight and made.bias is layer.bias


def test_gradients_go_through_the_original_weights() -> None:
    layer, inputs = nn.Linear(8, 6), seeded(3, 8)
    made, twin = BlockedLinear(layer), copy.deepcopy(layer)
    made(inputs).square().sum().backward()
    twin(inputs).square().sum().backward()
    assert torch.equal(layer.weight.grad, twin.weight.grad) and torch.equal(layer.bias.grad, twin.bias.grad)
    layer.requires_grad_(False)
    one, other = (inputs.clone().requires_grad_() for _ in range(2))
    made(one).sum().backward()
    twin(other).sum().backward()
    assert torch.equal(one.grad, other.grad)


# ---- a model ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_dense_ones_within_rounding(family: str, dtype: torch.dtype) -> None:
    model = toy(family).to(dtype)
    twin = packed_copy(model)
    assert blocked(twin) and twin.dtype == dtype and twin.get_output_embeddings().weight.shape == (64, 32)
    assert isinstance(twin.get_output_embeddings(), BlockedLinear)
    ids = torch.randint(3, 60, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        exact = copy.deepcopy(model).double()(ids).logits
        errors = [relative(each(ids).logits, exact) for each in (model, twin)]
    assert errors[1] < max(3 * errors[0], ROUNDING[dtype])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_plain_linear_layer_is_packed_and_the_given_model_is_not_touched(family: str) -> None:
    model = toy(family)
    before = {name: type(module) for name, module in model.named_modules()}
    values = {name: value.clone() for name, value in model.state_dict().items()}
    held = [id(tensor) for tensor in tensors_of(model)]
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.inference_mode():
        logits = model(ids).logits
    linear = sum(kind in (nn.Linear, Conv1D) for kind in before.values())
    spec = SpeculativeDecoder.from_models(model, temperature=0.0, packed=True)
    spec.generate(ids[0], max_new_tokens=4)
    assert len(blocked(spec.target_model.model)) == linear > 0
    assert spec.target is model and {name: type(module) for name, module in model.named_modules()} == before
    assert [id(tensor) for tensor in tensors_of(model)] == held
    assert all(torch.equal(values[name], value) for name, value in model.state_dict().items())
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, logits)


def test_only_the_matrices_are_held_twice() -> None:
    model = toy("gpt2")
    twin = packed_copy(model)
    matrices = [module.weight for module in model.modules() if isinstance(module, (nn.Linear, Conv1D))]
    assert own_bytes(twin, model) == sum(each.numel() * each.element_size() for each in matrices)
    assert twin.get_output_embeddings().weight is model.get_input_embeddings().weight, "still tied"
    assert set(twin.state_dict()) == {  # no packed tensor is ever saved
        name.replace(".weight", ".original.weight").replace(".bias", ".original.bias")
        if any(part in name for part in ("c_attn", "c_proj", "c_fc", "lm_head"))
        else name
        for name in model.state_dict()
    }


def test_a_layer_with_several_owners_is_packed_once() -> None:
    model = toy()
    model.model.layers[1].mlp.up_proj = model.model.layers[0].mlp.up_proj
    twin = packed_copy(model)
    assert twin.model.layers[1].mlp.up_proj is twin.model.layers[0].mlp.up_proj
    assert len(blocked(twin)) == 2 * 7 + 1 - 1


class _Doubled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


class _Negated(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return -weight


def test_layers_that_are_more_than_linear_stay_as_they_are() -> None:
    """A subclass, a parametrised weight, a hook, a forward of somebody else's: each changes what the layer computes."""
    model = toy()
    layers = model.model.layers
    layers[0].mlp.up_proj.__class__ = _Doubled
    parametrize.register_parametrization(layers[0].mlp.down_proj, "weight", _Negated())
    layers[1].mlp.up_proj.register_forward_hook(lambda module, inputs, output: output + 1)
    layers[1].mlp.down_proj.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    plain_forward = layers[1].mlp.gate_proj.forward
    layers[1].mlp.gate_proj.forward = lambda inputs: 3 * plain_forward(inputs)
    twin = packed_copy(model)
    assert len(blocked(twin)) == 2 * 7 + 1 - 5
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.inference_mode():
        assert relative(twin(ids).logits, model(ids).logits) < 2e-5


def test_what_cannot_be_packed_is_refused_with_the_reason() -> None:
    for model, reason in (
        (toy().double(), "oneDNN packs float32, bfloat16 and float16, not float64"),
        (toy().to("meta"), "its weights are on 'meta', not on the CPU"),
    ):
        with pytest.raises(ValueError, match=rf"packed=True: the target Llama.* cannot be packed: {reason}; leave"):
            packed_copy(model)
    with pytest.raises(ValueError, match=r"packed=True: the draft Llama"):
        SpeculativeDecoder.from_models(toy(), toy().double(), packed=True)
    hooked = toy()
    for module in hooked.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda module, inputs, output: None)
    with pytest.raises(ValueError, match=r"it has no linear layers without hooks, adapters or quantised weights"):
        packed_copy(hooked)


def test_a_processor_without_the_kernels_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: Any) -> Any:
        raise RuntimeError("bf16 path needs the cpu support avx512bw")

    with monkeypatch.context() as patch:
        patch.setattr(packed, "_product", lacking)
        with pytest.raises(ValueError, match=r"does not pack bfloat16 on this processor \(bf16 path needs.*float32"):
            packed_copy(toy().bfloat16())
    with monkeypatch.context() as patch:
        patch.setattr(packed, "_product", lambda x, weight, bias: 2 * x)
        assert "wrong on this processor" in str(packed.why_not(torch.float32))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(ValueError, match="this build of torch has no oneDNN"):
        packed_copy(toy())


@pytest.mark.parametrize("shape", [(32,), (1, 32), (1, 1, 32)])
def test_a_single_float32_token_goes_through_the_weight_as_stored(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The product of one token is the model's own; two tokens, and one in bfloat16, go through the blocked weight."""

    def refused(*_: object) -> torch.Tensor:
        raise AssertionError("blocked")

    layer = nn.Linear(32, 48).requires_grad_(False)
    made, short = BlockedLinear(layer), BlockedLinear(copy.deepcopy(layer).bfloat16())
    monkeypatch.setattr(packed, "_product", refused)
    x = torch.randn(shape)
    assert torch.equal(made(x), layer(x))
    with pytest.raises(AssertionError, match="blocked"):
        made(torch.randn(2, 32))
    with pytest.raises(AssertionError, match="blocked"):
        short(x.bfloat16())
