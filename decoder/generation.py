"""One call under way: rows and parts are put together, steps are consumed, results are folded.

`generate`, `generate_baseline`, `stream` and `custom_generate` all make a `Generation`; none has a loop of its own.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import MaxTimeCriteria

from decoder.asked.processors import keeps_state, moved
from decoder.asked.request import Request, RowRequest
from decoder.clock import clock_for
from decoder.grammar import GrammarMask
from decoder.loop import Parts, Row, StopRule, run
from decoder.models.cache import PositionCache
from decoder.models.hf import CausalModel
from decoder.outputs import Recorder
from decoder.randomness import SOURCES
from decoder.results import GenerationResult, row_rounds
from decoder.text import StopStrings, new_text
from decoder.types import Controller, Drafter, Step, Verifier
from decoder.verify import VERIFIERS, GreedyVerifier, MatchVerifier
from decoder.warpers import RowSettings, Warper


def criterion(rule: Any, device: torch.device, padding: Sequence[int] = ()) -> StopRule:
    """A transformers `StoppingCriteria` as a stop rule; it sees every committed prefix once, in order, behind the
    padding that the row came with."""

    def stop(tokens: Sequence[int], prompt_length: int) -> bool:
        verdict = rule(torch.tensor([[*padding, *tokens]], device=device), None)
        try:
            return bool(torch.as_tensor(verdict).any())
        except (TypeError, ValueError, RuntimeError) as error:
            name = getattr(rule, "__name__", type(rule).__name__)
            raise TypeError(
                f"stopping_criteria {name} returned {verdict!r:.60}; it must return True or False."
            ) from error

    return stop


_RESERVING = threading.Lock()


@dataclass
class TurnCache:
    """Both models' caches after a call, and the ids they hold; give it back as `cache=` to continue.

    The record is always true to the buffers, so an older result's cache may be given again: what it shares with the new
    prompt is reused, the rest recomputed.
    """

    target: PositionCache
    draft: PositionCache | None
    token_ids: list[int] = field(default_factory=list)
    in_use: bool = False

    @property
    def nbytes(self) -> int:
        return self.target.nbytes + (self.draft.nbytes if self.draft is not None else 0)

    def __deepcopy__(self, memo: dict[int, Any]) -> TurnCache:
        """A second conversation from here: buffers of its own, over the same models."""
        return TurnCache(copy.deepcopy(self.target, memo), copy.deepcopy(self.draft, memo), list(self.token_ids))

    def __copy__(self) -> TurnCache:
        return copy.deepcopy(self)  # two records over one set of buffers would make each other untrue

    def reserve(self, prompt: Sequence[int]) -> None:
        """Take the cache for one call, keeping what the prompt shares; at least one token must be fed anew."""
        with _RESERVING:
            if self.in_use:
                raise ValueError("cache= is in use by another call; wait for it, or give each call its own cache.")
            self.in_use = True
        shared = 0
        while shared < min(len(self.token_ids), len(prompt) - 1) and self.token_ids[shared] == prompt[shared]:
            shared += 1
        self.token_ids = self.token_ids[:shared]
        for cache in (self.target, self.draft):
            if cache is not None:
                cache.commit([min(cache.lengths[0], shared)])


@dataclass(frozen=True)
class Run:
    """What a decoder lends to a call."""

    target: CausalModel
    drafter: Drafter
    controller: Controller
    tokenizer: Any = None


class Generation:
    """One batch of a request being generated.

    numbers: which of the request's rows these are; they choose the random streams. All by default.
    """

    def __init__(self, run: Run, request: Request, numbers: Sequence[int] | None = None) -> None:
        began = time.perf_counter()
        self._run, self._request = run, request
        self.rows = [self._row(number) for number in (range(len(request.rows)) if numbers is None else numbers)]
        self._turn = self._given_cache(request.cache)
        self._steps: list[Step] = []
        self.text_s = 0.0  # time spent on text while streaming
        self._parts: Parts | None = None
        self._recorder = None
        if request.recorded:
            self._recorder = Recorder(
                logits=request.output_logits, scores=request.output_scores, logprobs=request.logprobs
            )
        self._setup_s = time.perf_counter() - began

    def _given_cache(self, cache: Any) -> TurnCache | None:
        if cache is None:
            return None
        if not isinstance(cache, TurnCache):
            raise TypeError(f"cache= of type {type(cache).__name__} must be the `cache` of an earlier result.")
        if cache.target.model is not self._run.target.model:
            raise ValueError("cache= holds the state of another target model; give it to the decoder that made it.")
        return cache

    def _row(self, number: int) -> Row:
        asked = self._request.rows[number]
        rules = [*asked.criteria] if asked.max_time is None else [*asked.criteria, MaxTimeCriteria(asked.max_time)]
        stops: list[StopRule] = [criterion(rule, self._run.target.device, asked.padding) for rule in rules]
        stops += [each.complete for each in asked.processors if isinstance(each, GrammarMask)]
        if asked.stop_strings:
            stops.append(StopStrings(self._run.tokenizer, asked.stop_strings, asked.tokens))
        return Row(number, list(asked.tokens), len(asked.tokens), asked.limits, stops)

    def _asked(self) -> list[RowRequest]:
        return [self._request.rows[row.number] for row in self.rows]

    def _verifier(self) -> Verifier:
        if all(asked.params.greedy for asked in self._asked()):
            return GreedyVerifier()
        if self._request.sampling == "gumbel":
            return MatchVerifier()
        chosen = self._request.verifier
        return VERIFIERS[chosen]() if isinstance(chosen, str) else chosen

    def _assemble(self) -> Parts:
        own, request, turn = self._run, self._request, self._turn
        drafter = own.drafter
        asked = self._asked()
        in_order = any(keeps_state(processor) for row in asked for processor in row.processors)
        draft_device = torch.device(drafter.device)
        if in_order:
            drafter = drafter.greedy()  # processing in order needs a deterministic draft
        if turn is not None:
            drafter = drafter.with_cache(turn.draft)
        warp = Warper.of_rows([(row.params, row.processors, row.padding) for row in asked])
        limit = max(row.limits.max_length for row in self.rows)
        held = turn.target if turn else None
        target = own.target.open(len(self.rows), limit, held)
        recorder = self._recorder
        return Parts(
            target=target if recorder is None else recorder.session(target),
            drafter=drafter.attach(target),
            verifier=self._verifier(),
            controller=own.controller,
            warp=warp if recorder is None else recorder.warp(warp),
            draft_warp=Warper.of_rows(self._draft_rows(in_order, draft_device)),
            random=SOURCES[request.sampling]([row.seed for row in asked], [row.stream for row in asked]),
            target_clock=own.target.clock,
            draft_clock=own.target.clock if draft_device == own.target.device else clock_for(draft_device),
            in_order=in_order,
        )

    def _draft_rows(self, in_order: bool, device: torch.device) -> list[RowSettings]:
        """The same settings; with processors whose tensors are on the draft's device, where that is another one, and
        without any where they must see each prefix once."""
        elsewhere = device != torch.device(self._run.target.device)
        rows: list[RowSettings] = []
        for row in self._asked():
            own = () if in_order else row.processors
            rows.append((row.params, [moved(each, device) for each in own] if elsewhere else own, row.padding))
        return rows

    @contextmanager
    def _memory_errors(self) -> Iterator[None]:
        """Out of memory, with what was asked of the device and what to do."""
        try:
            yield
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if type(error) is RuntimeError and "allocate memory" not in str(error):
                raise
            longest = max(len(row.tokens) for row in self.rows)
            raise type(error)(
                f"out of memory on {self._run.target.device} with {len(self.rows)} rows of up to {longest} tokens "
                f"({str(error).splitlines()[0] if str(error) else 'no detail'}); lower batch_size or max_new_tokens, "
                "use dtype='bfloat16', or load with max_memory= and offload_folder=."
            ) from error

    def steps(self) -> Iterator[Step]:
        """Run to the end, yielding each round. A `streamer` of the request is fed on the way.

        Raises:
            ValueError: it has been run before.
        """
        if self._parts is not None:
            raise ValueError("this stream has been read already; see its result, or call stream() again.")
        streamer = self._request.streamer
        if streamer is not None:
            streamer.put(torch.tensor([self.rows[0].tokens]))
        with self._reserved_cache():
            began = time.perf_counter()
            self._parts = self._assemble()
            rounds = run(self.rows, self._parts)
            self._setup_s += time.perf_counter() - began
            while True:
                with (
                    torch.inference_mode(),
                    self._memory_errors(),
                ):  # not around the yield: the consumer's code is not ours
                    step = next(rounds, None)
                if step is None:
                    break
                if self._recorder is not None:
                    self._recorder.take(step)
                self._steps.append(step)
                if streamer is not None:
                    for token in step.rows[0].emitted:
                        streamer.put(torch.tensor([token]))
                yield step
        if streamer is not None:
            streamer.end()

    def finish(self) -> list[GenerationResult]:
        """Run to the end, with a bar over the tokens when one long text is all there is; a result per row."""
        alone = len(self._request.rows) == 1
        total = self.rows[0].limits.max_new_tokens
        with tqdm(total=total, disable=not (self._request.progress and alone), unit="token") as bar:
            for step in self.steps():
                bar.update(len(step.rows[0].emitted))
        return self.results()

    @contextmanager
    def _reserved_cache(self) -> Iterator[None]:
        turn = self._turn
        if turn is None:
            yield
            return
        turn.reserve(self.rows[0].tokens)
        try:
            yield
        finally:
            turn.in_use = False

    def results(self) -> list[GenerationResult]:
        """Fold the steps of the finished run, a result per row."""
        return [self._result(row) for row in self.rows]

    def surplus(self, row: Row) -> int:
        """Characters of a row's text that lie beyond the stop string that ended it."""
        return sum(rule.surplus for rule in row.stops if isinstance(rule, StopStrings))

    def _result(self, row: Row) -> GenerationResult:
        assert row.finish_reason is not None and self._parts is not None
        began = time.perf_counter()
        rounds = row_rounds(self._steps, row.number)
        prompt, new = row.tokens[: row.prompt_length], row.tokens[row.prompt_length :]
        text = full_text = ""
        if self._run.tokenizer is not None:
            text, full_text = new_text(self._run.tokenizer, prompt, new)
            surplus = self.surplus(row)
            text, full_text = text[: len(text) - surplus], full_text[: len(full_text) - surplus]
        said = None if self._recorder is None else self._recorder.rows[row.number]
        wall_s = self._setup_s + sum(step.wall_s for step in rounds) + self.text_s
        return GenerationResult(
            text=text,
            full_text=full_text,
            token_ids=tuple(new),
            prompt_token_ids=tuple(prompt),
            finish_reason=row.finish_reason,
            wall_s=wall_s + time.perf_counter() - began,
            steps=rounds,
            lossless=self._parts.verifier.lossless,
            tokenizer=self._run.tokenizer,
            cache=self._kept_cache(row) if self._request.return_cache else None,
            logprobs=tuple(said.logprobs) if said is not None and self._request.logprobs is not None else None,
            scores=tuple(said.scores) if said is not None and self._request.output_scores else None,
            logits=tuple(said.logits) if said is not None and self._request.output_logits else None,
        )

    def _kept_cache(self, row: Row) -> TurnCache:
        assert self._parts is not None
        cache, drafts = self._parts.target.cache, self._parts.drafter.kv_cache
        turn = self._turn or TurnCache(cache, None)
        if drafts is not None:
            turn.draft = drafts
        turn.token_ids = row.tokens[: cache.lengths[0]]
        return turn
