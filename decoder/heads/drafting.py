"""A head as a model that drafts: `open` starts a run, whose session is fed tokens and returns logits.

The session is addressed by token, as every `ModelSession` is: token t is read with the feature of position t - 1, so
the first token of a text is never fed, and slot t - 1 of the cache holds what token t gave. Features come from the
target's tape as far as it reaches; a token beyond is read with the head's own output at the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decoder.heads.eagle import FeatureHead
from decoder.models.cache import PositionCache
from decoder.models.features import FeatureTape
from decoder.models.inputs import attention_mask


class HeadModel:
    """A head beside its target. context_length: the target's.  embedding_size: ids that it can read."""

    def __init__(self, head: FeatureHead, vocab_size: int, context_length: int | None, can_batch: bool) -> None:
        self.head = head
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.can_batch = can_batch
        self.most: int | None = None  # tokens it can draft in a row
        self.embedding_size = head.config.target.vocab_size
        self.device = head.fc.weight.device

    def open(self, rows: int, limit: int, cache: Any = None, tape: FeatureTape | None = None) -> HeadSession:
        """A run over `rows` rows; features are read from `tape`."""
        if not isinstance(cache, HeadCache) or cache.model is not self.head or len(cache.lengths) != rows:
            cache = HeadCache(self.head, rows, limit)
        cache.slots.extend_limit(limit)
        assert tape is not None, "attach() gives the tape of the target's run"
        return HeadSession(self, cache, tape)


class HeadCache:
    """The head's keys and values, addressed by token.

    holes: of each row, slots [low, high) that were never written: tokens that went by while nobody recorded.
    """

    def __init__(self, head: FeatureHead, rows: int, limit: int) -> None:
        self.model = head
        self.slots = PositionCache(1, rows, limit)
        self.holes: list[list[tuple[int, int]]] = [[] for _ in range(rows)]

    @property
    def lengths(self) -> list[int]:
        """Tokens read per row, the first one included, of which nothing is held."""
        return [length + 1 for length in self.slots.lengths]

    def commit(self, lengths: Sequence[int]) -> None:
        kept = [max(0, length - 1) for length in lengths]
        self.slots.commit(kept)
        self.holes = [
            [(low, min(high, end)) for low, high in held if low < end]
            for held, end in zip(self.holes, kept, strict=True)
        ]

    def skip_to(self, begins: Sequence[int]) -> None:
        """Rows that hold less than begins[b] slots leave a hole up to there."""
        held = self.slots.lengths
        if all(have >= begin for have, begin in zip(held, begins, strict=True)):
            return
        for row, (have, begin) in enumerate(zip(held, begins, strict=True)):
            if have < begin:
                self.holes[row].append((have, begin))
        self.slots.place([0] * len(held), max(begins))
        self.slots.commit([max(pair) for pair in zip(held, begins, strict=True)])

    def select(self, rows: Sequence[int]) -> None:
        self.slots.select(rows)
        self.holes = [self.holes[row] for row in rows]

    @property
    def nbytes(self) -> int:
        return self.slots.nbytes


class HeadSession:
    """One run of a head: implements `ModelSession`. `commit` counts what was read with the target's features only."""

    def __init__(self, model: HeadModel, cache: HeadCache, tape: FeatureTape) -> None:
        self.model, self.cache, self.tape = model, cache, tape
        self.vocab_size = model.vocab_size
        self._own: Tensor | None = None  # [B, 1, hidden], the head's output at each row's last token

    @property
    def lengths(self) -> list[int]:
        return self.cache.lengths

    def catch_up(self) -> None:
        """What went by unread is left out."""
        self.cache.skip_to(self.tape.begins)

    def feed(self, tokens: Tensor, starts: Sequence[int], at: Sequence[int] | None = None) -> Tensor:
        """Logits [B, 1, V] after token `at[b]` of each row: with `at` the target's features are read, without the own.

        starts: positions of the tokens.
        """
        head, device = self.model.head, self.model.device
        tokens = tokens.to(device)
        slots = [start - 1 for start in starts]
        if at is None:
            # never committed: the next round reads the accepted ones again
            assert self._own is not None and tokens.shape[1] == 1
            features = self._own
        else:
            features = head.features(self.tape.read(slots, [slot + n + 1 for slot, n in zip(slots, at, strict=True)]))
        cache = self.cache.slots
        cache.place(slots, tokens.shape[1])
        count = tokens.shape[1]
        hidden = head(tokens, features, self._positions(slots, count), self._mask(slots, count), cache.layers[0])
        if at is not None:
            last = torch.tensor(at, device=device)
            hidden = hidden[torch.arange(len(slots), device=device), last, None]
        self._own = hidden
        return self._full(head.logits(hidden))

    def _positions(self, slots: Sequence[int], count: int) -> Tensor:
        begin = torch.tensor(slots, device=self.model.device)[:, None]
        return begin + torch.arange(count, device=self.model.device)

    def _mask(self, slots: Sequence[int], count: int) -> Tensor | None:
        """None where all rows are of one length and whole."""
        if len(set(slots)) == 1 and not any(self.cache.holes):
            return None
        seen = attention_mask(slots, count, None, self.model.device)  # [B, 1, m, kv]
        for row, held in enumerate(self.cache.holes):
            for low, high in held:
                seen[row, :, :, low:high] = False
        return seen

    def _full(self, logits: Tensor) -> Tensor:
        """[B, 1, outputs] -> [B, 1, V]; ids that the head cannot propose get -inf."""
        head = self.model.head
        if head.config.draft_vocab_size == 0 and logits.shape[-1] == self.vocab_size:
            return logits
        width = max(self.vocab_size, head.config.target.vocab_size)
        out = logits.new_full((*logits.shape[:2], width), -torch.inf)
        out[..., head.draft_ids] = logits
        return out[..., : self.vocab_size]

    def commit(self, lengths: Sequence[int]) -> None:
        self.cache.commit(lengths)

    def select(self, rows: Sequence[int]) -> None:
        self.cache.select(rows)
        self.tape.select(rows)
        self._own = None
