"""A smaller model drafts, one forward per token (Leviathan et al. 2023, arXiv 2211.17192).

The draft samples from its own warped distribution q, or takes its argmax when decoding is greedy. Its cache holds
what it has fed itself; after full acceptance it lacks its own last token, and then feeds two.

Drafting may stop early where the draft is unsure: where max q of the next token is below `stop_below`. That is decided
before the token is sampled, so whether a position is drafted depends on the past and on q only, and the output
distribution stays exact; dropping a token once it is sampled would change it. It costs a host read for each drafted
token.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from typing_extensions import Self

from decoder.checks import in_range
from decoder.types import Draft, Drafter, ModelSession, RandomSource, Warp, ragged


class Openable(Protocol):
    """A model that can start a run: `models.hf.CausalModel` or a table.

    vocab_size: V of its logits.   embedding_size: ids it can read.   context_length: positions; None without a limit.
    device: where its logits are.   can_batch: whether rows of different lengths may share a run.
    """

    vocab_size: int
    embedding_size: int
    context_length: int | None
    device: torch.device
    can_batch: bool

    def open(self, rows: int, limit: int, cache: Any = None) -> ModelSession: ...


def check_threshold(value: Any) -> float:
    """A probability below 1 at which drafting stops."""
    return in_range("stop_below", value, 0, 1, "use 0 to never stop early.", include_high=False)


class ModelDrafter(Drafter):
    """Drafts with a causal model of the target's vocabulary.

    sample: draw from q (the default when the target samples); False drafts greedily, and says so by giving no q.
    stop_below: [0, 1); stop drafting for a row where its largest probability of the next token is below; 0 never stops.
    """

    name = "model"
    reads = True

    stop_below = 0.0
    _deferred = False

    def __init__(self, model: Openable, *, sample: bool = True, stop_below: float = 0.0) -> None:
        self.model: Openable = model
        self.sample = sample
        self.stop_below = check_threshold(stop_below)
        self._session: ModelSession | None = None
        self._width = 0  # drafted in the round under way
        self._cache: Any = None

    @classmethod
    def for_models(cls, target: Any, draft: Any) -> ModelDrafter:
        if draft is None:
            raise ValueError("drafter='model' needs a draft model; give draft_model_name, or use drafter='ngram'.")
        return cls(draft)

    @property
    def device(self) -> Any:
        return self.model.device

    @property
    def can_batch(self) -> bool:  # type: ignore[override]
        return bool(self.model.can_batch)

    @property
    def kv_cache(self) -> Any:
        return None if self._session is None else self._session.cache

    def start(self, contexts: Sequence[Sequence[int]], warp: Warp, random: RandomSource, limit: int) -> Self:
        """Open a run and prefill the prompts."""
        run = copy.copy(self)
        run._warp, run._random = warp, random
        run._greedy = warp.greedy or not self.sample
        run._session = self._open(len(contexts), limit)
        run._room = self.model.context_length
        if not self._deferred and (run._room is None or all(len(context) <= run._room for context in contexts)):
            run._prefill(contexts)
        return run

    def _prefill(self, contexts: Sequence[Sequence[int]]) -> None:
        self._catch_up(contexts)

    def _open(self, rows: int, limit: int) -> ModelSession:
        return self.model.open(rows, limit, self._cache)

    def greedy(self) -> Self:
        """The same recipe, drafting by argmax."""
        recipe = copy.copy(self)
        recipe.sample = False
        return recipe

    def deferred(self) -> Self:
        """The same recipe, feeding the prompt with the first proposal."""
        recipe = copy.copy(self)
        recipe._deferred = True
        return recipe

    def stopping_below(self, threshold: float) -> Self:
        """The same recipe, stopping where the draft's largest probability is below the threshold."""
        recipe = copy.copy(self)
        recipe.stop_below = check_threshold(threshold)
        return recipe

    def with_cache(self, cache: Any) -> Self:
        recipe = copy.copy(self)
        recipe._cache = cache
        return recipe

    _warp: Warp
    _random: RandomSource
    _greedy: bool
    _room: int | None

    @property
    def session(self) -> ModelSession:
        assert self._session is not None, "start() opens the session"
        return self._session

    def _catch_up(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        """Feed every row what it has not seen; logits [B, 1, V] after each row's last token."""
        held = [min(have, len(context) - 1) for have, context in zip(self.session.lengths, contexts, strict=True)]
        unseen = [context[have:] for have, context in zip(held, contexts, strict=True)]
        logits = self.session.feed(ragged(unseen), held, [len(tokens) - 1 for tokens in unseen])
        self.session.commit([len(context) for context in contexts])
        return logits

    def _budget(self, contexts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int]:
        """A row drafts only where every token it feeds has a position in the draft's own context."""
        if self._room is None:
            return list(counts)
        return [max(0, min(k, self._room - len(context) + 1)) for k, context in zip(counts, contexts, strict=True)]

    def propose(self, contexts: Sequence[Sequence[int]], counts: Sequence[int]) -> Draft:
        counts = self._budget(contexts, counts)
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        peaks: list[Tensor] = []  # NaN or infinite where the logits were NaN or all -inf
        if any(counts):
            logits = self._catch_up(contexts)
        for i in range(max(counts)):
            if i > 0:
                logits = self.session.feed(tokens[-1], [len(context) + i - 1 for context in contexts])
            drafted = torch.cat(tokens, dim=1) if tokens and self._remembers else None
            scores = self._score(logits, contexts, drafted)  # [B, 1, V]
            q = None if self._greedy else self._warp.probs(scores)
            if self.stop_below:
                counts = self._stop_unsure(torch.softmax(scores, -1) if q is None else q, counts, i)
                if max(counts) == i:
                    break
            if q is None:
                peak, token = scores.max(-1)  # [B, 1]
            else:
                peak = q.amax(-1)
                token = self._random.draw(q, [len(context) + i for context in contexts], [int(i < k) for k in counts])
                if not self._random.coupled:  # with shared noise the token is no sample of q
                    laws.append(q)
            peaks.append(peak)
            tokens.append(token)
        self._width = len(tokens)
        if not tokens:
            return Draft.nothing(len(contexts))
        finite = torch.isfinite(torch.cat(peaks, dim=1)).all(1)
        return Draft(torch.cat(tokens, dim=1), counts, torch.cat(laws, dim=1) if laws else None, finite)

    def _stop_unsure(self, q: Tensor, counts: Sequence[int], i: int) -> list[int]:
        """Rows whose q [B, 1, V] has no likely token draft no further than i: known before any is sampled."""
        peaks = q.amax((1, 2)).tolist()
        return [min(k, i) if peak < self.stop_below else k for k, peak in zip(counts, peaks, strict=True)]

    @property
    def _remembers(self) -> bool:
        return bool(self._warp.processors)

    def _score(self, logits: Tensor, contexts: Sequence[Sequence[int]], drafted: Tensor | None) -> Tensor:
        """Processed scores after the drafted prefix."""
        if drafted is None:
            return self._warp.scores(logits, contexts)
        prefixes = [list(context) + row for context, row in zip(contexts, drafted.tolist(), strict=True)]
        return self._warp.scores(logits, prefixes)

    def keep(self, accepted: Sequence[int]) -> None:
        # Of the drafted tokens all but the last were fed; the accepted ones among them are true now.
        fed = max(self._width - 1, 0)
        self.session.commit([have + min(n, fed) for have, n in zip(self.session.lengths, accepted, strict=True)])
        self._width = 0

    def select(self, rows: Sequence[int]) -> None:
        self.session.select(rows)
