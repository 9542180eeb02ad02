"""Heads in the layouts of other projects: folders are written as those do; the head says what their formulas say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from decoder import SpeculativeDecoder
from decoder.heads import FeatureHead
from decoder.heads.config import shape_of
from decoder.heads.load import load_head
from decoder.heads.medusa import MedusaHeads
from decoder.models.toy import toy_model

VOCAB, DRAFT, HIDDEN, INNER, HEADS, KV, DIM = 16, 10, 16, 24, 4, 2, 4


@pytest.fixture(scope="module")
def target() -> Any:
    model = toy_model(
        "llama", seed=0, vocab_size=VOCAB, num_hidden_layers=8, hidden_size=HIDDEN, num_attention_heads=HEADS,
        num_key_value_heads=KV, head_dim=DIM,
    )  # fmt: skip
    model.generation_config.eos_token_id = None
    return model


def eagle3_tensors(prefix: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    shapes = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (DRAFT, HIDDEN),
        f"{prefix}.hidden_norm.weight": (HIDDEN,),
        f"{prefix}.input_layernorm.weight": (HIDDEN,),
        f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
        f"{prefix}.self_attn.q_proj.weight": (HEADS * DIM, 2 * HIDDEN),
        f"{prefix}.self_attn.k_proj.weight": (KV * DIM, 2 * HIDDEN),
        f"{prefix}.self_attn.v_proj.weight": (KV * DIM, 2 * HIDDEN),
        f"{prefix}.self_attn.o_proj.weight": (HIDDEN, HEADS * DIM),
        f"{prefix}.mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": (INNER, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": (HIDDEN, INNER),
    }
    tensors = {name: torch.randn(shape) * 0.3 + (1 if len(shape) == 1 else 0) for name, shape in shapes.items()}
    ids = torch.tensor([0, 1, 3, 4, 7, 8, 9, 12, 13, 15])
    tensors["d2t"] = ids - torch.arange(DRAFT)
    tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    return tensors


LAYER = {
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV,
    "head_dim": DIM, "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "num_hidden_layers": 1,
}  # fmt: skip


def write_eagle3(folder: Path) -> dict[str, torch.Tensor]:
    """As the authors' checkpoints: one torch file."""
    folder.mkdir(parents=True)
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": DRAFT, **LAYER}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = eagle3_tensors("midlayer")
    torch.save(tensors, folder / "pytorch_model.bin")
    return tensors


def write_speculators(folder: Path, target: Any, **changes: Any) -> dict[str, torch.Tensor]:
    """As `speculators` saves: the layer's configuration nested, safetensors, an embedding of its own."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.2.0",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"architectures": ["LlamaForCausalLM"]}},
        "draft_vocab_size": DRAFT,
        "norm_before_residual": True,
        "target_hidden_size": None,
        "transformer_layer_config": {"model_type": "llama", **LAYER},
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = eagle3_tensors("layers.0")
    tensors["embed_tokens.weight"] = target.get_input_embeddings().weight.detach() * 1.5
    save_file(tensors, folder / "model.safetensors")
    return tensors


@torch.no_grad()
def reference(
    tensors: dict[str, torch.Tensor], prefix: str, target: Any, ids: torch.Tensor, layers: tuple[int, ...], normed: bool
) -> torch.Tensor:
    """EAGLE-3's formulas with transformers' own norm and rotation; logits over the draft's ids at the last position."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        module = LlamaRMSNorm(HIDDEN, 1e-5)
        module.weight.copy_(tensors[name])
        return module(x)

    states = target(ids, output_hidden_states=True).hidden_states
    feature = (torch.cat([states[layer] for layer in layers], -1) @ tensors["fc.weight"].T)[:, :-1]
    table = tensors.get("embed_tokens.weight", target.get_input_embeddings().weight)
    embedded = norm(table[ids[:, 1:]], f"{prefix}.input_layernorm.weight")
    hidden = norm(feature, f"{prefix}.hidden_norm.weight")
    both, residual = torch.cat([embedded, hidden], -1), hidden if normed else feature
    count = both.shape[1]
    q, k, v = (
        (both @ tensors[f"{prefix}.self_attn.{name}_proj.weight"].T).view(1, count, -1, DIM).transpose(1, 2)
        for name in "qkv"
    )
    angles = torch.arange(count)[:, None] * 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
    cos, sin = (f(torch.cat([angles, angles], -1))[None] for f in (torch.cos, torch.sin))
    q, k = apply_rotary_pos_emb(q, k, cos, sin)
    k, v = (each.repeat_interleave(HEADS // KV, 1) for each in (k, v))
    scores = (q @ k.transpose(-1, -2)) / DIM**0.5
    weights = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf).softmax(-1)
    out = (weights @ v).transpose(1, 2).reshape(1, count, -1) @ tensors[f"{prefix}.self_attn.o_proj.weight"].T
    stream = residual + out
    inner = norm(stream, f"{prefix}.post_attention_layernorm.weight")
    gate, up, down = (tensors[f"{prefix}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    stream = stream + (torch.nn.functional.silu(inner @ gate.T) * (inner @ up.T)) @ down.T
    return (norm(stream, "norm.weight") @ tensors["lm_head.weight"].T)[0, -1]


@torch.no_grad()
def drafted_logits(decoder: SpeculativeDecoder, prompt: list[int]) -> tuple[list[int], torch.Tensor]:
    """(context, q) of the first draft of a sampled run."""
    drafter = decoder.drafter
    seen: list[Any] = []
    kind = type(drafter)
    original = kind.propose

    def watch(self: Any, contexts: Any, counts: Any) -> Any:
        draft = original(self, contexts, counts)
        seen.append((list(contexts[0]), draft.probs[0, 0].clone()))
        return draft

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "propose", watch)
        decoder.generate(prompt, max_new_tokens=3, k=2, seed=0)
    return seen[0]


@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_published_layers_say_what_their_formulas_say(layout: str, target: Any, tmp_path: Path) -> None:
    folder = tmp_path / layout
    if layout == "eagle3":
        tensors, prefix, layers = write_eagle3(folder), "midlayer", (2, 4, 5)
    else:
        tensors, prefix, layers = (
            write_speculators(folder, target, eagle_aux_hidden_state_layer_ids=[1, 3, 6]), "layers.0", (1, 3, 6),
        )  # fmt: skip
    decoder = SpeculativeDecoder.from_models(target, head=folder, temperature=1.0, top_p=1.0)
    context, q = drafted_logits(decoder, [5, 6, 7, 8])
    wanted = reference(tensors, prefix, target, torch.tensor([context]), layers, layout == "speculators")
    ids = torch.arange(DRAFT) + tensors["d2t"]
    torch.testing.assert_close(q[ids], torch.softmax(wanted, -1), rtol=1e-4, atol=1e-5)
    assert q.sum().item() == pytest.approx(1) and q[[2, 5, 6]].sum() == 0


def write_medusa(folder: Path, heads: int = 3, layers: int = 1, hidden: int = HIDDEN) -> dict[str, torch.Tensor]:
    folder.mkdir(parents=True)
    config = {"medusa_num_heads": heads, "medusa_num_layers": layers, "base_model_name_or_path": "some/model"}
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(2)
    tensors = {}
    for head in range(heads):
        for layer in range(layers):
            tensors[f"{head}.{layer}.linear.weight"] = torch.randn(hidden, hidden) * 0.3
            tensors[f"{head}.{layer}.linear.bias"] = torch.randn(hidden) * 0.3
        tensors[f"{head}.{layers}.weight"] = torch.randn(VOCAB, hidden)
    torch.save(tensors, folder / "medusa_lm_head.pt")
    return tensors


@torch.no_grad()
def test_medusa_heads_say_what_their_formulas_say(target: Any, tmp_path: Path) -> None:
    tensors = write_medusa(tmp_path / "medusa")
    decoder = SpeculativeDecoder.from_models(target, head=tmp_path / "medusa", temperature=1.0, top_p=1.0)
    context, q = drafted_logits(decoder, [5, 6, 7, 8])
    h = target(torch.tensor([context[:-1]]), output_hidden_states=True).hidden_states[-1][0, -1]  # behind the norm
    h = h + torch.nn.functional.silu(tensors["0.0.linear.weight"] @ h + tensors["0.0.linear.bias"])
    torch.testing.assert_close(q, torch.softmax(tensors["0.1.weight"] @ h, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["eagle3", "speculators", "medusa"])
def test_published_heads_draft_exactly(layout: str, target: Any, tmp_path: Path, greedy: Any) -> None:
    folder = tmp_path / layout
    {"eagle3": write_eagle3, "medusa": write_medusa}.get(layout, lambda path: write_speculators(path, target))(folder)
    decoder = SpeculativeDecoder.from_models(target, head=folder, temperature=0)
    prompts = [[5, 6, 7, 8, 5, 6], [4], [9, 3, 9]]
    wanted = [greedy(target, prompt, 24, eos_token_id=None) for prompt in prompts]
    results = decoder.generate([list(prompt) for prompt in prompts], max_new_tokens=24, k=5)
    assert [list(each.token_ids) for each in results] == wanted
    assert [list(decoder.generate(list(p), max_new_tokens=24, k=5).token_ids) for p in prompts] == wanted
    longest = max(len(step.drafted) for each in results for step in each.steps)
    assert longest == (3 if layout == "medusa" else 5)


def test_heads_of_another_target_are_refused_by_name(target: Any, tmp_path: Path) -> None:
    other = toy_model("llama", seed=0, vocab_size=VOCAB + 4, num_hidden_layers=8, hidden_size=HIDDEN)
    wide = toy_model("llama", seed=0, vocab_size=VOCAB, num_hidden_layers=8, hidden_size=2 * HIDDEN)
    write_eagle3(tmp_path / "eagle3")
    write_medusa(tmp_path / "medusa")
    with pytest.raises(ValueError, match="vocab_size=16"):
        SpeculativeDecoder.from_models(other, head=tmp_path / "eagle3")
    with pytest.raises(ValueError, match="hidden_size=16"):
        SpeculativeDecoder.from_models(wide, head=tmp_path / "eagle3")
    with pytest.raises(ValueError, match=r"0\.0\.linear\.weight"):
        SpeculativeDecoder.from_models(wide, head=tmp_path / "medusa")
    tensors = eagle3_tensors("midlayer")
    del tensors["fc.weight"]
    torch.save(tensors, tmp_path / "eagle3" / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"lacks the tensor for fc\.weight"):
        SpeculativeDecoder.from_models(target, head=tmp_path / "eagle3")
    (tmp_path / "eagle3" / "pytorch_model.bin").unlink()
    with pytest.raises(ValueError, match="no weights"):
        SpeculativeDecoder.from_models(target, head=tmp_path / "eagle3")
    config = tmp_path / "eagle3" / "config.json"
    config.write_text(json.dumps({"speculators_model_type": "mlp", **LAYER}))
    save_file({"x": torch.zeros(1)}, tmp_path / "eagle3" / "model.safetensors")
    with pytest.raises(ValueError, match="kind 'mlp'"):
        SpeculativeDecoder.from_models(target, head=tmp_path / "eagle3")


def test_kinds(target: Any, tmp_path: Path) -> None:
    write_eagle3(tmp_path / "eagle3")
    write_medusa(tmp_path / "medusa")
    assert isinstance(load_head(tmp_path / "eagle3", shape_of(target)), FeatureHead)
    assert isinstance(load_head(tmp_path / "medusa", shape_of(target)), MedusaHeads)
