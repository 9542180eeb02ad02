"""A draft model with another tokenizer than the target's.

The draft reads the same text in its own tokens: what is committed is re-encoded from the last word on, so its cache
is cut back to what still holds and never gets a second BOS. Two exact ways from its tokens to the target's:

    intersection   q over the tokens that both vocabularies spell alike, renormalised: with the draft's d,
                       q(t) = d(t) / (sum of d over the shared tokens)
                   The rest of the target's tokens come from the residual, so the output distribution is the target's
                   whatever is shared (Timor et al. 2025, arXiv 2502.05202, "token-level intersection"). Used when both
                   sample.
    text           The draft writes greedily with all its tokens. Its text is encoded with the target's tokenizer,
                   aligned to the committed text at a token boundary, and proposed as a function of the past (the
                   string-level method of the same paper). Used for greedy decoding, and on request.

Knows both vocabularies (`drafters.vocabulary`); the loop sees target ids only.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decoder.drafters.model import Openable
from decoder.drafters.vocabulary import Reader, Vocabulary
from decoder.models.hf import CausalModel
from decoder.text import valid_ids
from decoder.types import Draft, Drafter, ModelSession, RandomSource, Warp, ragged


class CrossTokenizerDrafter(Drafter):
    """Drafts with a causal model of another vocabulary.

    model: the draft, a Hugging Face model or a `CausalModel` of its own vocabulary.
    sample: False proposes greedy text also when the target samples.
    """

    name = "crosstokenizer"
    reads = True

    def __init__(self, model: Any, target_tokenizer: Any, draft_tokenizer: Any, *, sample: bool = True) -> None:
        if model is None:
            raise ValueError(
                "drafter='crosstokenizer' needs a draft model; give draft_model_name, or use drafter='ngram'."
            )
        for name, given in (("target_tokenizer", target_tokenizer), ("draft_tokenizer", draft_tokenizer)):
            if given is None:
                raise ValueError(f"{name}=None: a draft with another tokenizer needs both tokenizers; pass them.")
        self.model: Openable = _own_model(model, draft_tokenizer) if isinstance(model, torch.nn.Module) else model
        self.sample = sample
        self.target_vocabulary, self.draft_vocabulary = Vocabulary(target_tokenizer), Vocabulary(draft_tokenizer)
        self.vocab_size = valid_ids(target_tokenizer)[0]
        self._readers: list[Reader] = []
        self._pair()

    def _pair(self) -> None:
        """Which ids mean the same: [2, N] target and draft ids, and [V] the draft id of each target id (0: none)."""
        target, draft = self.target_vocabulary, self.draft_vocabulary
        pairs = {index: draft.ids[piece] for piece, index in target.ids.items() if piece in draft.ids}
        pairs |= {index: draft.specials[text] for text, index in target.specials.items() if text in draft.specials}
        if target.eos is not None and draft.eos is not None:
            pairs[target.eos] = draft.eos
        size = self.model.vocab_size
        pairs = {ours: theirs for ours, theirs in pairs.items() if ours < self.vocab_size and theirs < size}
        if not pairs:
            raise ValueError("target and draft tokenizers share no token; use drafter='ngram' or another draft model.")
        device = self.model.device
        self._shared = torch.tensor([list(pairs), list(pairs.values())], device=device)
        self._to_draft = torch.zeros(self.vocab_size, dtype=torch.long, device=device)
        self._to_draft[self._shared[0]] = self._shared[1]

    @classmethod
    def for_models(cls, target: Any, draft: Any) -> CrossTokenizerDrafter:
        raise ValueError(
            "drafter='crosstokenizer' needs both tokenizers: name it when the decoder is built, or give "
            "CrossTokenizerDrafter(draft, target_tokenizer, draft_tokenizer)."
        )

    @classmethod
    def for_decoder(cls, decoder: Any) -> CrossTokenizerDrafter:
        own = decoder.draft if decoder.draft_model is None else decoder.draft_model.model  # packed or not
        recipe = cls(own, decoder.tokenizer, decoder.draft_tokenizer)
        return recipe.bind(decoder.target_model, decoder.draft_model)

    def bind(self, target: Any, draft: Any) -> CrossTokenizerDrafter:
        """Speak of as many ids as the target does."""
        if target.vocab_size == self.vocab_size:
            return self
        recipe = copy.copy(self)
        recipe.vocab_size = target.vocab_size
        recipe._pair()
        return recipe

    @property
    def device(self) -> Any:
        return self.model.device

    @property
    def can_batch(self) -> bool:  # type: ignore[override]
        return self.model.can_batch

    def greedy(self) -> CrossTokenizerDrafter:
        recipe = copy.copy(self)
        recipe.sample = False
        return recipe

    def deferred(self) -> CrossTokenizerDrafter:
        recipe = copy.copy(self)
        recipe._deferred = True
        return recipe

    _deferred = False
    _warp: Warp
    _random: RandomSource
    _session: ModelSession

    def start(
        self, contexts: Sequence[Sequence[int]], warp: Warp, random: RandomSource, limit: int
    ) -> CrossTokenizerDrafter:
        """Open a run and let the draft read the prompts."""
        run = copy.copy(self)
        run._warp, run._random = warp, random
        run._readers = [Reader(self.target_vocabulary, self.draft_vocabulary) for _ in contexts]
        run._session = self.model.open(len(contexts), 4 * limit)  # the draft's tokens may be more than the target's
        run._read(contexts)
        if not self._deferred and all(room > 0 for room in run._room()):
            run._catch_up()
        return run

    def _read(self, contexts: Sequence[Sequence[int]]) -> None:
        for reader, context in zip(self._readers, contexts, strict=True):
            reader.extend(context)

    def _room(self) -> list[int]:
        """How many tokens each row may draft within the draft's own context."""
        limit = self.model.context_length
        return [1 << 30 if limit is None else max(0, limit - len(reader.ids) + 1) for reader in self._readers]

    def _catch_up(self) -> Tensor:
        """Feed each row what the cache does not hold; logits [B, 1, draft V] after its last token."""
        starts = [reader.agreed() for reader in self._readers]
        self._session.commit(starts)
        unseen = [reader.ids[start:] for reader, start in zip(self._readers, starts, strict=True)]
        logits = self._session.feed(ragged(unseen), starts, [len(tokens) - 1 for tokens in unseen])
        self._session.commit([len(reader.ids) for reader in self._readers])
        for reader in self._readers:
            reader.held = list(reader.ids)
        return logits

    def _feed(self, tokens: Tensor) -> Tensor:
        """One more draft token a row, [B, 1]; logits [B, 1, draft V]."""
        starts = [len(reader.held) for reader in self._readers]
        logits = self._session.feed(tokens, starts)
        for reader, token in zip(self._readers, tokens[:, 0].tolist(), strict=True):
            reader.held.append(token)
        self._session.commit([len(reader.held) for reader in self._readers])  # as long as `held` says what they are
        return logits

    def propose(self, contexts: Sequence[Sequence[int]], counts: Sequence[int]) -> Draft:
        self._read(contexts)
        counts = [min(pair) for pair in zip(counts, self._room(), strict=True)]
        if not any(counts):
            return Draft.nothing(len(contexts))
        if self._warp.greedy or not self.sample:
            return self._propose_text(contexts, counts)
        return self._propose_shared(contexts, counts)

    # ---- intersection ----

    def _propose_shared(self, contexts: Sequence[Sequence[int]], counts: Sequence[int]) -> Draft:
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        finite: Tensor | None = None
        for i in range(max(counts)):
            logits = self._catch_up() if i == 0 else self._feed(self._to_draft[tokens[-1]])
            healthy = torch.isfinite(logits.amax(-1)).squeeze(1)  # [B]
            finite = healthy if finite is None else finite & healthy
            q = self._law(logits, contexts, tokens)  # [B, 1, V]
            starts = [len(context) + i for context in contexts]
            tokens.append(self._random.draw(q, starts, [int(i < k) for k in counts]))
            if not self._random.coupled:  # with shared noise the token is no sample of q
                laws.append(q)
        return Draft(torch.cat(tokens, dim=1), list(counts), torch.cat(laws, dim=1) if laws else None, finite)

    def _law(self, logits: Tensor, contexts: Sequence[Sequence[int]], tokens: Sequence[Tensor]) -> Tensor:
        """The draft's logits [B, 1, draft V] as q over the target's tokens [B, 1, V]: zero where not shared."""
        shared = logits[..., self._shared[1]]
        shared = shared.masked_fill(shared.amax(-1, keepdim=True) == -torch.inf, 0.0)  # the draft says none of them
        ours = logits.new_full((*logits.shape[:2], self.vocab_size), -torch.inf)
        ours = ours.index_copy_(-1, self._shared[0], shared)
        prefixes: Sequence[Sequence[int]] = contexts
        if tokens and self._warp.processors:
            drafted = torch.cat(list(tokens), dim=1).tolist()
            prefixes = [[*context, *row] for context, row in zip(contexts, drafted, strict=True)]
        scores = self._warp.scores(ours, prefixes)
        barred = scores.amax(-1, keepdim=True) == -torch.inf  # a processor allows only tokens that are not shared
        return self._warp.probs(torch.where(barred, ours.to(scores.dtype), scores))

    # ---- text ----

    def _propose_text(self, contexts: Sequence[Sequence[int]], counts: Sequence[int]) -> Draft:
        texts = [_Text(self, context, count) for context, count in zip(contexts, counts, strict=True)]
        room = self._room()
        finite: Tensor | None = None
        token = torch.zeros(0)
        step = 0
        while any(text.open for text in texts):
            logits = self._catch_up() if step == 0 else self._feed(token)
            peak, token = logits.max(-1)  # [B, 1]
            healthy = torch.isfinite(peak).squeeze(1)
            finite = healthy if finite is None else finite & healthy
            step += 1
            for text, said, most in zip(texts, token[:, 0].tolist(), room, strict=True):
                if text.open:
                    text.say(said)
                    text.open = text.open and step < min(most, 2 * text.count)  # the row's own limits, not the batch's
        found = [text.tokens for text in texts]
        return Draft(ragged(found), [len(tokens) for tokens in found], None, finite)

    def said(self, token: int) -> tuple[bytes | None, int | None]:
        """(text of a draft token, or None where it ends the text; the target's EOS for the draft's)."""
        piece = self.draft_vocabulary.piece(token)
        return piece, self.target_vocabulary.eos if token == self.draft_vocabulary.eos else None

    def aligned(self, context: Sequence[int], text: bytes) -> list[int]:
        """Target tokens for text that follows the committed tokens, which stay as they are.

        The last committed word and the text are encoded together; where a token ends with the committed part, the
        tokens after it are how the target would go on. Where a token spans that boundary, the text is encoded alone.
        """
        ours = self.target_vocabulary
        before = ours.spell(context[ours.word_start(context) :])
        tokens = ours.encode(before + text)
        at = 0
        for index, token in enumerate(tokens):
            if at == len(before):
                return tokens[index:]
            at += len(ours.piece(token) or b"")
        return ours.encode(text)

    def select(self, rows: Sequence[int]) -> None:
        self._session.select(rows)
        self._readers = [self._readers[row] for row in rows]

    def __repr__(self) -> str:
        shared, ours = self._shared.shape[1], len(self.target_vocabulary.ids)
        return f"CrossTokenizerDrafter({shared} tokens shared of the target's {ours})"


class _Text:
    """One row's greedy text of a round, and the target tokens it makes."""

    def __init__(self, drafter: CrossTokenizerDrafter, context: Sequence[int], count: int) -> None:
        self._drafter, self._context = drafter, context
        self.count = count
        self.open = count > 0
        self.tokens: list[int] = []
        self._bytes = b""
        self._said = 0

    def say(self, token: int) -> None:
        """Add a draft token; encode anew once there can be enough."""
        piece, eos = self._drafter.said(token)
        self._bytes += piece or b""
        self._said += 1
        if piece is None or self._said >= self.count:
            self.tokens = self._drafter.aligned(self._context, self._bytes)[: self.count]
        if eos is not None and len(self.tokens) < self.count:
            self.tokens.append(eos)
        self.open = piece is not None and len(self.tokens) < self.count


def _own_model(model: Any, tokenizer: Any) -> CausalModel:
    """The draft in its own vocabulary."""
    size, missing = valid_ids(tokenizer)
    size = min(size, int(model.get_output_embeddings().weight.shape[0]))
    return CausalModel(model, "draft", size, [token for token in missing if token < size])
