"""A model that changes after the decoder was built is followed, or refused by name at the next call."""

from __future__ import annotations

import warnings

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.models.changes import Origin
from decoder.models.toy import noisy_copy, toy_model

PROMPT = [7, 33, 12, 50, 9]


def louder(module, args, output):
    return output * 3.0


class Doubled(torch.nn.Module):
    """A linear layer that somebody replaced."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 2.0


class Gated(Doubled):
    """As adapters are: part of it can be switched off."""

    disabled, scaling = False, {"default": 1.0}

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__(inner)
        self.disabled, self.scaling = False, {"default": 1.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) if self.disabled else self.inner(x) * (1.0 + self.scaling["default"])


def replace_layer(model) -> None:
    model.model.layers[1].mlp.up_proj = Doubled(model.model.layers[1].mlp.up_proj)


def add_hook(model) -> None:
    model.model.layers[0].mlp.register_forward_hook(louder)


def override_forward(model) -> None:
    layer = model.model.layers[0].mlp.down_proj
    plain = layer.forward
    layer.forward = lambda x: plain(x) * 2.0


def other_weight(model) -> None:
    layer = model.model.layers[1].self_attn.q_proj
    layer.weight = torch.nn.Parameter(layer.weight.detach().roll(1, 0))


def other_norm(model) -> None:
    model.model.norm.weight = torch.nn.Parameter(-model.model.norm.weight.detach())


def write_weight(model) -> None:
    with torch.no_grad():
        model.model.layers[1].mlp.gate_proj.weight.mul_(-1.0)


def switch(model) -> None:
    model.model.layers[1].mlp.down_proj.disabled = True


def scale(model) -> None:
    model.model.layers[1].mlp.down_proj.scaling["default"] = 4.0


CHANGES = {
    replace_layer: r"module 'model.layers.1.mlp.up_proj' of the target was replaced",
    add_hook: r"module 'model.layers.0.mlp' of the target got or lost a hook",
    override_forward: r"module 'model.layers.0.mlp.down_proj' of the target got another forward",
    other_weight: r"module 'model.layers.1.self_attn.q_proj' of the target got other tensors",
    other_norm: r"module 'model.norm' of the target got other tensors",
    write_weight: r"the weights of 'model.layers.1.mlp.gate_proj' have changed",
    switch: r"module 'model.layers.1.mlp.down_proj' of the target changed its settings",
    scale: r"module 'model.layers.1.mlp.down_proj' of the target changed its settings",
}


def target():
    model = toy_model("llama", seed=5)
    model.model.layers[1].mlp.down_proj = Gated(model.model.layers[1].mlp.down_proj)
    return model


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_target_is_followed_or_refused(greedy, change) -> None:
    model = target()
    before = greedy(model, PROMPT, 16)
    plain = SpeculativeDecoder.from_models(model, noisy_copy(model, 0.05), temperature=0)
    packed = SpeculativeDecoder.from_models(model, noisy_copy(model, 0.05), temperature=0, packed=True)
    prompt, options = torch.tensor(PROMPT), {"k": 3, "max_new_tokens": 16}
    for spec in (plain, packed):
        assert list(spec.generate(prompt, **options).token_ids) == before
    change(model)
    after = greedy(model, PROMPT, 16)
    assert after != before
    assert list(plain.generate(prompt, **options).token_ids) == after
    for call in (packed.generate, packed.generate_baseline):
        with pytest.raises(ValueError, match=f"packed=True: {CHANGES[change]}.*build"):
            call(prompt, **options)
    with pytest.raises(ValueError, match="packed=True"):
        model.generate(prompt[None], custom_generate=packed, max_new_tokens=3)


def test_graphs_do_not_look_at_hooks_so_compile_refuses_them_too() -> None:
    model = target()
    spec = SpeculativeDecoder.from_models(model, temperature=0, compile=True)
    add_hook(model)
    with pytest.raises(ValueError, match=r"compile=True: module 'model.layers.0.mlp' of the target got or lost a hook"):
        spec.generate(torch.tensor(PROMPT), k=0)


def test_what_changes_nothing_is_no_change(greedy) -> None:
    model = toy_model("llama", seed=5, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    spec = SpeculativeDecoder.from_models(model, temperature=0, packed=True)
    origin = Origin(model, "target")
    model.train().eval()
    with torch.no_grad():
        model(torch.tensor([PROMPT]), output_hidden_states=True, output_attentions=True)  # puts in hooks that stay
        model(torch.arange(600)[None] % 64)  # beyond the positions it was built for
    model.lm_head.weight.requires_grad_(False)
    model.generation_config.max_length = 40
    origin.check()
    assert list(spec.generate(torch.tensor(PROMPT), max_new_tokens=9).token_ids) == greedy(model, PROMPT, 9)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_training_mode_with_dropout_is_refused_whenever_it_comes(role: str, packed: bool) -> None:
    models = {each: toy_model("llama", seed=5, attention_dropout=0.1) for each in ("target", "draft")}
    spec = SpeculativeDecoder.from_models(*models.values(), temperature=0, packed=packed)
    spec.generate(PROMPT, max_new_tokens=4)
    whole, part = models[role], models[role].model.layers[1]
    for module in (whole, part):  # of the whole model, or of a layer
        module.train()
        with pytest.raises(ValueError, match=rf"{role} Llama\w+ is in training mode with dropout.*call .eval\(\)"):
            spec.generate(PROMPT, max_new_tokens=4)
        whole.eval()
    spec.generate(PROMPT, max_new_tokens=4)
    safe = toy_model("llama", seed=5)
    spec = SpeculativeDecoder.from_models(safe, temperature=0)
    safe.train()
    spec.generate(PROMPT, max_new_tokens=4)


def test_another_attention_implementation_is_followed(greedy) -> None:
    """Masks differ: eager attention adds numbers, sdpa reads truth values."""
    model = toy_model("llama", seed=5)
    spec = SpeculativeDecoder.from_models(model, noisy_copy(model, 0.05), temperature=0)
    for implementation in ("sdpa", "eager", "sdpa"):
        model.set_attn_implementation(implementation)
        for prompts in ([PROMPT], [PROMPT, PROMPT[:2]]):
            results = spec.generate([torch.tensor(prompt) for prompt in prompts], k=4, max_new_tokens=20)
            assert [list(r.token_ids) for r in results] == [greedy(model, prompt, 20) for prompt in prompts]


def test_another_vocabulary_is_refused() -> None:
    model = toy_model("llama", seed=5)
    spec = SpeculativeDecoder.from_models(model, temperature=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.resize_token_embeddings(80)
    with pytest.raises(ValueError, match=r"the target's vocabulary has changed from 64 to 80 ids.*build it again"):
        spec.generate(PROMPT)
