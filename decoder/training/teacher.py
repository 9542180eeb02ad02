"""L5: what the frozen target says about a text: hidden states, and its distribution after each token.

Made on the fly, or kept on disk up to a bound. What is kept of a distribution is the hidden state below the output
matrix and the logarithm of the normaliser over the whole vocabulary: the probabilities of any ids follow from them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from decoder.models.features import feature_modules, recorded
from decoder.training.texts import Batch

Kept = tuple[Tensor, Tensor, Tensor, Tensor]  # of one text: the four parts of a `Lesson`, [L, ...]


@dataclass(frozen=True)
class Lesson:
    """states: [B, L, n * hidden].  final: [B, L, hidden], below the output matrix.  normaliser: [B, L], log sum exp.

    choice: [B, L] long, the target's likeliest next token.
    """

    states: Tensor
    final: Tensor
    normaliser: Tensor
    choice: Tensor


class Teacher:
    """The target, frozen.

    layers: feature layers.  store: keeps lessons on disk; None makes each anew.
    """

    def __init__(self, target: Any, layers: Sequence[int], store: LessonStore | None = None) -> None:
        self.target = target.eval()
        self.layers = tuple(layers)
        self.store = store

    def lesson(self, batch: Batch) -> Lesson:
        """What the target says about each text of the batch; rows in the store are not forwarded."""
        store = self.store
        found = [None if store is None else store.get(text.key) for text in batch.texts]
        held = {row: each for row, each in enumerate(found) if each is not None}
        missing = [row for row in range(len(batch.texts)) if row not in held]
        if missing:
            made = self._forward(batch.tokens[missing])
            for place, row in enumerate(missing):
                length = len(batch.texts[row].tokens)
                states, final, normaliser, choice = (part[place, :length].cpu() for part in made)
                held[row] = (states, final, normaliser, choice)
                if store is not None:
                    store.put(batch.texts[row].key, held[row])
        width, device = batch.tokens.shape[1], self.target.device
        parts = []
        for column in zip(*(held[row] for row in range(len(found))), strict=True):
            rows = [F.pad(part, (0, 0) * (part.dim() - 1) + (0, width - part.shape[0])) for part in column]
            parts.append(torch.stack(rows).to(device))
        return Lesson(*parts)

    @torch.no_grad()
    def _forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        found: list[Tensor] = []
        head = self.target.get_output_embeddings()
        handle = head.register_forward_pre_hook(lambda module, inputs: found.append(inputs[0]))
        try:
            with recorded(feature_modules(self.target, self.layers)) as recording:
                logits = self.target(input_ids=tokens.to(self.target.device), use_cache=False).logits  # [B, L, V]
        finally:
            handle.remove()
        normaliser = logits.float().logsumexp(-1)
        choice = logits.argmax(-1)
        return recording.states.to(torch.bfloat16), found[0].to(torch.bfloat16), normaliser, choice


class LessonStore:
    """Lessons on disk, one flat file, appended to until it holds `limit_bytes`. One writer."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._data, self._index = folder / "lessons.bin", folder / "lessons.jsonl"
        self.limit_bytes = limit_bytes
        self._places: dict[str, tuple[int, int, list[int]]] = {}
        if self._index.is_file():
            for line in self._index.read_text(encoding="utf-8").splitlines():
                key, *place = json.loads(line)
                self._places[key] = tuple(place)
        self._end = max((begin + size for begin, size, _ in self._places.values()), default=0)

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: str) -> Kept | None:
        if key not in self._places:
            return None
        begin, size, widths = self._places[key]
        with self._data.open("rb") as file:
            file.seek(begin)
            raw = bytearray(file.read(size))
        length, states, final = widths
        at = 0
        parts = []
        for shape, dtype, width in (
            ((length, states), torch.bfloat16, 2),
            ((length, final), torch.bfloat16, 2),
            ((length,), torch.float32, 4),
            ((length,), torch.int32, 4),
        ):
            count = torch.Size(shape).numel()
            parts.append(torch.frombuffer(raw, dtype=dtype, count=count, offset=at).reshape(shape))
            at += width * count
        return parts[0], parts[1], parts[2], parts[3].long()

    def put(self, key: str, lesson: Kept) -> None:
        states, final, normaliser, choice = lesson
        parts = (states.view(torch.int16), final.view(torch.int16), normaliser.float(), choice.int())
        raw = b"".join(part.contiguous().numpy().tobytes() for part in parts)
        if key in self._places or self._end + len(raw) > self.limit_bytes:
            return
        with self._data.open("r+b" if self._data.exists() else "w+b") as file:
            file.seek(self._end)
            file.write(raw)
        place = (self._end, len(raw), [states.shape[0], states.shape[1], final.shape[1]])
        with self._index.open("a", encoding="utf-8") as file_index:
            file_index.write(json.dumps([key, *place]) + "\n")
        self._places[key] = place
        self._end += len(raw)
