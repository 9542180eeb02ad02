"""Medusa's heads: several next tokens from one hidden state, none from another (arXiv 2401.10774).

    q_j = softmax of U_j r_j(h_t),   r_j(h) = h + silu(W_j h + b_j), so often as the configuration says

h_t is the target's last hidden state, behind its final norm; head j guesses the token j + 1 places after the one that
the target itself guesses from h_t. The guesses do not see each other, and q is honest all the same: each token is drawn
from its own q_j whatever was drawn before.

Layout: config.json with medusa_num_heads and medusa_num_layers; tensors `j.i.linear.weight` and `.bias` of layer i of
head j, `j.n.weight` of its output matrix.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from decoder.heads.config import TargetShape
from decoder.heads.published import CONFIG, read_tensors
from decoder.models.features import FeatureTape


class _Residual(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class MedusaHeads(nn.Module):
    """[B, 1, hidden] -> logits of head j [B, 1, V]. `norm` is the target's final norm, given by `borrow`."""

    def __init__(self, target: TargetShape, heads: int, layers: int) -> None:
        super().__init__()
        self.target = target
        self.heads = nn.ModuleList(
            nn.Sequential(
                *[_Residual(target.hidden_size) for _ in range(layers)],
                nn.Linear(target.hidden_size, target.vocab_size, bias=False),
            )
            for _ in range(heads)
        )
        self._borrowed: dict[str, Any] = {}

    @property
    def feature_layers(self) -> tuple[int, ...]:
        return (self.target.layers,)

    def borrow(self, target: Any) -> MedusaHeads:
        """Take the final norm from a transformers model.

        Raises:
            ValueError: it has none that is called `norm`, as Llama's kin have.
        """
        norm = getattr(target.get_decoder(), "norm", None)
        if norm is None:
            raise ValueError(f"Medusa's heads need a final norm called 'norm'; {type(target).__name__} has none.")
        self._borrowed["norm"] = norm
        return self

    def logits(self, states: Tensor, head: int) -> Tensor:
        """states: [B, 1, hidden] of the last layer, before the final norm."""
        normed = self._borrowed["norm"](states)
        out: Tensor = self.heads[head](normed.to(next(self.parameters()).dtype))
        return out


def is_medusa(folder: Path) -> bool:
    return "medusa_num_heads" in json.loads((folder / CONFIG).read_text(encoding="utf-8"))


def load_medusa(folder: Path, target: TargetShape) -> MedusaHeads:
    """Medusa's heads of a published folder, in float32.

    Raises:
        ValueError: tensors that are missing, or of another target.
    """
    given = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    tensors = {name.removeprefix("medusa_head."): tensor for name, tensor in read_tensors(folder).items()}
    count = len({name.split(".")[0] for name in tensors})  # a folder may hold more heads than its configuration says
    heads = MedusaHeads(target, min(count, int(given["medusa_num_heads"])), int(given.get("medusa_num_layers", 1)))
    state = heads.state_dict()
    for name in state:
        source = tensors.get(name.removeprefix("heads."))
        if source is None or source.shape != state[name].shape:
            found = "is missing" if source is None else f"has shape {list(source.shape)}"
            raise ValueError(
                f"head={str(folder)!r}: {name.removeprefix('heads.')} {found}, this target needs "
                f"{list(state[name].shape)}; use the heads of this very model."
            )
        state[name] = source.float()
    heads.load_state_dict(state)
    return heads


class MedusaModel:
    """The heads as a model that drafts at most so many tokens; it reads no token and has no cache."""

    def __init__(self, head: MedusaHeads, vocab_size: int, context_length: int | None, can_batch: bool) -> None:
        self.head = head
        self.vocab_size, self.context_length, self.can_batch = vocab_size, context_length, can_batch
        self.embedding_size = head.target.vocab_size
        self.device = next(head.parameters()).device
        self.most = len(head.heads)

    def open(self, rows: int, limit: int, cache: Any = None, tape: FeatureTape | None = None) -> MedusaSession:
        assert tape is not None, "attach() gives the tape of the target's run"
        return MedusaSession(self, rows, tape)


class MedusaSession:
    """Implements `ModelSession`: the next logits are those of the next head."""

    cache = None

    def __init__(self, model: MedusaModel, rows: int, tape: FeatureTape) -> None:
        self.model, self.tape = model, tape
        self.vocab_size = model.vocab_size
        self.lengths = [1] * rows
        self._states: Tensor | None = None
        self._next = 0

    def catch_up(self) -> None:
        """Nothing that went by unread is missed."""
        self.lengths = [max(have, begin + 1) for have, begin in zip(self.lengths, self.tape.begins, strict=True)]

    def feed(self, tokens: Tensor, starts: Sequence[int], at: Sequence[int] | None = None) -> Tensor:
        if at is not None:  # the state before each row's last token
            last = [start - 1 + n for start, n in zip(starts, at, strict=True)]
            self._states = self.tape.read(last, [place + 1 for place in last]).to(self.model.device)
            self._next = 0
        assert self._states is not None
        logits = self.model.head.logits(self._states, self._next)
        self._next += 1
        missing = self.vocab_size - logits.shape[-1]
        return F.pad(logits, (0, missing), value=-torch.inf) if missing > 0 else logits[..., : self.vocab_size]

    def commit(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    def select(self, rows: Sequence[int]) -> None:
        self.lengths = [self.lengths[row] for row in rows]
        self.tape.select(rows)
        self._states = None
