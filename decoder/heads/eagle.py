"""L2: a head of one decoder layer over the target's hidden states (EAGLE, arXiv 2401.15077; EAGLE-3, 2503.01840).

At position i it reads the target's feature f_i and the token after it, x_{i+1}, and guesses x_{i+2}:

    f_i = W [h_low_i ; h_middle_i ; h_high_i]             features of the target where there are some,
    f_i = the head's own output at i - 1                  its own where the target has not been
    g_i = layer(f_i, embedding of x_{i+1}; earlier positions)
    q   = softmax of U norm(g_i), over the reduced vocabulary (FR-Spec, arXiv 2502.14856)

Positions and the mask are given, so that a chain and a tree are drafted by the same forward. Embedding and output
matrix are the target's own where the configuration says so: they are not stored.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from decoder.heads.config import HeadConfig
from decoder.heads.layer import Attention, GatedMlp, RootMeanSquare, rotary


class FeatureHead(nn.Module):
    """The module. `borrow` gives it what it shares with the target; until then it cannot run.

    draft_ids: [outputs] long: the target's id of each id that the head can propose, ascending.
    target_sketch: of the weights of its target (`decoder.heads.fingerprint`); empty is not checked.
    """

    draft_ids: Tensor
    target_sketch: Tensor

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        hidden, eps = config.hidden_size, config.norm_eps
        joined = 2 * hidden
        at_input = config.joins == "input"
        self.fc = nn.Linear(len(config.feature_layers) * config.target.hidden_size, hidden, bias=False)
        self.join = nn.Linear(joined, hidden, bias=False) if at_input else None
        self.token_norm = RootMeanSquare(hidden, eps)
        self.feature_norm = RootMeanSquare(hidden, eps)
        self.attention = Attention(
            hidden if at_input else joined, hidden, config.heads, config.kv_heads, config.head_dim, config.bias
        )
        self.attention_norm = RootMeanSquare(hidden, eps) if at_input else None
        self.mlp = GatedMlp(hidden, config.intermediate_size)
        self.mlp_norm = RootMeanSquare(hidden, eps)
        self.norm = RootMeanSquare(hidden, eps)
        self.lm_head = nn.Linear(hidden, config.outputs, bias=False) if config.own_output else None
        self.embed_tokens = nn.Embedding(config.target.vocab_size, hidden) if config.own_embedding else None
        self.register_buffer("draft_ids", torch.arange(config.outputs))
        self.register_buffer("target_sketch", torch.zeros(0))
        self._borrowed: dict[str, Any] = {}

    @property
    def feature_layers(self) -> tuple[int, ...]:
        return self.config.feature_layers

    # ---- what is the target's ----

    def borrow(self, target: Any) -> FeatureHead:
        """Take embedding and output matrix from a transformers model where the head has none of its own."""
        self._borrowed["embedding"] = target.get_input_embeddings()
        if self.lm_head is None:
            rows = target.get_output_embeddings().weight.detach()
            rows = rows if self.config.draft_vocab_size == 0 else rows[self.draft_ids.to(rows.device)]
            self._borrowed["output"] = rows.to(self.fc.weight.device, self.fc.weight.dtype)
        return self

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., m] -> [..., m, hidden] in the head's dtype."""
        if self.embed_tokens is not None:
            own: Tensor = self.embed_tokens(tokens)
            return own
        borrowed: Tensor = self._borrowed["embedding"](tokens)
        return borrowed.to(self.fc.weight.device, self.fc.weight.dtype)

    # ---- the pieces, as training needs them too ----

    def features(self, states: Tensor) -> Tensor:
        """The target's hidden states of all feature layers, side by side [..., m, n * hidden] -> f [..., m, hidden]."""
        states = states.to(self.fc.weight.device, self.fc.weight.dtype)
        if self.config.norm_features:
            parts = states.reshape(*states.shape[:-1], len(self.config.feature_layers), -1)
            states = F.rms_norm(parts, parts.shape[-1:], None, self.config.norm_eps).flatten(-2)
        fused: Tensor = self.fc(states)
        return fused

    def enter(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """What the attention reads, and the residual stream."""
        normed = self.feature_norm(features)
        both = torch.cat([self.token_norm(embedded), normed], dim=-1)
        if self.join is None or self.attention_norm is None:
            return both, normed if self.config.norm_residual else features
        stream = self.join(both)
        return self.attention_norm(stream), stream

    def leave(self, attended: Tensor, stream: Tensor) -> Tensor:
        """Residuals and the MLP: g [..., m, hidden], which is the next position's feature."""
        stream = stream + attended
        out: Tensor = stream + self.mlp(self.mlp_norm(stream))
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """g [..., hidden] -> logits over the head's own ids [..., outputs]."""
        normed = self.norm(hidden)
        if self.lm_head is not None:
            own: Tensor = self.lm_head(normed)
            return own
        return F.linear(normed, self._borrowed["output"])

    def turn(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return rotary(positions, self.config.head_dim, self.config.rope_theta)

    # ---- drafting ----

    def forward(self, tokens: Tensor, features: Tensor, positions: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        """One forward of m positions of each row over what the cache holds.

        tokens: [B, m], the token after each feature.  features: [B, m, hidden].  positions: [B, m].
        mask: [B, 1, m, kv] bool, True where a query sees a key of the cache after this write; None is causal over
            positions that end the cache.
        cache: a layer of a KV cache: `update(keys, values)` writes and returns all keys and values.
        Returns g [B, m, hidden].
        """
        read, stream = self.enter(self.embed(tokens), features)
        turn = self.turn(positions)
        queries = self.attention.queries(read, turn)
        keys, values = cache.update(*self.attention.keys_and_values(read, turn))
        if mask is None and queries.shape[2] > 1:
            mask = torch.ones(queries.shape[2], keys.shape[2], dtype=torch.bool, device=queries.device)
            mask = mask.tril(keys.shape[2] - queries.shape[2])
        grouped = self.config.heads != self.config.kv_heads
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=grouped)
        return self.leave(self.attention.output(attended), stream)
