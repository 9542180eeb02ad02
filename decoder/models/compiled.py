"""`compile=True`: forwards behind the prefill through `torch.compile`, in static shapes.

The whole model is one graph for each of a few block sizes (`SIZES`: one token, and 1, 2, 4, 8, 16 drafted ones behind
it); a block is padded to the next of them. Buffers have a power of two of
slots from the start, every forward reads all of them under an explicit mask, and tokens are written at the slots of a
tensor: no number of the host reaches the graph, so a text of any length runs through the graphs of its block sizes.
A size is compiled when it is first asked for, unless a wider graph exists: then the block is padded to that one until
the same run has asked for its size more than `PATIENCE` times, so that the odd sizes at the end of a text cost no
compilation of their own. Padding sits at later positions: no real token sees it, and its slots are written again before
they are read. `compilations` counts, so that k="auto" does not take the time of a compilation for the time of a draft.

Cold start: about half a minute for each size of the bundled target (16 layers) on two CPU cores; torch keeps what it
compiled on disk for the next process (experiments/08-where-time-goes/compile.md). Prefills, batches of
several rows and blocks wider than `WIDEST` stay eager. Each new graph is compared with the eager forward. What cannot
be compiled, or differs, runs eager after a warning that says why.

On CUDA each graph is captured in a CUDA graph for the buffers of the run under way, which spares the launches.

Does not know what is drafted or verified.
"""

from __future__ import annotations

import types
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from decoder.models.cache import FixedCache, PositionCache
from decoder.models.hf import BATCHED_FAMILIES, CausalModel, CausalSession
from decoder.models.probe import allowed_error
from decoder.trees import Tree

SIZES = (1, 2, 3, 5, 9, 17)
WIDEST = SIZES[-1]
PATIENCE = 3
LEAST_SLOTS = 256
BACKEND = "inductor"

Key = tuple[int, int]  # block size, slots
Forward = Callable[..., Tensor]


class WrongLogits(ValueError):
    """A graph that does not say what the model says."""


def slots_for(limit: int) -> int:
    """Slots of the buffers of a run of `limit` tokens: few different numbers, since each has graphs of its own."""
    return max(LEAST_SLOTS, 1 << (limit + WIDEST - 1).bit_length())


def _forward(model: Any, cache_name: str, arguments: dict[str, Any], cache: FixedCache) -> Tensor:
    logits: Tensor = model(use_cache=True, **{cache_name: cache}, **arguments).logits
    return logits


def _anew(function: Forward, name: str) -> Forward:
    """The same function with code of its own: torch counts compilations for each code, and stops at eight."""
    return types.FunctionType(function.__code__.replace(co_name=name), function.__globals__, name)


def why_not(model: CausalModel) -> str | None:
    """What keeps a model from being compiled here, with the remedy."""
    config = model.model.config
    kind = config.get_text_config(decoder=True).model_type
    if kind not in BATCHED_FAMILIES:  # tested here, too. gpt_neo would be wrong: it windows by the end of the buffers
        return f"model_type={kind!r} is not among the families it is tested for; leave compile=False"
    if config._attn_implementation not in ("eager", "sdpa"):
        return f"attn_implementation={config._attn_implementation!r} takes no explicit mask; load it with 'sdpa'"
    if any(hasattr(module, "_hf_hook") for module in model.model.modules()):
        return "accelerate moves its weights between devices; load it onto one device"
    return None


def relative_error(found: Tensor, truth: Tensor) -> float:
    """||found - truth|| / ||truth||; 0 where both are equal, whatever they hold."""
    difference = torch.where(found == truth, 0.0, (found - truth).float())
    return float(difference.norm() / truth.float().nan_to_num(0.0, 0.0, 0.0).norm().clamp(min=1e-6))


@dataclass
class _Run:
    """What one run (its cache) has asked for, and its CUDA graphs."""

    prefilled: bool = False
    asked: Counter[int] = field(default_factory=Counter)
    captured: dict[tuple[int, ...], Captured] = field(default_factory=dict)

    def fits(self, tokens: Tensor, keep: int | Tensor, room: bool) -> bool:
        """Whether this is a block for a graph; a run's first forward is not: its size will not come again."""
        first, self.prefilled = not self.prefilled, True
        rows, width = tokens.shape
        return not first and rows == 1 and width <= WIDEST and isinstance(keep, int) and room


class Captured:
    """One forward recorded in a CUDA graph: inputs are copied in, the cache's buffers are used where they are."""

    def __init__(self, forward: Forward, inputs: dict[str, Any], slots: Tensor, pool: Any) -> None:
        self._inputs = {name: _static(value) for name, value in inputs.items()}
        self._slots = slots.clone()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._logits = forward(self._inputs, self._slots)

    def __call__(self, inputs: dict[str, Any], slots: Tensor) -> Tensor:
        for name, held in self._inputs.items():
            _refill(held, inputs[name])
        self._slots.copy_(slots)
        self._graph.replay()
        return self._logits.clone()  # the next replay writes over it


def _static(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _static(each) for name, each in value.items()}
    return value.clone() if isinstance(value, Tensor) else value


def _refill(held: Any, value: Any) -> None:
    if isinstance(held, dict):
        for name, each in held.items():
            _refill(each, value[name])
    elif isinstance(held, Tensor):
        held.copy_(value)


class CompiledModel(CausalModel):
    """A causal model whose decode forwards run compiled wherever that is possible and right."""

    def __init__(self, model: Any, role: str, vocab_size: int | None = None, banned: Sequence[int] = ()) -> None:
        self._runs: WeakKeyDictionary[PositionCache, _Run] = WeakKeyDictionary()
        self._graphs: dict[Key, Forward] = {}
        self._eager = True  # while the base class tries the model out
        super().__init__(model, role, vocab_size, banned)
        self._eager = False
        self._told_of_rows = False
        self._captures = self.device.type == "cuda"
        self._pool: Any = None
        problem = why_not(self)
        if problem is not None:
            self._give_up(problem)

    @property
    def compiled_sizes(self) -> list[int]:
        """Block sizes that have a graph."""
        return sorted({key[0] for key in self._graphs})

    def _give_up(self, why: str) -> None:
        self._eager = True
        self._graphs.clear()
        kind = type(self.model).__name__
        warnings.warn(f"compile=True: the {self.role} {kind} runs eager: {why}.", RuntimeWarning, stacklevel=3)

    def open(self, rows: int, limit: int, cache: PositionCache | None = None) -> CausalSession:
        session = super().open(rows, limit, cache)
        if self._eager:
            return session
        if rows == 1:
            session.cache.reserve(slots_for(limit))
            self._runs[session.cache] = _Run()
        elif not self._told_of_rows:
            self._told_of_rows = True
            warnings.warn(
                f"compile=True serves one row at a time: forwards over {rows} rows run eager; use batch_size=1.",
                RuntimeWarning,
                stacklevel=2,
            )
        return session

    def warm_up(self, width: int, limit: int, told: Callable[[int], None]) -> None:
        """Compile every size up to that of blocks of `width` tokens, for texts of up to `limit` tokens.

        told: called with each size once its graph is there, or was before.
        """
        session = self.open(1, limit)
        with torch.inference_mode():
            session.feed(torch.zeros(1, 1, dtype=torch.long), [0], [0])
            session.commit([1])
            for size in (each for each in SIZES if each < 2 * width):
                if not self._eager and size + WIDEST < session.cache.capacity:
                    key = (size, session.cache.capacity)
                    self._runs[session.cache].asked[size] = PATIENCE  # its own graph, though a wider one may exist
                    session.feed(torch.zeros(1, size, dtype=torch.long), [1])
                    assert self._eager or key in self._graphs
                told(size)
                if size >= width:
                    break

    def check_recordable(self) -> None:
        if not self._eager:
            raise ValueError(
                "hidden states cannot be read from compiled forwards; leave compile=False for this drafter."
            )

    @property
    def trees(self) -> bool:
        """Not in graphs: their masks are those of a chain."""
        return self._eager and super().trees

    def call(
        self,
        tokens: Tensor,
        starts: Sequence[int],
        cache: PositionCache,
        keep: int | Tensor,
        tree: Tree | None = None,
    ) -> Tensor:
        if tree is not None:
            return super().call(tokens, starts, cache, keep, tree)
        run = self._runs.get(cache)
        if self._eager or run is None or not run.fits(tokens, keep, starts[0] + WIDEST <= cache.capacity):
            return super().call(tokens, starts, cache, keep)
        width = tokens.shape[1]
        key = self._key(width, cache.capacity, run)
        try:
            inputs, slots = self._block(tokens, starts[0], key)
            if key in self._graphs:
                logits = self._run(key, run, cache, inputs, slots)[:, :width]
            else:
                truth = super().call(tokens, starts, cache, 0)
                logits = self._try(key, cache, inputs, slots, truth)
        except Exception as error:  # whatever it is, eager forwards do not have it, or raise it again
            self._give_up(_explain(error))
            return super().call(tokens, starts, cache, keep)
        return logits[:, -int(keep) :]

    def _key(self, width: int, capacity: int, run: _Run) -> Key:
        """The graph for a block: the next size, or a wider one that exists while the size is rare."""
        size = next(each for each in SIZES if each >= width)
        run.asked[size] += 1
        if (size, capacity) in self._graphs or run.asked[size] > PATIENCE:
            return size, capacity
        return min((key for key in self._graphs if key[0] > size and key[1] == capacity), default=(size, capacity))

    def _block(self, tokens: Tensor, start: int, key: Key) -> tuple[dict[str, Any], Tensor]:
        """Arguments of the forward, padded to the graph's size, and the slots [m] that are written."""
        size, capacity = key
        slots = torch.arange(start, start + size, device=self.device)
        arguments: dict[str, Any] = {
            "input_ids": torch.nn.functional.pad(tokens, (0, size - tokens.shape[1])),
            "attention_mask": self.masks([start], size, capacity),
        }
        if self._takes_positions:
            most = capacity if self.context_length is None else self.context_length
            arguments["position_ids"] = slots.clamp(max=most - 1)[None]  # only padding can lie beyond
        return arguments, slots

    def _run(self, key: Key, run: _Run, cache: PositionCache, inputs: dict[str, Any], slots: Tensor) -> Tensor:
        def forward(given: dict[str, Any], at: Tensor) -> Tensor:
            return self._graphs[key](self.model, self._cache_name, given, FixedCache(cache, at))

        if self._captures:
            return self._replay((*key, cache.layers[0].keys.data_ptr()), run, forward, inputs, slots)
        return forward(inputs, slots)

    def _replay(
        self, place: tuple[int, ...], run: _Run, forward: Forward, inputs: dict[str, Any], slots: Tensor
    ) -> Tensor:
        """Through a CUDA graph, captured for these buffers when first asked for; without one if that fails."""
        if place in run.captured:
            return run.captured[place](inputs, slots)
        truth = forward(inputs, slots)
        try:
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            captured = Captured(forward, inputs, slots, self._pool)
            error = relative_error(captured(inputs, slots), truth)
            if not error <= allowed_error(truth.dtype):
                raise ValueError(f"replayed logits differ by {error:.1%}")
            run.captured[place] = captured
        except (RuntimeError, ValueError) as problem:
            self._captures = False
            why = f"{type(problem).__name__}: {problem!s:.160}"
            warnings.warn(
                f"compile=True: no CUDA graphs ({why}); forwards stay compiled.", RuntimeWarning, stacklevel=2
            )
        return truth

    def _try(self, key: Key, cache: PositionCache, inputs: dict[str, Any], slots: Tensor, truth: Tensor) -> Tensor:
        """Compile, run, and compare with the eager logits [1, m, V]."""
        self.compilations += 1
        compiled = torch.compile(
            _anew(_forward, f"forward_of_{key[0]}"), backend=BACKEND, dynamic=False, fullgraph=True
        )
        found = compiled(self.model, self._cache_name, inputs, FixedCache(cache, slots))[:, : truth.shape[1]]
        error = relative_error(found, truth)
        if not error <= allowed_error(truth.dtype):
            raise WrongLogits(f"compiled logits differ from eager ones by {error:.1%}")
        self._graphs[key] = compiled
        return found


def _explain(error: Exception) -> str:
    if isinstance(error, WrongLogits):
        return f"{error}; leave compile=False"
    line = next((line for line in str(error).splitlines() if line.strip()), "no message")
    return (
        f"torch.compile failed ({type(error).__name__}: {line:.160}); install a C++ compiler (g++) if there is none, "
        "or leave compile=False"
    )
