"""One call under way: rows and parts are put together, steps are consumed, results are folded.

`generate`, `generate_baseline`, `stream` and `custom_generate` all make a `Generation`; none has a loop of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from tqdm.auto import tqdm

from decoder.asked.options import INVARIANT_K
from decoder.asked.processors import keeps_state, moved
from decoder.asked.request import Request
from decoder.clock import clock_for
from decoder.drafters import ModelDrafter
from decoder.loop import Parts, Row, StopRule, run
from decoder.models.cache import PositionCache
from decoder.models.hf import CausalModel, CausalSession
from decoder.randomness import SOURCES
from decoder.results import GenerationResult, row_rounds
from decoder.text import StopStrings, new_text
from decoder.types import Controller, Drafter, Step, Verifier
from decoder.verify import VERIFIERS, GreedyVerifier, MatchVerifier
from decoder.warpers import Warper


def criterion(rule: Any, device: torch.device) -> StopRule:
    """A transformers `StoppingCriteria` as a stop rule; it sees every committed prefix once, in order."""

    def stop(tokens: Sequence[int], prompt_length: int) -> bool:
        verdict = rule(torch.tensor([list(tokens)], device=device), None)
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
    draft_model: Any = None  # whose keys and values `draft` holds
    target_model: Any = None  # whose keys and values `target` holds

    @property
    def nbytes(self) -> int:
        return self.target.nbytes + (self.draft.nbytes if self.draft is not None else 0)

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
        self._setup_s = time.perf_counter() - began

    def _given_cache(self, cache: Any) -> TurnCache | None:
        if cache is None:
            return None
        if not isinstance(cache, TurnCache):
            raise TypeError(f"cache= of type {type(cache).__name__} must be the `cache` of an earlier result.")
        if cache.target_model is not self._run.target.model:
            raise ValueError("cache= holds the state of another target model; give it to the decoder that made it.")
        return cache

    def _row(self, number: int) -> Row:
        prompt = self._request.rows[number]
        stops: list[StopRule] = [criterion(rule, self._run.target.device) for rule in self._request.criteria]
        if self._request.stop_strings:
            stops.append(StopStrings(self._run.tokenizer, self._request.stop_strings, prompt))
        return Row(number, list(prompt), len(prompt), self._request.limits[number], stops)

    def _verifier(self) -> Verifier:
        if self._request.params.greedy:
            return GreedyVerifier()
        if self._request.sampling == "gumbel":
            return MatchVerifier()
        chosen = self._request.verifier
        return VERIFIERS[chosen]() if isinstance(chosen, str) else chosen

    def _assemble(self) -> Parts:
        own, request, turn = self._run, self._request, self._turn
        drafter = own.drafter
        in_order = any(keeps_state(processor) for processor in request.processors)
        draft_device = torch.device(getattr(getattr(drafter, "model", None), "device", "cpu"))
        if in_order:
            drafter = drafter.greedy()  # processing in order needs a deterministic draft
        if turn is not None and isinstance(drafter, ModelDrafter) and turn.draft_model is drafter.model:
            drafter = drafter.with_cache(turn.draft)
        warp = Warper(request.params, request.processors)
        limit = max(row.limits.max_length for row in self.rows)
        fixed: dict[str, int] = {"fixed_width": INVARIANT_K + 1} if request.invariant else {}
        target = own.target.open(len(self.rows), limit, turn.target if turn else None, **fixed)
        return Parts(
            target=target,
            drafter=drafter.attach(target),
            verifier=self._verifier(),
            controller=own.controller,
            warp=warp,
            draft_warp=Warper(request.params) if in_order else self._draft_warp(warp, draft_device),
            random=SOURCES[request.sampling](request.seed, [row.number for row in self.rows]),
            target_clock=clock_for(own.target.device),
            draft_clock=clock_for(draft_device),
            in_order=in_order,
        )

    def _draft_warp(self, warp: Warper, device: torch.device) -> Warper:
        """The same warper; with processors whose tensors are on the draft's device, where that is another one."""
        if device == torch.device(self._run.target.device) or not warp.processors:
            return warp
        return Warper(warp.params, [moved(processor, device) for processor in warp.processors])

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
                self._steps.append(step)
                if streamer is not None:
                    for token in step.rows[0].emitted:
                        streamer.put(torch.tensor([token]))
                yield step
        if streamer is not None:
            streamer.end()

    def finish(self) -> None:
        """Run to the end, with a bar over the tokens when one long text is all there is."""
        alone = len(self._request.rows) == 1
        total = self.rows[0].limits.max_new_tokens
        with tqdm(total=total, disable=not (self._request.progress and alone), unit="token") as bar:
            for step in self.steps():
                bar.update(len(step.rows[0].emitted))

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
        )

    def _kept_cache(self, row: Row) -> TurnCache:
        assert self._parts is not None
        target = cast(CausalSession, self._parts.target)
        drafter = self._parts.drafter
        draft = cast(CausalSession, drafter.session).cache if isinstance(drafter, ModelDrafter) else None
        turn = self._turn or TurnCache(target.cache, None, target_model=self._run.target.model)
        if draft is not None:
            turn.draft, turn.draft_model = draft, getattr(drafter, "model", None)
        turn.token_ids = row.tokens[: target.lengths[0]]
        return turn
