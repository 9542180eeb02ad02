"""A draft whose head is cut to N tokens (FR-Spec, arXiv 2502.14856).

With a vocabulary of 50,000 or more, the head is a large part of a small draft's step, and nearly all text is made of
few tokens. The copy's head keeps N rows; the logits of the rest are -inf, so

    q(x) = softmax over the N tokens, 0 elsewhere,

which is as honest a distribution as any other: a token outside comes from the target's residual. Everything but the N
rows is shared with the draft it is made from. Knows no text, except to count tokens in it.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from decoder.drafters.model import ModelDrafter, Openable
from decoder.models.hf import CausalModel
from decoder.models.packed import BlockedLinear
from decoder.models.sharing import own_bytes, weight_sharing_copy
from decoder.types import ModelSession


def most_frequent(texts: Iterable[str | Sequence[int]], tokenizer: Any, size: int) -> list[int]:
    """The `size` most frequent token ids of texts (or of ids), then, if there are not enough, the lowest other ids."""
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(tokenizer(text, add_special_tokens=False)["input_ids"] if isinstance(text, str) else text)
    ranked = sorted(counts, key=lambda token: (-counts[token], token))[:size]
    chosen = set(ranked)
    fill = (token for token in sorted(tokenizer.get_vocab().values()) if token not in chosen)
    return ranked + [token for token, _ in zip(fill, range(size - len(ranked)), strict=False)]


def cut_head(model: CausalModel, tokens: Sequence[int]) -> CausalModel:
    """The model with only these rows of its head; logits [B, n, N] in the order of `tokens`."""
    twin = weight_sharing_copy(model.model)
    whole = twin.get_output_embeddings()
    rows = torch.tensor(list(tokens), device=whole.weight.device)
    head = nn.Linear(whole.weight.shape[1], len(tokens), bias=False, device="meta")
    head.weight = nn.Parameter(whole.weight.detach()[rows], requires_grad=False)
    if getattr(whole, "bias", None) is not None:
        head.bias = nn.Parameter(whole.bias.detach()[rows], requires_grad=False)
    twin.set_output_embeddings(BlockedLinear(head) if isinstance(whole, BlockedLinear) else head)
    cut = CausalModel(twin, model.role)
    cut.layers = model.layers
    return cut


class ReducedModel:
    """A model whose logits cover only `tokens`, as a model of the whole vocabulary: -inf elsewhere."""

    def __init__(self, inner: Openable, tokens: Sequence[int], vocab_size: int) -> None:
        self.inner = inner
        self.tokens = torch.tensor(list(tokens), device=inner.device)  # [N]
        self.vocab_size = self.embedding_size = vocab_size
        self.context_length = inner.context_length
        self.device = inner.device
        self.can_batch = inner.can_batch

    def open(self, rows: int, limit: int, cache: Any = None) -> ReducedSession:
        return ReducedSession(self, self.inner.open(rows, limit, cache))


class ReducedSession:
    """A run of a `ReducedModel`."""

    def __init__(self, model: ReducedModel, inner: ModelSession) -> None:
        self.model, self._inner = model, inner
        self.vocab_size = model.vocab_size
        self._readable = model.inner.embedding_size

    @property
    def lengths(self) -> list[int]:
        return self._inner.lengths

    @property
    def cache(self) -> Any:
        return self._inner.cache

    def feed(self, tokens: Tensor, starts: Sequence[int], at: Sequence[int] | None = None) -> Tensor:
        if self._readable < self.vocab_size:  # a draft that lacks an id reads another instead: q stays honest
            tokens = tokens.masked_fill(tokens >= self._readable, 0)
        logits = self._inner.feed(tokens, starts, at)  # [B, n, N]
        whole = logits.new_full((*logits.shape[:2], self.vocab_size), -torch.inf)
        return whole.index_copy_(-1, self.model.tokens.to(logits.device), logits)

    def commit(self, lengths: Sequence[int]) -> None:
        self._inner.commit(lengths)

    def select(self, rows: Sequence[int]) -> None:
        self._inner.select(rows)


class ReducedVocabularyDrafter(ModelDrafter):
    """Drafts with the draft model, its head cut to some tokens.

    tokens: a list of ids, or how many of the lowest ids (byte-pair vocabularies number their merges by frequency, so
        these are the frequent ones of the tokenizer's own training text); None is a quarter of the vocabulary.
        `measured` counts them in texts of your own.
    draft: the model to cut, where it is not the decoder's draft model; for instance another drafter's `.model`.
    """

    name = "reduced"

    def __init__(
        self, tokens: int | Sequence[int] | None = None, *, draft: CausalModel | None = None, sample: bool = True
    ) -> None:
        super().__init__(cast(Any, None), sample=sample)  # the model is made by `bind`
        self._asked, self._given = tokens, draft
        self._bound: Any = None
        self.tokens: tuple[int, ...] = ()
        self.nbytes = 0  # beside the draft

    @classmethod
    def for_models(cls, target: Any, draft: Any) -> ReducedVocabularyDrafter:
        return cls().bind(target, draft)

    @classmethod
    def measured(
        cls, texts: Iterable[str | Sequence[int]], tokenizer: Any, size: int, **options: Any
    ) -> ReducedVocabularyDrafter:
        """The drafter over the `size` most frequent tokens of these texts."""
        return cls(most_frequent(texts, tokenizer, size), **options)

    def bind(self, target: Any, draft: Any) -> ReducedVocabularyDrafter:
        """Cut the head, once for each pair of models."""
        model = self._given if self._given is not None else draft
        if model is None:
            raise ValueError("drafter='reduced' cuts a draft model's head; give draft_model_name, or draft=.")
        if self._bound == (target, model):
            return self
        recipe = self if self._bound is None else copy.copy(self)
        chosen = choose_tokens(self._asked, model, target.vocab_size)
        cut = cut_head(model, chosen)
        recipe.tokens, recipe._bound = tuple(chosen), (target, model)
        recipe.model = ReducedModel(cut, chosen, target.vocab_size)
        recipe.nbytes = own_bytes(cut.model, model.model)
        return recipe

    def _score(self, logits: Tensor, contexts: Sequence[Sequence[int]], drafted: Tensor | None) -> Tensor:
        """As for any draft; where processors leave none of the tokens, the draft speaks unprocessed, and is refused."""
        scores = super()._score(logits, contexts, drafted)
        barred = scores.amax(-1, keepdim=True) == -torch.inf
        return torch.where(barred, logits.to(scores.dtype), scores)

    def __repr__(self) -> str:
        if self._bound is None:
            return "ReducedVocabularyDrafter(not bound)"
        return f"ReducedVocabularyDrafter({len(self.tokens)} tokens, {self.nbytes / 2**20:.1f} MiB beside the draft)"


def choose_tokens(asked: int | Sequence[int] | None, model: CausalModel, vocab_size: int) -> list[int]:
    """Ascending ids the cut head keeps, EOS always among them.

    Raises:
        TypeError, ValueError: no ids, or ids the draft's head or the target's vocabulary does not have.
    """
    size = min(vocab_size, model.head_size)
    if asked is None:
        asked = max(1, size // 4)
    if isinstance(asked, (bool, str)) or not isinstance(asked, (int, Sequence)):
        raise TypeError(f"tokens={asked!r} must be a number of tokens or a list of ids.")
    ids = set(range(asked)) if isinstance(asked, int) else set(asked)
    if not ids or not 0 <= min(ids) <= max(ids) < size:
        raise ValueError(f"tokens={_shortened(asked)} must name at least one id, all in [0, {size}).")
    eos = getattr(getattr(model.model, "generation_config", None), "eos_token_id", None)
    ids |= {token for token in ([eos] if isinstance(eos, int) else eos or []) if token < size}
    return sorted(ids - set(model.banned))


def _shortened(asked: int | Sequence[int]) -> str:
    text = repr(asked)
    return text if len(text) <= 60 else f"{text[:57]}..."
