"""Which layers of a target make the best draft for it, found on a few prompts.

The target writes a continuation of each prompt. A candidate is then one parallel forward over those texts: with p and
q the warped distributions at the generated positions, alpha = mean of sum_v min(p, q) (of argmax agreement when
greedy). The cost ratio c of n layers comes from a measured line, step time = base + n * layer, and what a candidate
promises is

    S = max_k (1 - alpha^(k+1)) / (1 - alpha) / (k c + v_{k+1}),

v_m being the measured time of a target forward of m tokens over that of one
(Leviathan et al. 2023, arXiv 2211.17192, eq. 1 and theorem 3.8). Layers are taken away greedily, the one that leaves
the best alpha first; of the many that could go, only the `breadth` that did least harm when last tried are tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoder.api import SpeculativeDecoder
from decoder.checks import at_least
from decoder.drafters.layerskip import subset_model
from decoder.measure.forwards import forward_cost
from decoder.models.hf import CausalModel
from decoder.types import SamplingParams, Warp
from decoder.warpers import Warper

MAX_K = 8
_TIMED = 5  # repetitions of a timing, of which the median counts

Build = Callable[[CausalModel, Sequence[int]], CausalModel]


@dataclass(frozen=True)
class Promise:
    """A candidate: predicted speed-up over plain decoding at its best draft length k."""

    layers: tuple[int, ...]
    alpha: float
    cost_ratio: float
    speedup: float
    k: int


@dataclass(frozen=True)
class LayerSearch:
    """What a search found: the best promise, and the best of each size on the way down."""

    best: Promise
    trail: tuple[Promise, ...]
    forwards: int

    @property
    def layers(self) -> tuple[int, ...]:
        return self.best.layers


@dataclass(frozen=True)
class StepCosts:
    """Seconds of one step: base_s + n * layer_s with n layers; verify_s[m - 1] for m tokens through the target."""

    base_s: float
    layer_s: float
    verify_s: tuple[float, ...]

    def promise(self, layers: Sequence[int], alpha: float) -> Promise:
        cost = (self.base_s + len(layers) * self.layer_s) / self.verify_s[0]
        best = (0.0, 1)
        for k in range(1, len(self.verify_s)):
            emitted = sum(alpha**i for i in range(k + 1))
            best = max(best, (emitted / (k * cost + self.verify_s[k] / self.verify_s[0]), -k))
        return Promise(tuple(layers), alpha, cost, best[0], abs(best[1]))


@dataclass(frozen=True)
class _Text:
    """One prompt and the target's continuation: tokens [1, L], the last `new` of them generated; p [new, V] before
    each."""

    tokens: Tensor
    new: int
    p: Tensor


class LayerSearcher:
    """One search over one target."""

    def __init__(
        self,
        target: CausalModel,
        params: SamplingParams,
        build: Build,
        texts: Sequence[Sequence[int]],
        new: Sequence[int],
    ) -> None:
        self._target, self._build = target, build
        self._warp: Warp = Warper(params)
        self.forwards = 0
        self._texts = [
            _Text(torch.tensor([text]), count, self._distribution(target, torch.tensor([text]), count))
            for text, count in zip(texts, new, strict=True)
        ]

    def _distribution(self, model: CausalModel, tokens: Tensor, new: int) -> Tensor:
        """[new, V] distribution before each generated token; scores when greedy."""
        cache = model.open(1, tokens.shape[1]).cache
        cache.place([0], tokens.shape[1] - 1)
        logits = model.fit_vocabulary(model.call(tokens[:, :-1].to(model.device), [0], cache, new))
        scores = self._warp.scores(logits, [[0]])[0]
        self.forwards += 1
        return scores if self._warp.greedy else self._warp.probs(scores)

    def alpha(self, model: CausalModel) -> float:
        """Agreement with the target over all generated tokens of all texts."""
        agreed, total = 0.0, 0
        for text in self._texts:
            q = self._distribution(model, text.tokens, text.new)
            if self._warp.greedy:
                agreed += float((q.argmax(-1) == text.p.argmax(-1)).sum())
            else:
                agreed += float(torch.minimum(q, text.p).sum())
            total += text.new
        return min(1.0, agreed / total)

    def costs(self, count: int) -> StepCosts:
        """Time the target, and half of it for the price of a layer, after the first text's prompt."""
        text = self._texts[0]
        prompt = text.tokens[0, : max(1, text.tokens.shape[1] - text.new)].tolist()
        whole = forward_cost(self._target, prompt, widths=range(1, MAX_K + 2), repeats=_TIMED).table
        half = self._build(self._target, range(count // 2))
        half_s = forward_cost(half, prompt, widths=(1,), repeats=_TIMED).table[1].median
        verify = tuple(whole[m].median for m in sorted(whole))
        layer_s = max(0.0, (verify[0] - half_s) / (count - count // 2))
        return StepCosts(max(0.0, verify[0] - count * layer_s), layer_s, verify)

    def descend(self, count: int, costs: StepCosts, breadth: int, patience: int) -> LayerSearch:
        """Take layers away until what is left has promised no more for `patience` removals."""
        kept = list(range(count))
        harmless = kept  # layers in the order of the alpha that their removal left, best first
        trail: list[Promise] = []
        best: Promise | None = None
        since = 0
        while len(kept) > 1 and since < patience:
            tried = []
            for layer in harmless if not trail else harmless[:breadth]:
                rest = [other for other in kept if other != layer]
                tried.append((self.alpha(self._build(self._target, rest)), layer))
            tried.sort(reverse=True)
            alpha, gone = tried[0]
            kept = [layer for layer in kept if layer != gone]
            again = [layer for _, layer in tried[1:]]
            harmless = again + [layer for layer in harmless if layer != gone and layer not in again]
            promise = costs.promise(kept, alpha)
            trail.append(promise)
            since = 0 if best is None or promise.speedup > best.speedup else since + 1
            best = promise if since == 0 else best
        assert best is not None
        return LayerSearch(best, tuple(trail), self.forwards)


def search_layers(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Any],
    *,
    build: Build = subset_model,
    new_tokens: int = 48,
    breadth: int = 6,
    patience: int = 4,
) -> LayerSearch:
    """Search on these prompts, with the decoder's own sampling parameters.

    The drafter is then `LayerSkipDrafter(found.layers)`.

    build: makes the draft of some layers.  new_tokens: continuation per prompt.
    breadth: layers tried at each removal after the first, which tries all.
    patience: removals without gain before the end.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    if isinstance(prompts, str) or not isinstance(prompts, Sequence) or not prompts:
        raise ValueError(f"prompts={prompts!r} must be a non-empty list of prompts to search on.")
    for name, value in (("new_tokens", new_tokens), ("breadth", breadth), ("patience", patience)):
        at_least(name, value, 1)
    target: CausalModel = decoder.target_model
    count = int(target.model.config.get_text_config(decoder=True).num_hidden_layers)
    if count < 2:
        raise ValueError("a search for layers needs a target of at least two layers.")
    results = decoder.generate_baseline(list(prompts), max_new_tokens=new_tokens, seed=0)
    texts = [[*result.prompt_token_ids, *result.token_ids] for result in results]
    with torch.inference_mode():
        searcher = LayerSearcher(target, decoder.params, build, texts, [len(result.token_ids) for result in results])
        return searcher.descend(count, searcher.costs(count), breadth, patience)
