"""Model pairs of real shapes with random weights and a dialled acceptance, for timing shapes whose weights are not
at hand. SYNTHETIC: times are real, text and acceptance are made.

Both models run whole, through the same code as real ones; only their embeddings and heads are written by hand. One
table records which token follows which: a random cycle over the vocabulary, s(v). The target's head holds the
embedding of v in the row of s(v), so its argmax after v is s(v) whatever its random layers add: the margin is of the
order of the width d where their noise is of the order of sqrt(d), so that bfloat16, int8 and int4 read the same
table. The draft's head follows the same record for the share `acceptance` of the tokens, and another successor for the
rest; the share holds in every 25 tokens along the record, in random order. Hence

    P(a drafted token is accepted) = acceptance at each position,

at any temperature in ordinary use, for this project's drafter and for transformers' assistant alike. What it does not
show: how acceptance varies along a real text, and lookup drafters, which find nothing here.

Every head is a matrix of its own; families that tie head and embedding read as many bytes a forward.
Shapes: the configurations published with GPT-2 (Radford et al. 2019), DistilGPT-2 (Sanh et al. 2019, arXiv
1910.01108), Llama 3 (arXiv 2407.21783) and SmolLM2 (arXiv 2502.02737).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

_LAYER_GAIN = 0.3  # what a layer adds, small against the embedding it is added to
_STRETCH = 25  # tokens of the record within which the dialled share holds


def _gpt2(layers: int, width: int, heads: int, vocabulary: int = 50257) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_layer": layers,
        "n_embd": width,
        "n_head": heads,
        "n_positions": 1024,
        "vocab_size": vocabulary,
    }


def _llama(
    layers: int, width: int, inner: int, heads: int, kv_heads: int, vocabulary: int, positions: int
) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
    }


GEOMETRIES: Mapping[str, dict[str, Any]] = {
    "distilgpt2": _gpt2(6, 768, 12),
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "smollm2-135m": _llama(30, 576, 1536, 9, 3, 49152, 8192),
    "llama-3.2-1b": _llama(16, 2048, 8192, 32, 8, 128256, 131072),
    "llama-3.1-8b": _llama(32, 4096, 14336, 32, 8, 128256, 131072),
    "small-gpt2": _gpt2(2, 64, 2, 512),  # for tests and dry runs
    "smaller-gpt2": _gpt2(1, 64, 2, 512),
    "small-llama": _llama(2, 64, 128, 4, 2, 512, 1024),
    "smaller-llama": _llama(1, 64, 128, 4, 2, 512, 1024),
}


def successors(vocabulary: int, seed: int) -> Tensor:
    """The record: s [V], one cycle through all tokens in random order."""
    order = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(seed))
    table = torch.empty(vocabulary, dtype=torch.long)
    table[order] = order.roll(-1)
    return table


def partly_agreeing(record: Tensor, acceptance: float, seed: int) -> Tensor:
    """A table [V] that says what the record says for the share `acceptance` of the tokens, something else for the rest.

    The share holds in every stretch of the cycle, in random order within it: drawn freely, a run of 64 tokens would
    reach 0.71 only give or take 0.06, and with it another speed-up.
    """
    share = Fraction(acceptance).limit_denominator(10_000)
    along = torch.tensor([0, *follow(record, 0, len(record) - 1)])
    generator = torch.Generator().manual_seed(seed)
    differs = torch.empty(len(record), dtype=torch.bool)
    for start in range(0, len(record), _STRETCH):
        stretch = along[start : start + _STRETCH]
        stop = start + len(stretch)
        agreeing = int(share * stop) - int(share * start)
        differs[stretch[torch.randperm(len(stretch), generator=generator)]] = torch.arange(len(stretch)) >= agreeing
    differing = torch.nonzero(differs).flatten()
    table = record.clone()
    if len(differing) > 1:  # one alone has no other successor to take
        table[differing] = record[differing].roll(1)
    return table


def follow(record: Tensor, token: int, count: int) -> list[int]:
    """The `count` tokens that the record puts after `token`."""
    found = []
    for _ in range(count):
        token = int(record[token])
        found.append(token)
    return found


def shape(name: str) -> dict[str, Any]:
    """Sizes by name.

    Raises:
        ValueError: an unknown geometry.
    """
    if name not in GEOMETRIES:
        raise ValueError(f"geometry {name!r} is unknown; use one of {sorted(GEOMETRIES)}.")
    return dict(GEOMETRIES[name])


def synthetic_model(name: str, table: Tensor, *, dtype: torch.dtype, device: torch.device | str, seed: int) -> Any:
    """A random model of the named shape whose greedy successor of token v is table[v]."""
    sizes = shape(name)
    family = sizes.pop("model_type")
    width = float(sizes["n_embd" if family == "gpt2" else "hidden_size"])
    config = AutoConfig.for_model(
        family,
        **sizes,
        initializer_range=_LAYER_GAIN / width**0.5,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.requires_grad_(False)
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    generator = torch.Generator(embedding.device).manual_seed(seed + 1)
    embedding.normal_(0.0, 1.0, generator=generator)
    head[table.to(head.device)] = embedding
    return model


@dataclass(frozen=True)
class Geometry:
    """A synthetic pair and what it is made to do."""

    name: str
    acceptance: float
    target: Any
    draft: Any
    record: Tensor  # [V]

    def prompts(self, count: int, length: int, seed: int = 0) -> list[list[int]]:
        """Random prompts of token ids."""
        source = torch.Generator().manual_seed(seed)
        return [torch.randint(0, len(self.record), (length,), generator=source).tolist() for _ in range(count)]


def synthetic_pair(
    name: str, acceptance: float, *, dtype: torch.dtype, device: torch.device | str = "cpu", seed: int = 0
) -> Geometry:
    """A pair "target:draft" of known geometries.

    Raises:
        ValueError: a malformed or unknown name, different vocabularies, or an acceptance outside [0, 1].
    """
    target_name, colon, draft_name = name.partition(":")
    if not colon:
        raise ValueError(f"geometry={name!r} must be TARGET:DRAFT, each one of {sorted(GEOMETRIES)}.")
    if not 0.0 <= acceptance <= 1.0:
        raise ValueError(f"acceptance={acceptance!r} must lie in [0, 1].")
    sizes = [int(shape(each)["vocab_size"]) for each in (target_name, draft_name)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"geometry={name!r} mixes vocabularies of {sizes[0]} and {sizes[1]} tokens; use one family.")
    record = successors(sizes[0], seed)
    heard = partly_agreeing(record, acceptance, seed + 1)
    target = synthetic_model(target_name, record, dtype=dtype, device=device, seed=seed + 10)
    draft = synthetic_model(draft_name, heard, dtype=dtype, device=device, seed=seed + 20)
    return Geometry(name, acceptance, target, draft, record)
