"""What the target said at each emitted token: logits, scores, log-probabilities, in transformers' names and meanings.

    logits    the target's own, as `output_logits`
    scores    after processors and warpers, as `output_scores`: filtered tokens at -inf
    logprobs  log-softmax of the logits: the target's distribution before processors and warpers

They are taken from the forwards that the loop makes anyway, by wrapping the session and the warper of one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from decoder.results import GenerationResult, TokenLogprobs
from decoder.trees import Tree
from decoder.types import Contexts, ModelSession, Rows, Step
from decoder.warpers import Warper


@dataclass
class Said:
    """Of one row, one entry for each emitted token; empty where not asked for. Tensors are [V], float32."""

    logits: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class Recorder:
    """Keeps what was asked for, row by row. logprobs: how many of the likeliest tokens beside each one; None: none."""

    def __init__(self, *, logits: bool, scores: bool, logprobs: int | None) -> None:
        self._want_logits, self._want_scores, self._top = logits, scores, logprobs
        self._fed = torch.empty(0)  # [B, n, V], of the round under way
        self._warped: list[Tensor] = []  # [1, 1, V] for each position in turn, or one [B, n, V]
        self.rows: dict[int, Said] = {}

    def session(self, session: ModelSession) -> ModelSession:
        recorded: Any = _RecordedSession(session, self)
        return recorded  # type: ignore[no-any-return]  # it is what it wraps, for all else

    def warp(self, warp: Warper) -> Warper:
        recorded: Any = _RecordedWarp(warp, self)
        return recorded  # type: ignore[no-any-return]

    def take(self, step: Step) -> None:
        """Keep the round's part that is in the texts: emitted token i of a row follows position i of its logits."""
        in_turn = len(self._warped) != 1 or (len(step.rows), self._fed.shape[1]) != tuple(self._warped[0].shape[:2])
        position = 0
        for b, part in enumerate(step.rows):
            said = self.rows.setdefault(part.row, Said())
            after = [0, *(node + 1 for node in part.path)] if part.parents else range(len(part.emitted))
            for i, token in zip(after, part.emitted, strict=False):
                logits = self._fed[b, i].float()
                if self._want_logits:
                    said.logits.append(logits.clone())
                if self._top is not None:
                    said.logprobs.append(_logprobs(logits, token, self._top))
                if self._want_scores:
                    own = self._warped[position][0, 0] if in_turn else self._warped[0][b, i]
                    said.scores.append(own.clone())
                position += 1
        self._warped = []

    def fed(self, logits: Tensor) -> None:
        self._fed = logits

    def warped(self, scores: Tensor) -> None:
        if self._want_scores:
            self._warped.append(scores)


def _logprobs(logits: Tensor, token: int, top: int) -> TokenLogprobs:
    every = torch.log_softmax(logits, -1)
    values, ids = every.topk(min(top, len(every)))
    likeliest = tuple(zip(map(int, ids.tolist()), values.tolist(), strict=True))
    return TokenLogprobs(token, float(every[token]), likeliest)


class _RecordedSession:
    """A session that shows its recorder every forward's logits."""

    def __init__(self, session: ModelSession, recorder: Recorder) -> None:
        self._session, self._recorder = session, recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def feed(self, tokens: Tensor, starts: Sequence[int], at: Sequence[int] | None = None, **shape: Any) -> Tensor:
        logits = self._session.feed(tokens, starts, at, **shape)
        self._recorder.fed(logits)
        return logits


class _RecordedWarp:
    """A warper that shows its recorder the scores from which tokens are taken."""

    def __init__(self, warp: Warper, recorder: Recorder) -> None:
        self._warp, self._recorder = warp, recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._warp, name)

    def scores(
        self,
        logits: Tensor,
        contexts: Contexts,
        drafted: Tensor | None = None,
        rows: Rows = None,
        tree: Tree | None = None,
    ) -> Tensor:
        scores = self._warp.scores(logits, contexts, drafted, rows, tree)
        self._recorder.warped(self._warp.warped_scores(scores, rows))
        return scores


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):  # type: ignore[misc]  # transformers is not typed
    """transformers' output of `generate` with this decoder's results, one for each row, statistics and all."""

    results: Any = None


def pack(
    results: Sequence[GenerationResult],
    sequences: Tensor,
    *,
    scores: bool = False,
    logits: bool = False,
    cache: Any = None,
) -> SpeculativeOutput:
    """sequences [B, L]; cache: the caller's own, filled.

    `scores`, `logits` become tuples with a tensor [B, V] for each new position; 0 behind a row's end, where
    transformers holds what it computed for padding.
    """
    found: dict[str, Any] = {"sequences": sequences, "results": tuple(results)}
    for name, wanted in (("scores", scores), ("logits", logits)):
        if wanted:
            columns = [torch.stack(getattr(result, name)) for result in results]  # each [n, V]
            padded = torch.nn.utils.rnn.pad_sequence(columns, batch_first=True)  # [B, n, V]
            found[name] = tuple(padded.unbind(1))
    if cache is not None:  # the field's name differs by version
        found["cache" if "cache" in {each.name for each in fields(SpeculativeOutput)} else "past_key_values"] = cache
    return SpeculativeOutput(**found)
