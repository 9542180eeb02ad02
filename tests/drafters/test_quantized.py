"""The target with narrow weights as its own draft: right within rounding, shares what it can, exact in the loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from decoder import SpeculativeDecoder
from decoder.drafters.quantized import QuantizedDrafter
from decoder.models import quantize
from decoder.models.quantize import Int4Linear, Int8Linear, PackedLinear, pack, quantize_int4, quantize_int8
from decoder.models.sharing import tensors_of
from decoder.models.toy import toy_model
from decoder.types import SamplingParams
from decoder.warpers import warped_probs

PROMPTS = [[1, 5, 9], [4, 4, 8, 9, 10, 11, 3], [7]]


def seeded(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def dequantised(weight: torch.Tensor, bits: int, group: int = 32) -> torch.Tensor:
    """The matrix that the packed weights stand for, in float32."""
    if bits == 8:
        q, scale = quantize_int8(weight)
        return q.float() * scale.float()[:, None]
    q, pairs = quantize_int4(weight, group)
    rows, inputs = weight.shape
    grouped = q.view(rows, inputs // group, group).float()
    scale, offset = pairs.float().transpose(0, 1).unbind(-1)  # [N, G] each
    return ((grouped - 8) * scale[..., None] + offset[..., None]).view(rows, inputs)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tokens", [1, 2, 16])
def test_the_kernel_multiplies_by_the_dequantised_matrix(bits, dtype, tokens) -> None:
    layer = nn.Linear(64, 48).to(dtype)
    layer.weight.data, layer.bias.data = seeded(48, 64).to(dtype), seeded(48).to(dtype)
    packed = pack(layer, bits, 32)
    inputs = seeded(1, tokens, 64).to(dtype)
    wanted = inputs.bfloat16().float() @ dequantised(layer.weight.data, bits).T + layer.bias.float()
    got = packed(inputs)
    assert got.dtype == dtype and got.shape == (1, tokens, 48)
    assert float((got.float() - wanted).norm() / wanted.norm()) < 0.01  # bfloat16 output


def test_rounding_error_is_what_the_grid_allows() -> None:
    weight = seeded(32, 128)
    step8 = weight.abs().amax(1, keepdim=True) / 127
    # Half a step, and the bfloat16 rounding of the scale.
    assert bool(((dequantised(weight, 8) - weight).abs() <= 0.75 * step8).all())
    eight = float((dequantised(weight, 8) - weight).norm() / weight.norm())
    four = float((dequantised(weight, 4) - weight).norm() / weight.norm())
    assert 0.003 < eight < 0.01
    groups = weight.view(32, 4, 32)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    plain = (((groups - low) / (high - low) * 15).round() / 15 * (high - low) + low).view(32, 128)
    assert 0.03 < four <= 1.02 * float((plain - weight).norm() / weight.norm())  # no worse than the full range


def test_conv1d_is_packed_transposed() -> None:
    layer = Conv1D(48, 64)
    inputs = seeded(2, 64)
    assert float((pack(layer, 8, 32)(inputs) - layer(inputs)).norm() / layer(inputs).norm()) < 0.02


def test_shapes_without_a_kernel() -> None:
    assert isinstance(pack(nn.Linear(64, 48), 4, 32), Int4Linear)
    assert isinstance(pack(nn.Linear(64, 30), 4, 32), Int8Linear)  # int4 wants N a multiple of 16
    assert isinstance(pack(nn.Linear(48, 64), 4, 32), Int8Linear)  # and K of the group
    odd = nn.Linear(20, 64)
    assert pack(odd, 8, 32) is odd  # int8 would read past the end of each row


def test_long_inputs_use_the_original_weights() -> None:
    layer = nn.Linear(64, 48)
    many = seeded(quantize.MAX_PACKED_TOKENS + 1, 64)
    assert torch.equal(pack(layer, 4, 32)(many), layer(many))
    assert not torch.equal(pack(layer, 4, 32)(many[:2]), layer(many[:2]))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_everything_else_is_shared_and_memory_is_told(family) -> None:
    model = toy_model(family)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drafter = QuantizedDrafter(8)
    spec = SpeculativeDecoder.from_models(model, drafter=drafter)
    twin = drafter.model.model
    ours = {id(tensor) for tensor in tensors_of(model)}
    new = [tensor for tensor in tensors_of(twin) if id(tensor) not in ours]
    packed = [module for module in twin.modules() if isinstance(module, PackedLinear)]
    assert len(new) == 2 * len(packed) > 0  # weights and scales only: no embedding, norm, bias or dense matrix
    assert drafter.nbytes == sum(tensor.numel() * tensor.element_size() for tensor in new)
    assert drafter.nbytes < 0.45 * sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(model))
    assert "MiB beside the target" in repr(spec.drafter)
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_head_bits() -> None:
    model = toy_model("llama")
    kinds = {}
    for bits in (4, 8, 16):
        drafter = QuantizedDrafter(8, head_bits=bits).bind(*_bound(model))
        kinds[bits] = type(drafter.model.model.get_output_embeddings())
    assert kinds == {4: Int4Linear, 8: Int8Linear, 16: nn.Linear}


def _bound(model):
    return SpeculativeDecoder.from_models(model).target_model, None


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
@pytest.mark.parametrize("bits", [8, 4])
def test_greedy_equals_the_library(family, bits, greedy, always_packed) -> None:
    model = toy_model(family, seed=0, **{"n_layer" if family == "gpt2" else "num_hidden_layers": 4})
    spec = SpeculativeDecoder.from_models(model, temperature=0.0, drafter=QuantizedDrafter(bits))
    results = spec.generate(PROMPTS, max_new_tokens=20, eos_token_id=None)
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert list(result.token_ids) == greedy(model, prompt, 20, eos_token_id=None)
    assert sum(result.num_accepted_tokens for result in results) > 0


@pytest.fixture
def always_packed(monkeypatch):
    """Large batches would go through the original weights, and the draft would be the target."""
    monkeypatch.setattr(quantize, "MAX_PACKED_TOKENS", 1 << 30)


def test_eight_bits_agree_more_than_four(always_packed) -> None:
    model = toy_model("llama", seed=0, num_hidden_layers=4)
    rates = []
    for bits in (8, 4):
        drafter = QuantizedDrafter(bits, head_bits=bits)
        spec = SpeculativeDecoder.from_models(model, temperature=2.0, top_p=1.0, drafter=drafter, seed=3)
        results = spec.generate(PROMPTS * 4, max_new_tokens=30, eos_token_id=None)
        rates.append(sum(r.num_accepted_tokens for r in results) / sum(r.num_draft_tokens for r in results))
    assert rates[0] > rates[1] + 0.1


@pytest.mark.parametrize("verifier", ["token", "block"])
def test_sampled_second_token_follows_the_target(verifier, always_packed) -> None:
    """Chi-square over the second and third new token of 3,000 rows, against the target's own law."""
    model = toy_model("llama", seed=2, vocab_size=5, eos_token_id=None, bos_token_id=None)
    spec = SpeculativeDecoder.from_models(
        model, temperature=2.0, top_p=1.0, drafter=QuantizedDrafter(4), verifier=verifier, seed=7
    )
    rows = 3000
    results = spec.generate([[1, 2, 3]] * rows, max_new_tokens=3, k=2, eos_token_id=None, batch_size=rows)
    observed, expected = torch.zeros(25), torch.zeros(25)
    for result in results:
        observed[result.token_ids[1] * 5 + result.token_ids[2]] += 1
    params = SamplingParams(temperature=2.0, top_p=1.0)
    with torch.inference_mode():
        for first in range(5):
            start = warped_probs(model(torch.tensor([[1, 2, 3]])).logits[0, -1].float(), params)[first]
            second = warped_probs(model(torch.tensor([[1, 2, 3, first]])).logits[0, -1].float(), params)
            for token in range(5):
                third = warped_probs(model(torch.tensor([[1, 2, 3, first, token]])).logits[0, -1].float(), params)
                expected[token * 5 : token * 5 + 5] += rows * start * second[token] * third
    statistic = float(((observed - expected) ** 2 / expected.clamp(min=1e-9)).sum())
    accepted, drafted = sum(r.num_accepted_tokens for r in results), sum(r.num_draft_tokens for r in results)
    assert 0.1 * drafted < accepted < 0.98 * drafted  # both branches of the verifier are taken
    assert statistic < 55.0, statistic  # the 0.9997 quantile of chi-square with 24 degrees of freedom is 54.3


@pytest.mark.parametrize("options", [{"bits": 3}, {"bits": 8, "head_bits": 5}, {"bits": 4, "group_size": 48}])
def test_options_out_of_range_are_refused(options) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        SpeculativeDecoder.from_models(toy_model("llama"), drafter=QuantizedDrafter(**options))


def test_a_target_elsewhere_is_refused() -> None:
    with pytest.raises(ValueError, match="on the CPU"):
        quantize.quantized_copy(toy_model("llama").to("meta"))


def test_the_copy_is_made_once() -> None:
    model = toy_model("llama")
    spec = SpeculativeDecoder.from_models(model, temperature=0.0, drafter="quantized")
    again = spec.drafter_for("quantized")
    assert again.model is spec.drafter.model
