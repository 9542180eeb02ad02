"""Toy models: exact tables for enumeration, and tiny random Hugging Face models for real caches.

A table model's next-token distribution is a function of the last two tokens, so that any slip of position, cache or
context changes the result.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from decoder.trees import Tree


class TableModel:
    """Logits looked up by the last two tokens: table [V, V, V]; position 0 sees token 0 before it."""

    context_length: int | None = None
    can_batch = True

    def __init__(self, table: Tensor) -> None:
        if table.ndim != 3 or len(set(table.shape)) != 1:
            raise ValueError(f"table of shape {tuple(table.shape)} must be [V, V, V].")
        self.table = table
        self.vocab_size = self.embedding_size = int(table.shape[0])
        self.device = table.device

    @classmethod
    def random(cls, vocab: int, seed: int, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> TableModel:
        """Gaussian logits of standard deviation `scale`."""
        generator = torch.Generator().manual_seed(seed)
        return cls(torch.randn(vocab, vocab, vocab, generator=generator, dtype=torch.float64).mul(scale).to(dtype))

    def near(self, seed: int, noise: float) -> TableModel:
        """A table that partly agrees with this one."""
        return TableModel(self.table + noise * TableModel.random(self.vocab_size, seed, 1.0, self.table.dtype).table)

    def open(self, rows: int, limit: int, cache: Any = None) -> TableSession:
        return TableSession(self, rows)


class TableSession:
    """A run of a table model, with a "cache" that keeps whatever was written, so that stale entries show."""

    cache: Any = None
    trees = True

    def __init__(self, model: TableModel, rows: int) -> None:
        self.model = model
        self._roots: list[int] = []
        self._held: list[list[int]] = [[] for _ in range(rows)]
        self.vocab_size = model.vocab_size
        self.lengths = [0] * rows

    def feed(
        self, tokens: Tensor, starts: Sequence[int], at: Sequence[int] | None = None, tree: Tree | None = None
    ) -> Tensor:
        self._roots = list(starts)
        for row, start, fed in zip(self._held, starts, tokens.tolist(), strict=True):
            assert start <= len(row), "a hole in the cache"
            row[start : start + len(fed)] = fed
        count = tokens.shape[1]
        before = torch.tensor([[0, *row][start : start + count] for row, start in zip(self._held, starts, strict=True)])
        now = torch.tensor([row[start : start + count] for row, start in zip(self._held, starts, strict=True)])
        if tree is not None:  # a node follows its parent, whatever stands in the slot before it
            for b, parents in enumerate(tree.parents):
                for node, parent in enumerate(parents):
                    before[b, node + 1] = now[b, parent + 1]
        logits = self.model.table[before, now]  # [B, m, V]
        return logits if at is None else logits[torch.arange(len(at)), torch.tensor(list(at))].unsqueeze(1)

    def commit(self, lengths: Sequence[int], paths: Sequence[Sequence[int]] | None = None) -> None:
        for row, root, path in zip(self._held, self._roots, paths or (), strict=False):
            row[root + 1 : root + 1 + len(path)] = [row[root + 1 + node] for node in path]
        assert all(n <= len(row) for n, row in zip(lengths, self._held, strict=True))
        self.lengths = list(lengths)

    def select(self, rows: Sequence[int]) -> None:
        self._held = [self._held[row] for row in rows]
        self.lengths = [self.lengths[row] for row in rows]


_SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
_GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
_FALCON = {name: value for name, value in _SMALL.items() if name != "head_dim"}  # it derives that itself


def toy_model(family: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """A random Hugging Face model of a few thousand parameters, in float32 eval mode.

    family: a transformers model_type ("llama", "gpt2", "qwen3", "mistral", ...); `changes` go to its configuration.
    """
    sizes = {"gpt2": _GPT2, "falcon": _FALCON}.get(family, _SMALL)
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(family, **{**sizes, **special, **changes})
    state = torch.random.get_rng_state()
    try:
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():  # sharpen: default initialisation gives distributions too flat to tell faults apart
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0.0, 0.35 if parameter.shape[0] == config.vocab_size else 0.18)
    finally:
        torch.random.set_rng_state(state)
    return model.eval()


def noisy_copy(model: Any, noise: float, seed: int = 1) -> Any:
    """The same model with Gaussian noise added to its matrices, relative to their spread: a partly agreeing draft."""
    twin = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in twin.parameters():
            if parameter.ndim > 1:
                step = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
                parameter.add_(noise * parameter.std() * step.to(parameter))
    return twin
