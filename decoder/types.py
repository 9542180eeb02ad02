"""The values that pass between layers, and the seams where new parts plug in.

`p` and `q` are the target's and the draft's probabilities *after* warping;
B rows, K drafted tokens, V vocabulary entries. A round is one proposal plus one verification.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from decoder.laps import Lap
from decoder.sampling import SamplingParams as SamplingParams
from decoder.trees import Tree

Contexts = Sequence[Sequence[int]]  # token ids of each row
Rows = Sequence[int] | None  # which rows of a run; None: all
Paths = Sequence[Sequence[int]]  # nodes of each row's tree, from the root down


def ragged(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of ids, padded on the right with 0 -> [B, m] long."""
    width = max(map(len, rows), default=0)
    padded = [[*row, *[0] * (width - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long).reshape(len(rows), width)


@dataclass(frozen=True)
class Draft:
    """What a drafter proposes for every row of one round.

    tokens: [B, K] long; row b holds `counts[b]` proposals, the rest is padding.
    counts: proposals per row, 0 <= counts[b] <= K.
    probs:  [B, K, V], the distribution each token was *really* drawn from; None when the proposal is a
            function of the past (n-gram, greedy draft). In a mixed batch a deterministic row is one-hot.
    finite: [B] bool, False where the draft's logits were NaN or all -inf; None when that cannot happen.
    sampled: True asks to be verified like a sampled proposal although `probs` is None. A drafter that samples in some
            rounds only says so in all of them, so that a row's rule does not depend on its neighbours.
    tree: which token each one follows; None: each follows the one before it. See `Drafter.chains`.
    """

    tokens: Tensor
    counts: list[int]
    probs: Tensor | None = None
    finite: Tensor | None = None
    sampled: bool = False
    tree: Tree | None = None

    @classmethod
    def nothing(cls, rows: int) -> Draft:
        """No proposal for any row."""
        return cls(torch.zeros(rows, 0, dtype=torch.long), [0] * rows)


@dataclass(frozen=True)
class Verdict:
    """What a verifier decided, still on the device.

    accepted: [B] leading drafted tokens kept.   next_tokens: [B] the recovered or bonus token after them.
    overlap:  [B, K] min(1, p(x)/q(x)) at the drafted tokens, the chance each had to pass (None: not computed).
    paths: of a tree, the nodes of each row that are kept, from the root down; None: the leading ones.
    """

    accepted: Tensor
    next_tokens: Tensor
    overlap: Tensor | None = None
    paths: list[list[int]] | None = None


@dataclass(frozen=True)
class RowStep:
    """One row's part in a round. `emitted` ends where EOS, a stop rule or the length ended the text."""

    row: int
    drafted: tuple[int, ...]
    accepted: int
    emitted: tuple[int, ...]
    finish_reason: str | None = None
    overlap: tuple[float, ...] = ()
    length: int = 0  # tokens of the row, prompt included, after the round
    room: int | None = None  # tokens it may still emit; None where that is not known
    parents: tuple[int, ...] = ()  # of a tree: each drafted token's parent
    path: tuple[int, ...] = ()  # of a tree: the nodes accepted, `accepted` of them


@dataclass(frozen=True)
class Step:
    """One round over all live rows (round 0 is the prefill, whose draft is empty).

    `wall_s` is the host's time from the start of the round to its end; what the models did not use
    of it is overhead. Laps are device times. `cold`: something was compiled in it; its times are no measurement.
    """

    index: int
    rows: tuple[RowStep, ...]
    wall_s: float
    target_lap: Lap
    draft_lap: Lap | None = None
    k: int = 0
    cold: bool = False

    @property
    def is_prefill(self) -> bool:
        return self.index == 0

    @property
    def target_s(self) -> float:
        return self.target_lap.seconds

    @property
    def draft_s(self) -> float:
        return 0.0 if self.draft_lap is None else self.draft_lap.seconds


class RandomSource(Protocol):
    """Every random choice of a run goes through one of these, so that tests can replay all outcomes.

    coupled: draws at one position share their noise, so that a drafted token is no sample of q.
    """

    coupled: bool

    def draw(self, probs: Tensor, starts: Sequence[int], counts: Sequence[int]) -> Tensor:
        """One token for each of the first `counts[b]` positions of row b from probs [B, n, V] -> [B, n].

        `starts[b]` is the index in the row's sequence that the first drawn token would take.
        """

    def accept(self, numerator: Tensor, denominator: Tensor, counts: Sequence[int]) -> Tensor:
        """[B, K] bool, True with probability min(1, numerator / denominator), independently."""

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""


class ModelSession(Protocol):
    """One run of one model over B rows, with a KV cache addressed by position.

    vocab_size: V of the logits returned.
    model: the model that was opened.   cache: its KV cache, which a later run may continue; None without one.
    """

    vocab_size: int

    @property
    def model(self) -> Any: ...

    @property
    def cache(self) -> Any: ...

    @property
    def lengths(self) -> list[int]:
        """Committed tokens held per row."""

    def feed(self, tokens: Tensor, starts: Sequence[int], at: Sequence[int] | None = None) -> Tensor:
        """Forward tokens [B, m] at positions starts[b] ... starts[b] + m - 1, provisionally.

        Returns logits [B, m, V], or [B, 1, V] after token `at[b]` of each row. Provisional until `commit`.
        """

    def commit(self, lengths: Sequence[int]) -> None:
        """The first lengths[b] positions of row b are true; what lies beyond never happened."""

    def select(self, rows: Sequence[int]) -> None: ...


class TreeSession(ModelSession, Protocol):
    """A run of a target that may verify trees. trees: whether it does."""

    @property
    def trees(self) -> bool: ...

    def feed(
        self, tokens: Tensor, starts: Sequence[int], at: Sequence[int] | None = None, tree: Tree | None = None
    ) -> Tensor:
        """With a tree: the first token is the root, the others are its nodes, each at the position of its depth, seeing
        the committed tokens and its ancestors."""

    def commit(self, lengths: Sequence[int], paths: Paths | None = None) -> None:
        """paths: of the tree fed last, the nodes that stand at the positions after the root, in order."""


class Warp(Protocol):
    """Logits in, scores or probabilities out; knows the sampling parameters and the processors."""

    @property
    def processors(self) -> Sequence[Any]:
        """Functions of the whole prefix, which may change the scores after it; empty where only logits count."""

    @property
    def greedy(self) -> bool: ...

    def scores(
        self,
        logits: Tensor,
        contexts: Contexts,
        drafted: Tensor | None = None,
        rows: Rows = None,
        tree: Tree | None = None,
    ) -> Tensor: ...

    def admitted(self, contexts: Contexts, draft: Draft) -> list[int]: ...

    def probs(self, scores: Tensor, rows: Rows = None) -> Tensor: ...

    def select(self, rows: Sequence[int]) -> None: ...


class Drafter:
    """Proposes tokens. Subclass it: `propose` is the only method you must write.

    A drafter given to a decoder is a recipe; `start` returns the drafter for one run, so that runs
    never share state. The default returns a shallow copy of the recipe.

    model: the model that drafts; None without one, or where others may draft as well.
    device: where proposals are made.   can_batch: whether rows of different lengths may share a run.
    kv_cache: of a run, its model's, which a later run may continue (`with_cache`); None where there is none.
    """

    name = "custom"
    deterministic = False  # True: every proposal is a function of the past, when the target samples too
    learns = False  # True: the loop calls `learn` after each forward of the target
    reads = False  # True: the first proposal runs a model over the prompt, which k="auto" weighs before it asks
    model: Any = None
    device: Any = "cpu"
    can_batch: bool = True
    kv_cache: Any = None

    @classmethod
    def for_models(cls, target: Any, draft: Any) -> Drafter:
        """The recipe that a name stands for; `draft` is None without a draft model."""
        return cls()

    @classmethod
    def for_decoder(cls, decoder: Any) -> Drafter:
        """The recipe that a name stands for in a `SpeculativeDecoder`: for drafts that need more than its models."""
        return cls.for_models(decoder.target_model, decoder.draft_model)

    def bind(self, target: Any, draft: Any) -> Drafter:
        """The recipe for these models, as a decoder is given the drafter: for drafts made out of the target."""
        return self

    def attach(self, target: ModelSession) -> Drafter:
        """The recipe for this run of the target: called before `start`. For drafts that share the target's cache."""
        return self

    def greedy(self) -> Drafter:
        """The same recipe, proposing functions of the past only."""
        return self

    def chains(self) -> Drafter:
        """The same recipe, proposing chains only, where trees cannot be verified: for drafters that propose trees."""
        return self

    def with_cache(self, cache: Any) -> Drafter:
        """The same recipe, continuing the `kv_cache` of an earlier run, if that was one of the same model."""
        return self

    def deferred(self) -> Drafter:
        """The same recipe, reading the prompt when first asked to propose: a run that never asks pays nothing."""
        return self

    def start(self, contexts: Contexts, warp: Warp, random: RandomSource, limit: int) -> Drafter:
        """Begin a run over these prompts (token ids); no row will grow beyond `limit` tokens."""
        return copy.copy(self)

    def propose(self, contexts: Contexts, counts: Sequence[int]) -> Draft:
        """Propose up to counts[b] tokens to follow contexts[b]. May propose fewer."""
        raise NotImplementedError

    def keep(self, accepted: Sequence[int]) -> None:
        """After a round: the first accepted[b] proposals of row b survived, the others never happened."""

    def keep_paths(self, paths: Paths) -> None:
        """`keep` after a round whose draft had a tree: the nodes paths[b] of row b survived."""

    def learn(self, contexts: Contexts, draft: Draft, logits: Tensor) -> None:
        """The target's raw logits [B, K+1, V] after contexts[b] and after each token drafted on it.

        Called before the verdict is known, and only if `learns`. Do not keep or change the tensor.
        """

    def finish(self, contexts: Contexts, ended: Sequence[int]) -> None:
        """The rows `ended` of these are complete: prompt and all they emitted. Comes before `select`."""

    def select(self, rows: Sequence[int]) -> None:
        """Rows finished: keep only these, in this order."""


class Verifier(Protocol):
    """One that has an attribute `trees`, set to True, is given drafts with trees too."""

    name: str
    lossless: bool

    def __call__(self, p: Tensor, draft: Draft, random: RandomSource, starts: Sequence[int]) -> Verdict: ...


class Controller(Protocol):
    """Chooses the draft length from the past; never from this round's p."""

    def next_length(self) -> int: ...

    def observe(self, step: Step) -> None: ...


@dataclass(frozen=True)
class Limits:
    """When a row ends. `max_length` counts prompt and new tokens; `eos` is a set of ids."""

    max_new_tokens: int
    max_length: int
    eos: frozenset[int] = field(default_factory=frozenset)
