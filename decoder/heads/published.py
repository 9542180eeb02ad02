"""Heads in the layouts that other projects publish, read into this project's module.

    EAGLE-3      config.json with draft_vocab_size; midlayer.*, fc, norm, lm_head, d2t, t2d (arXiv 2503.01840)
    EAGLE        config.json of a one-layer Llama; layers.0.*, fc [H, 2 H] with a bias, embed_tokens (arXiv 2401.15077)
    speculators  config.json with speculators_model_type and transformer_layer_config; tensors as EAGLE-3's, layers.0.*

`d2t` holds, for each id of the head, what to add to it for the target's id. Medusa's heads (arXiv 2401.10774) are no
layer that reads tokens: `decoder.heads.medusa` has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from decoder.heads.config import HeadConfig, TargetShape
from decoder.heads.eagle import FeatureHead

CONFIG = "config.json"
_LAYER = {  # the head's name <- a published layer's
    "attention.q_proj": "self_attn.q_proj",
    "attention.k_proj": "self_attn.k_proj",
    "attention.v_proj": "self_attn.v_proj",
    "attention.o_proj": "self_attn.o_proj",
    "mlp.gate_proj": "mlp.gate_proj",
    "mlp.up_proj": "mlp.up_proj",
    "mlp.down_proj": "mlp.down_proj",
    "mlp_norm": "post_attention_layernorm",
    "token_norm": "input_layernorm",
    "feature_norm": "hidden_norm",
}
_WHOLE = ("fc", "norm", "lm_head", "embed_tokens")


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder: safetensors, or torch's own files, of which only tensors are read.

    Raises:
        ValueError: none there.
    """
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    if not found:
        for path in sorted([*folder.glob("*.bin"), *folder.glob("*.pt")]):
            found |= torch.load(path, map_location="cpu", weights_only=True)
    if not found:
        raise ValueError(f"head={str(folder)!r} holds no weights: no .safetensors, .bin or .pt file.")
    return found


def load_published(folder: Path, target: TargetShape) -> FeatureHead:
    """The head of a published folder, for this target, in float32.

    Raises:
        ValueError: a layout that is none of those above, tensors that are missing, or a head of another size.
    """
    given = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    where = str(folder)
    tensors = read_tensors(folder)
    kind = given.get("speculators_model_type", "eagle3" if "d2t" in tensors or "draft_vocab_size" in given else "eagle")
    if kind != "eagle3":
        raise ValueError(
            f"head={where!r} is a draft of kind {kind!r}; this project reads EAGLE-3 heads "
            "(config.json with draft_vocab_size), speculators' 'eagle3', Medusa's and its own."
        )
    config = _config(given, tensors, target, where)
    head = FeatureHead(config)
    state = head.state_dict()
    for name in list(state):
        source = _source(name, tensors)
        if source is not None:
            if source.shape != state[name].shape:
                raise ValueError(
                    f"head={where!r}: {name} has shape {list(source.shape)} where this target needs "
                    f"{list(state[name].shape)}; it was made for another target."
                )
            state[name] = source.float()
        elif name not in ("draft_ids", "target_sketch"):
            raise ValueError(f"head={where!r} lacks the tensor for {name}.")
    state["draft_ids"] = _draft_ids(tensors, config)
    head.load_state_dict(state)
    return head


def _source(name: str, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """The published tensor for one of the module's."""
    part, _, leaf = name.rpartition(".")
    names = [f"{part}.{leaf}"] if part in _WHOLE else []
    if part in _LAYER:
        names = [f"{prefix}.{_LAYER[part]}.{leaf}" for prefix in ("midlayer", "layers.0")]
    return next((tensors[each] for each in names if each in tensors), None)


def _draft_ids(tensors: Mapping[str, Tensor], config: HeadConfig) -> Tensor:
    own = torch.arange(config.outputs)
    return own + tensors["d2t"].long() if "d2t" in tensors else own


def _config(given: Mapping[str, Any], tensors: Mapping[str, Tensor], target: TargetShape, where: str) -> HeadConfig:
    layer = given.get("transformer_layer_config") or given
    vocab, draft = int(layer["vocab_size"]), int(given.get("draft_vocab_size") or 0)
    hidden = int(layer["hidden_size"])
    theirs = int(given.get("target_hidden_size") or hidden)
    made_for = TargetShape(target.model_type, theirs, vocab, target.layers)
    made_for.check(target, where)
    layers = given.get("eagle_aux_hidden_state_layer_ids")
    heads = int(layer["num_attention_heads"])
    rope = layer.get("rope_parameters") or {}
    return HeadConfig(
        target=target,
        # the defaults of the reference implementation: the inputs of the third, the middle and the third last layer
        feature_layers=tuple(layers) if layers else (2, target.layers // 2, target.layers - 3),
        hidden_size=hidden,
        intermediate_size=int(layer["intermediate_size"]),
        heads=heads,
        kv_heads=int(layer.get("num_key_value_heads") or heads),
        head_dim=int(layer.get("head_dim") or hidden // heads),
        draft_vocab_size=draft if draft != vocab else 0,
        rope_theta=float(layer.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        norm_eps=float(layer.get("rms_norm_eps") or 1e-5),
        joins="attention",
        norm_features=False,
        norm_residual=bool(given.get("norm_before_residual", False)),
        own_output="lm_head.weight" in tensors,
        own_embedding="embed_tokens.weight" in tensors,
        bias=bool(layer.get("attention_bias", False)),
    )
