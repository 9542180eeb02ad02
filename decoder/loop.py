"""The one loop. One round is Leviathan's algorithm (arXiv 2211.17192, algorithm 1), one line per phase:

    propose   x_1 ... x_K ~ q                                               `_propose`   drafters/
    forward   p_1 ... p_{K+1}, after the text and after each x, at once     `_forward`   models/, warpers.py
    verify    n: the x_i kept, each with chance min(1, p_i / q_i) at x_i;   `_settle`    verify/, randomness.py
              y ~ (p_{n+1} - q_{n+1})+ normalised, or ~ p_{K+1} if n = K
    commit    text + x_1 ... x_n + y; caches forget what lies beyond        `run`        models/cache.py

(That is token verification; `verify/` holds the others.) Plain decoding is this loop with a drafter that proposes
nothing, a batch is this loop with more rows, a stream reads its steps. It speaks token ids and knows no tokenizer,
drafter, cache, clock or transformers class.

Invariant between rounds: the target has cached every committed token but the last of each live row, so a round feeds it
that token and the drafted ones and reads p after each. Round 0 is the prefill: it verifies an empty draft.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from decoder.laps import Clock, Lap, Laps
from decoder.proposals import as_wide_as_its_tree, within_vocabulary
from decoder.readout import Read, read_verdict
from decoder.types import (
    Controller,
    Draft,
    Drafter,
    Limits,
    ModelSession,
    RandomSource,
    RowStep,
    Step,
    TreeSession,
    Verifier,
    Warp,
    ragged,
)
from decoder.verify.match import match_in_order

StopRule = Callable[[Sequence[int], int], bool]  # (tokens so far, how many are prompt) -> stop here?


class NonFiniteLogits(ValueError):
    """A model returned NaN or nothing but -inf."""


@dataclass
class Row:
    """A text under way: `tokens` holds the prompt and all committed tokens."""

    number: int
    tokens: list[int]
    prompt_length: int
    limits: Limits
    stops: Sequence[StopRule] = ()
    finish_reason: str | None = None

    def room(self) -> int:
        """Tokens this row may still emit."""
        new_left = self.prompt_length + self.limits.max_new_tokens - len(self.tokens)
        return min(new_left, self.limits.max_length - len(self.tokens))

    def append(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Commit tokens one by one until something ends the text; returns those committed."""
        for n, token in enumerate(tokens, 1):
            self.tokens.append(token)
            if token in self.limits.eos:
                self.finish_reason = "eos"
            elif any([stop(self.tokens, self.prompt_length) for stop in self.stops]):  # every rule sees every token
                self.finish_reason = "stop"
            elif self.room() <= 0:
                self.finish_reason = "length"
            if self.finish_reason:
                return tuple(tokens[:n])
        return tuple(tokens)


@dataclass
class Parts:
    """What a run is made of. `in_order` asks for position-by-position processing (processors with state)."""

    target: ModelSession
    drafter: Drafter
    verifier: Verifier
    controller: Controller
    warp: Warp
    draft_warp: Warp
    random: RandomSource
    target_clock: Clock
    draft_clock: Clock
    in_order: bool = False

    @property
    def trees(self) -> bool:
        """Whether a tree of drafted tokens can be verified; else drafters are asked for chains."""
        return all(getattr(part, "trees", False) for part in (self.target, self.verifier)) and not self.in_order


def run(rows: Sequence[Row], parts: Parts) -> Iterator[Step]:
    """Generate until every row has finished, yielding a `Step` per round.

    Raises:
        NonFiniteLogits: naming the model and the position.
    """
    live = list(rows)
    index = 0
    carried_s = 0.0  # what followed the last step is the next one's time; what the consumer does is nobody's
    while live:
        began = time.perf_counter() - carried_s
        contexts = [row.tokens for row in live]
        if index == 0:
            k, draft = 0, Draft.nothing(len(live))
            draft_lap: Lap | None = _start(live, parts)
        else:
            k = parts.controller.next_length()
            draft, draft_lap = _propose(live, contexts, parts, k)
        mark = parts.target_clock.start()
        logits = _forward(contexts, draft, parts.target)  # [B, K+1, V]
        lap = parts.target_clock.stop(mark)
        if parts.drafter.learns:
            draft_lap = _learn(contexts, draft, logits, parts, draft_lap)
        record = _settle(live, contexts, draft, logits, parts)
        _keep(live, draft, record, parts)
        ended = time.perf_counter()
        step = Step(index, tuple(record), ended - began, lap, draft_lap, k)
        parts.controller.observe(step)
        still = [b for b, row in enumerate(live) if row.finish_reason is None]
        if len(still) < len(live):
            parts.drafter.finish(contexts, [b for b in range(len(live)) if b not in still])
        if still and len(still) < len(live):
            _select(still, parts)
        live = [live[b] for b in still]
        index += 1
        carried_s = time.perf_counter() - ended
        yield step


def _start(live: Sequence[Row], parts: Parts) -> Lap:
    """The drafter of this run takes the place of its recipe; a draft model prefills the prompts here."""
    mark = parts.draft_clock.start()
    limit = max(row.limits.max_length for row in live)
    recipe = parts.drafter if parts.trees else parts.drafter.chains()
    parts.drafter = recipe.start([row.tokens for row in live], parts.draft_warp, parts.random, limit)
    return parts.draft_clock.stop(mark)


def _propose(live: Sequence[Row], contexts: Sequence[Sequence[int]], parts: Parts, k: int) -> tuple[Draft, Lap | None]:
    """A round emits up to k + 1 tokens, so a row drafts at most one fewer than it may still emit.

    Of a tree k counts the nodes, so that a round of k costs what it says.
    """
    counts = [max(0, min(k, row.room() - 1)) for row in live]
    if not any(counts):
        return Draft.nothing(len(live)), None
    mark = parts.draft_clock.start()
    draft = parts.drafter.propose(contexts, counts)
    assert draft.tokens.shape[0] == len(live) and all(
        0 <= got <= asked for got, asked in zip(draft.counts, counts, strict=True)
    ), f"drafter {parts.drafter.name!r} proposed {draft.counts} where at most {counts} were asked for"
    draft = within_vocabulary(draft, parts.target.vocab_size)
    admitted = parts.warp.admitted(contexts, draft)
    if admitted != draft.counts:
        draft = replace(draft, tokens=draft.tokens[:, : max(admitted)], counts=admitted)
    if draft.tree is not None:
        draft = as_wide_as_its_tree(draft, parts.drafter.name, parts.trees)
    return draft, parts.draft_clock.stop(mark)


def _learn(contexts: Sequence[Sequence[int]], draft: Draft, logits: Tensor, parts: Parts, draft_lap: Lap | None) -> Lap:
    """Show the drafter what the target said; the time it takes is the drafter's."""
    mark = parts.draft_clock.start()
    parts.drafter.learn(contexts, draft, logits)
    lap = parts.draft_clock.stop(mark)
    return lap if draft_lap is None else Laps((draft_lap, lap))


def _forward(contexts: Sequence[Sequence[int]], draft: Draft, target: ModelSession) -> Tensor:
    """Target logits [B, K+1, V] after the last committed token and after every drafted one."""
    starts = [min(have, len(context) - 1) for have, context in zip(target.lengths, contexts, strict=True)]
    unseen = [context[start:] for start, context in zip(starts, contexts, strict=True)]
    known = ragged(unseen)  # [B, m]
    if draft.tokens.shape[1] == 0:
        return target.feed(known, starts, [len(tokens) - 1 for tokens in unseen])
    assert known.shape[1] == 1, "only the prefill feeds more than the last committed token"
    fed = torch.cat([known.to(draft.tokens.device), draft.tokens], dim=1)
    if draft.tree is None:
        return target.feed(fed, starts)
    return cast(TreeSession, target).feed(fed, starts, tree=draft.tree)


def _settle(
    live: Sequence[Row], contexts: Sequence[Sequence[int]], draft: Draft, logits: Tensor, parts: Parts
) -> list[RowStep]:
    """Verify, read the verdict in one transfer, and append what each row emits."""
    if parts.in_order:
        return _settle_in_order(live, draft, logits, parts)
    starts = [len(context) for context in contexts]
    tokens = draft.tokens.to(logits.device)
    if draft.tree is None:
        scores = parts.warp.scores(logits, contexts, tokens)
    else:
        scores = parts.warp.scores(logits, contexts, tokens, tree=draft.tree)
    peak = scores.amax(-1)  # [B, K+1]; NaN wins, -inf only where all are
    p = scores if parts.warp.greedy else parts.warp.probs(scores)
    verdict = parts.verifier(p, draft, parts.random, starts)
    host = read_verdict(verdict, tokens, torch.isfinite(peak), draft)
    sampled = draft.probs is not None
    if draft.tree is None:
        return [_emit(row, host[b], draft.counts[b], sampled) for b, row in enumerate(live)]
    assert verdict.paths is not None, f"verifier {parts.verifier.name!r} names no path of a tree"
    each = zip(live, host, draft.tree.parents, verdict.paths, strict=True)
    return [_emit(row, read, len(parents), sampled, parents, path) for row, read, parents, path in each]


def _keep(live: Sequence[Row], draft: Draft, record: Sequence[RowStep], parts: Parts) -> None:
    """Caches and drafter learn what became of the proposal."""
    lengths = [len(row.tokens) - 1 for row in live]
    if draft.tree is None:
        parts.target.commit(lengths)
        if any(draft.counts):
            parts.drafter.keep([part.accepted for part in record])
        return
    paths = [part.path for part in record]
    cast(TreeSession, parts.target).commit(lengths, paths)
    parts.drafter.keep_paths(paths)


def _draft_error(row: Row) -> NonFiniteLogits:
    return NonFiniteLogits(
        f"the draft's logits are NaN or all -inf after position {len(row.tokens) - 1} of row {row.number}; "
        "check its weights and dtype (float16 overflows in models trained in bfloat16)."
    )


def _target_error(row: Row, position: int) -> NonFiniteLogits:
    return NonFiniteLogits(
        f"the target's logits are NaN or all -inf after position {position} of row {row.number}; "
        "check its weights and dtype, and processors that ban every token."
    )


def _emit(
    row: Row, read: Read, count: int, sampled: bool, parents: Sequence[int] = (), path: Sequence[int] = ()
) -> RowStep:
    """Refuse rubbish, then commit the accepted tokens and the one after them. parents, path: of a tree."""
    if not read.draft_finite and count:
        raise _draft_error(row)
    if parents:  # the verdict rests on what follows the root and the nodes kept
        finite = [read.target_finite[node + 1] for node in (-1, *path)]
        kept = [read.drafted[node] for node in path]
    else:  # a sampled draft is judged by the p after it, too: a token that leads to NaN must not just seem rejected
        finite = read.target_finite[: read.accepted + 1 + sampled]
        kept = read.drafted[: read.accepted]
    bad = next((i for i, fine in enumerate(finite) if not fine), None)
    if bad is not None:
        raise _target_error(row, len(row.tokens) - 1 + bad)
    emitted = row.append([*kept, read.next_token])
    step = _row_step(row, read.drafted, read.accepted, emitted, read.overlap)
    return replace(step, parents=tuple(parents), path=tuple(path)) if parents else step


def _row_step(
    row: Row, drafted: Sequence[int], accepted: int, emitted: Sequence[int], overlap: Sequence[float] = ()
) -> RowStep:
    reason, length = row.finish_reason, len(row.tokens)
    return RowStep(row.number, tuple(drafted), accepted, tuple(emitted), reason, tuple(overlap), length, row.room())


def _settle_in_order(live: Sequence[Row], draft: Draft, logits: Tensor, parts: Parts) -> list[RowStep]:
    """Processors with state: each committed prefix is processed once, in order; drafts are deterministic."""
    steps = []
    for b, row in enumerate(live):
        drafted = draft.tokens[b, : draft.counts[b]].tolist()
        if drafted and draft.finite is not None and not bool(draft.finite[b]):
            raise _draft_error(row)
        before = list(row.tokens)

        def scores_at(i: int, emitted: list[int], b: int = b, before: list[int] = before) -> Tensor:
            return parts.warp.scores(logits[b : b + 1, i : i + 1], [before + emitted], rows=[b])[0]

        def choose(scores: Tensor, b: int = b, row: Row = row) -> int:
            if not bool(torch.isfinite(scores.amax())):
                raise _target_error(row, len(row.tokens) - 1)
            if parts.warp.greedy:
                return int(scores.argmax())
            p = parts.warp.probs(scores[None], rows=[b]).expand(len(live), 1, -1)
            wanted = [int(other == b) for other in range(len(live))]
            return int(parts.random.draw(p, [len(row.tokens)] * len(live), wanted)[b, 0])

        def ends(emitted: list[int], row: Row = row) -> bool:
            row.append(emitted[-1:])
            return row.finish_reason is not None

        emitted = match_in_order(scores_at, choose, drafted, ends)
        accepted = sum(1 for x, y in zip(drafted, emitted, strict=False) if x == y)
        steps.append(_row_step(row, drafted, accepted, emitted))
    return steps


def _select(still: Sequence[int], parts: Parts) -> None:
    warps: list[Warp] = [parts.warp] if parts.draft_warp is parts.warp else [parts.warp, parts.draft_warp]
    for part in (parts.target, parts.drafter, parts.random):
        part.select(still)
    for warp in warps:
        warp.select(still)
