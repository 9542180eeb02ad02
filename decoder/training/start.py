"""L5: where a head's weights begin, before the first step of gradient descent.

The last layer's hidden state h_i, divided by its root mean square, is the feature y_i. A head that only joins it with
the embedding of the next token has the closed form

    y_{i+1} ~ W [embedding of x_{i+1} ; y_i]            least squares over a few texts, with a ridge

which is EAGLE's regression (arXiv 2401.15077) solved at once. The layer's inputs begin as the target's last layer
where that has the same shape, else as noise; its outputs are then solved for what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from decoder.heads.eagle import FeatureHead
from decoder.models.sharing import find_layers
from decoder.training.teacher import Lesson
from decoder.training.texts import Batch

_NAMES = {  # the head's matrices <- a Llama-like layer's
    "mlp.gate_proj.weight": "mlp.gate_proj.weight",
    "mlp.up_proj.weight": "mlp.up_proj.weight",
    "attention.q_proj.weight": "self_attn.q_proj.weight",
    "attention.k_proj.weight": "self_attn.k_proj.weight",
    "attention.v_proj.weight": "self_attn.v_proj.weight",
}
_OUTPUTS = ("attention.o_proj.weight", "mlp.down_proj.weight")


@torch.no_grad()
def initialise(head: FeatureHead, target: Any, *, copy_layer: bool = True, scale: float = 0.02) -> list[str]:
    """Noise of standard deviation `scale`, zero outputs, the last layer's inputs; names what was copied."""
    for name, parameter in head.named_parameters():
        if parameter.dim() == 2 and not name.startswith(("lm_head", "embed_tokens")):
            nn.init.normal_(parameter, std=scale if name not in _OUTPUTS else 0.0)
    hidden = head.config.hidden_size
    if head.config.target.hidden_size == hidden:  # the last feature layer passes through
        head.fc.weight[:, :-hidden] *= 0.1
        head.fc.weight[:, -hidden:] = torch.eye(hidden)
    if head.join is not None:
        head.join.weight[:, hidden:] += torch.eye(hidden)
    if head.lm_head is not None:
        rows = target.get_output_embeddings().weight
        head.lm_head.weight.copy_(rows[head.draft_ids.to(rows.device)])
    if head.embed_tokens is not None:
        head.embed_tokens.weight.copy_(target.get_input_embeddings().weight)
    final = _final_norm(target)
    if final is not None and final.shape == head.norm.weight.shape:
        head.norm.weight.copy_(final)
    return _copy_layer(head, target) if copy_layer else []


def _final_norm(target: Any) -> Tensor | None:
    """The weight of the norm below the output matrix, where the model calls it `norm`, as Llama's kin do."""
    norm = getattr(target.get_decoder(), "norm", None)
    weight = getattr(norm, "weight", None)
    return weight if isinstance(weight, Tensor) else None


def _copy_layer(head: FeatureHead, target: Any) -> list[str]:
    given = dict(find_layers(target)[2][-1].named_parameters())
    copied = []
    for own, theirs in _NAMES.items():
        matrix: Tensor = head.get_parameter(own)
        source = given.get(theirs)
        if source is None or source.shape[0] != matrix.shape[0]:
            continue
        if source.shape == matrix.shape:
            matrix.copy_(source)
        elif own.startswith("attention.") and matrix.shape[1] == 2 * source.shape[1]:
            matrix[:, source.shape[1] :] = source.to(matrix.dtype)  # the half that reads the feature
        else:
            continue
        copied.append(own)
    return copied


class LeastSquares:
    """min over W of sum |y - W x|^2 + ridge |W|^2, gathered batch by batch. x: [n, inputs], y: [n, outputs]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self._gram, self._cross = torch.zeros(inputs, inputs), torch.zeros(inputs, outputs)
        self._squares, self._count = 0.0, 0

    def add(self, x: Tensor, y: Tensor) -> None:
        self._gram += (x.T @ x).cpu()
        self._cross += (x.T @ y).cpu()
        self._squares += float(y.square().sum())
        self._count += len(x)

    def solve(self, ridge: float) -> tuple[Tensor, float]:
        """W [outputs, inputs], and the share of sum |y|^2 that it explains. ridge: in mean squares of an input."""
        scale = float(self._gram.diagonal().mean())
        damped = self._gram + ridge * scale * torch.eye(len(self._gram))
        weight = torch.linalg.solve(damped, self._cross)
        explained = 2 * float((weight * self._cross).sum()) - float((weight * (self._gram @ weight)).sum())
        return weight.T.contiguous(), explained / max(self._squares, 1e-9)


@torch.no_grad()
def fit_outputs(head: FeatureHead, lessons: Sequence[tuple[Batch, Lesson]], ridge: float = 1e-2) -> dict[str, float]:
    """Solve for the matrices that write to the residual stream, one by one, each for what the ones before left.

    `join`, then the attention's output, then the MLP's; their inputs stay as they are. Returns the share of the
    variance left over that each explained, by name.

    Raises:
        ValueError: a head without a join at its input.
    """
    if head.join is None:
        raise ValueError("only a head that joins at its input can be fitted; use joins='input'.")
    stages = {"join": head.join, "attention": head.attention.o_proj, "mlp": head.mlp.down_proj}
    explained = {}
    for name, matrix in stages.items():
        found = LeastSquares(matrix.in_features, matrix.out_features)
        for batch, lesson in lessons:
            read, left = _stage(head, name, batch, lesson)
            learn = batch.learn[:, 1:].to(read.device)
            found.add(read[learn], left[learn])
        weight, explained[name] = found.solve(ridge)
        matrix.weight.copy_(weight)
    return explained


def _stage(head: FeatureHead, name: str, batch: Batch, lesson: Lesson) -> tuple[Tensor, Tensor]:
    """What the matrix of this stage reads at positions 0 ... L - 2, and what is left for it to say: [B, L - 1, ...]."""
    size, eps = head.config.hidden_size, head.config.norm_eps
    assert head.join is not None and head.attention_norm is not None
    wanted = F.rms_norm(lesson.states[:, 1:, -size:].float(), (size,), None, eps)
    features = head.features(lesson.states)[:, :-1]
    embedded = head.embed(batch.tokens.to(features.device)[:, 1:])
    both = torch.cat([head.token_norm(embedded), head.feature_norm(features)], -1)
    if name == "join":
        return both, wanted
    stream = head.join(both)
    read = head.attention_norm(stream)
    turn = head.turn(torch.arange(read.shape[1], device=read.device)[None])
    keys, values = head.attention.keys_and_values(read, turn)
    grouped = head.config.heads != head.config.kv_heads
    queries = head.attention.queries(read, turn)
    attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=grouped)
    flat = attended.transpose(1, 2).flatten(-2)
    if name == "attention":
        return flat, wanted - stream
    stream = stream + head.attention.o_proj(flat)
    normed = head.mlp_norm(stream)
    inner = F.silu(head.mlp.gate_proj(normed)) * head.mlp.up_proj(normed)
    return inner, wanted - stream
