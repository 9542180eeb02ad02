"""L2: the shape of a draft head and of the target that it was made for, as frozen values that go to and from JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

CONFIG_FILE = "head.json"


@dataclass(frozen=True)
class TargetShape:
    """What of a target a head depends on.

    layers: decoder layers.
    """

    model_type: str
    hidden_size: int
    vocab_size: int
    layers: int

    def check(self, target: TargetShape, where: str) -> None:
        """Refuse a head that was made for another target.

        Raises:
            ValueError: naming what differs, both values and the remedy.
        """
        for field in fields(self):
            mine, other = getattr(self, field.name), getattr(target, field.name)
            if mine != other:
                raise ValueError(
                    f"head={where!r} was made for a target with {field.name}={mine!r}, this one has {other!r}; "
                    "use the head of this very model, or make one with `specdec train-head`."
                )


@dataclass(frozen=True)
class HeadConfig:
    """A head of one decoder layer.

    target: what it was made for.
    feature_layers: whose hidden states it reads: i is the output of the target's i-th layer, counted from 1.
    draft_vocab_size: ids it can propose (FR-Spec, arXiv 2502.14856); 0 is all of the target's.
    joins: where the token's embedding meets the feature: "input" projects both to the layer's input (EAGLE, arXiv
        2401.15077); "attention" gives both to the attention and leaves the feature as the residual (EAGLE-3, arXiv
        2503.01840).
    norm_features: each layer's hidden state is divided by its root mean square before it is projected.
    norm_residual: with joins="attention", the residual stream is the normed feature.
    own_output: the output matrix is the head's own; False takes the rows of the target's.
    own_embedding: likewise for the embedding.
    """

    target: TargetShape
    feature_layers: tuple[int, ...]
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    draft_vocab_size: int = 0
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    joins: str = "input"
    norm_features: bool = True
    norm_residual: bool = False
    own_output: bool = False
    own_embedding: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        if self.joins not in ("input", "attention"):
            raise ValueError(f"joins={self.joins!r} must be 'input' or 'attention'.")
        layers = self.feature_layers
        if not layers or any(not 1 <= layer <= self.target.layers for layer in layers):
            raise ValueError(f"feature_layers={list(layers)} must name layers 1 ... {self.target.layers}.")
        if not 0 <= self.draft_vocab_size <= self.target.vocab_size:
            raise ValueError(
                f"draft_vocab_size={self.draft_vocab_size} must lie in [0, {self.target.vocab_size}]; 0 takes all."
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}.")

    @property
    def outputs(self) -> int:
        """Ids that the head can propose."""
        return self.draft_vocab_size or self.target.vocab_size

    def to_dict(self) -> dict[str, Any]:
        return {"format": "decoder-head", "version": 1, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> HeadConfig:
        known = {field.name for field in fields(cls)}
        given = {name: value for name, value in data.items() if name in known}
        given["target"] = TargetShape(**given["target"])
        given["feature_layers"] = tuple(given["feature_layers"])
        return cls(**given)

    @classmethod
    def read(cls, folder: Path) -> HeadConfig:
        return cls.from_dict(json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")))


def default_feature_layers(layers: int) -> tuple[int, ...]:
    """A low, a middle and the last layer."""
    return tuple(sorted({max(1, layers * 4 // 15), max(1, layers * 19 // 30), layers}))


def shape_of(target: Any) -> TargetShape:
    """Of a transformers model."""
    config = target.config.get_text_config(decoder=True)
    return TargetShape(
        str(config.model_type),
        int(config.hidden_size),
        int(target.get_output_embeddings().weight.shape[0]),
        int(config.num_hidden_layers),
    )


def config_for(target: Any, draft_vocab_size: int = 0, layers: Sequence[int] = (), joins: str = "input") -> HeadConfig:
    """The head that fits a transformers model: one layer of the target's own shape."""
    config = target.config.get_text_config(decoder=True)
    hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
    shape = shape_of(target)
    rope = getattr(config, "rope_parameters", None) or {}
    return HeadConfig(
        target=shape,
        feature_layers=tuple(layers) or default_feature_layers(shape.layers),
        hidden_size=hidden,
        intermediate_size=int(getattr(config, "intermediate_size", None) or 4 * hidden),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or hidden // heads),
        draft_vocab_size=draft_vocab_size,
        joins=joins,
        norm_eps=float(getattr(config, "rms_norm_eps", None) or 1e-5),
        rope_theta=float(rope.get("rope_theta", 10000.0)) if isinstance(rope, Mapping) else 10000.0,
    )
