"""The law that decoding must have, from the definition: a table and transformers' own processors and warpers.

Nothing of this package's sampling, warping or looping is used, so it can serve as the oracle of tests. The probability
of a sequence is the product of softmax(warpers(processors(logits)))[token] over its tokens, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation import logits_process as library

from decoder.models.toy import TableModel
from decoder.types import SamplingParams

Sequence_ = tuple[int, ...]
Law = dict[Sequence_, float]
NextLaw = Callable[[Sequence[int]], Tensor]


def library_warpers(params: SamplingParams) -> list[Any]:
    """transformers' warpers for these parameters, in the order of its `generate`."""
    warpers: list[Any] = []
    if params.temperature != 1.0:
        warpers.append(library.TemperatureLogitsWarper(params.temperature))
    if params.top_k > 0:
        warpers.append(library.TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        warpers.append(library.TopPLogitsWarper(params.top_p))
    if params.min_p > 0.0:
        warpers.append(library.MinPLogitsWarper(params.min_p))
    return warpers


def library_law(
    logits: Tensor, prefix: Sequence[int], params: SamplingParams, processors: Sequence[Any] = ()
) -> Tensor:
    """Next-token law [V] in float64 after `prefix`, from logits [V]; one-hot at the argmax when greedy."""
    ids = torch.tensor([list(prefix)], dtype=torch.long)
    scores = logits.detach().cpu().double()[None]
    for processor in processors:
        scores = processor(ids, scores)
    if params.greedy:
        return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1])[0].double()
    for warper in library_warpers(params):
        scores = warper(ids, scores)
    return torch.softmax(scores, dim=-1)[0]


def table_next(model: TableModel, params: SamplingParams, processors: Sequence[Any] = ()) -> NextLaw:
    """The next-token law of a table model as a function of the whole prefix."""

    def next_law(prefix: Sequence[int]) -> Tensor:
        before = prefix[-2] if len(prefix) > 1 else 0
        return library_law(model.table[before, prefix[-1]], prefix, params, processors)

    return next_law


def exact_law(next_law: NextLaw, prompt: Sequence[int], new_tokens: int, eos: frozenset[int] = frozenset()) -> Law:
    """Every sequence of new tokens, up to and including EOS or of length `new_tokens`, with its probability."""
    law: Law = {}
    open_: Law = {(): 1.0}
    for _ in range(new_tokens):
        longer: Law = {}
        for tokens, mass in open_.items():
            for token, chance in enumerate(next_law([*prompt, *tokens]).tolist()):
                if chance > 0.0:
                    (law if token in eos else longer)[(*tokens, token)] = mass * chance
        open_ = longer
    return law | open_


def total_variation(left: Mapping[Sequence_, float], right: Mapping[Sequence_, float]) -> float:
    """Half the sum of |left - right| over all sequences of either."""
    return 0.5 * sum(abs(left.get(key, 0.0) - right.get(key, 0.0)) for key in {*left, *right})


def worst_sequence(found: Mapping[Sequence_, float], expected: Mapping[Sequence_, float]) -> Sequence_:
    """The sequence whose probability is most wrong."""
    return max({*found, *expected}, key=lambda key: (abs(found.get(key, 0.0) - expected.get(key, 0.0)), key))
