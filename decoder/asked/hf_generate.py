"""`model.generate(..., custom_generate=spec)`: transformers' prepared call, in this project's terms.

What arrives there differs by version (`cache` or `past_key_values`, a mask or None); the warpers arrive inside the
processor list and are taken out of it, so that they are applied once. transformers drops `streamer` and `stop_strings`
on this path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import DynamicCache, StaticCache
from transformers.generation import stopping_criteria as rules

from decoder import outputs
from decoder.asked.options import as_ids
from decoder.asked.processors import for_row, split
from decoder.asked.prompts import encode, room_for
from decoder.asked.request import Asker, Request, RowRequest, seed_for
from decoder.controllers import Length
from decoder.models.hf import CausalModel
from decoder.results import GenerationResult
from decoder.types import Limits, SamplingParams

_IGNORED = {  # prepared for transformers' own loop; this one makes its own
    "attention_mask",
    "position_ids",
    "logits_to_keep",
    "cache",
    "past_key_values",
    "use_cache",
    "synced_gpus",
    "cache_position",
    "token_type_ids",
}
_EXTRA_OUTPUTS = ("output_attentions", "output_hidden_states")


@dataclass(frozen=True)
class HandBack:
    """How to hand the texts back."""

    prompt: torch.Tensor  # [B, L], as it came, padding included
    pad: int
    as_dict: bool
    scores: bool
    logits: bool
    cache: Any = None  # the caller's own, which is filled

    def pack(self, results: Sequence[GenerationResult]) -> Any:
        """Prompt and new ids, padded on the right: [B, L + longest]; or the whole output."""
        width = max(len(result.token_ids) for result in results)
        tail = [[*result.token_ids, *[self.pad] * (width - len(result.token_ids))] for result in results]
        sequences = torch.cat([self.prompt, torch.tensor(tail, device=self.prompt.device)], dim=1)
        if self.cache is not None:
            results[0].cache.target.copy_into(self.cache)
            results = [replace(results[0], cache=None)]
        if not self.as_dict:
            return sequences
        return outputs.pack(results, sequences, scores=self.scores, logits=self.logits, cache=self.cache)


def _refuse(config: Any, passed: dict[str, Any]) -> None:
    """Raise ValueError for what this decoder would have to ignore."""
    unknown = sorted(name for name, value in passed.items() if name not in _IGNORED and value is not None)
    if unknown:
        raise ValueError(f"custom_generate received {unknown}, which would have to be ignored; leave them out.")
    if config.num_beams not in (None, 1):
        raise ValueError(f"num_beams={config.num_beams} is not supported: use 1.")
    if config.use_cache is False or passed.get("use_cache") is False:
        raise ValueError("use_cache=False is not supported: verification needs the KV cache; leave it out.")
    wanted = [name for name in _EXTRA_OUTPUTS if getattr(config, name, None)]
    if wanted:
        raise ValueError(f"custom_generate cannot return {wanted} here; leave them out.")


def _own_cache(passed: dict[str, Any], input_ids: torch.Tensor) -> Any:
    """The cache that the caller gave, to be filled; None where transformers made one for a loop of its own.

    Raises:
        ValueError: one that cannot be filled exactly as transformers would.
    """
    cache = passed.get("cache", passed.get("past_key_values"))
    if cache is None or not getattr(cache, "_is_user_defined", False):
        return None
    if cache.get_seq_length() > 0:
        raise ValueError("a cache that already holds tokens is not supported with custom_generate; leave it out.")
    if not isinstance(cache, (DynamicCache, StaticCache)):
        raise ValueError(
            f"custom_generate fills a DynamicCache or a StaticCache, no {type(cache).__name__}; leave it out."
        )
    mask = passed.get("attention_mask")
    if input_ids.shape[0] != 1 or (mask is not None and not bool(mask.bool().all())):
        raise ValueError("custom_generate fills a cache for one prompt without padding; leave it out, or call it so.")
    return cache


def _taken(criteria: Sequence[Any], config: Any) -> tuple[int, list[int], tuple[Any, ...]]:
    """(total length, EOS ids, the other criteria). The list holds transformers' own rules or the caller's in their
    place; those of the usual classes become limits, any other is asked after each token."""
    total, eos, rest = None, [], []
    for rule in criteria:
        if type(rule) is rules.MaxLengthCriteria:
            total = rule.max_length if total is None else min(total, rule.max_length)
        elif type(rule) is rules.EosTokenCriteria:
            eos += as_ids("eos_token_id", rule.eos_token_id)
        else:
            rest.append(rule)
    return int(config.max_length if total is None else total), eos, tuple(rest)


def _rows(input_ids: torch.Tensor, mask: Any, shared: RowRequest, target: CausalModel) -> Iterator[RowRequest]:
    """What is asked of each row of input_ids [B, L], with its own prompt, stream, processors and room."""
    prompts, _ = encode(input_ids, None, mask, vocab_size=target.embedding_size)
    new, eos = shared.limits.max_new_tokens, shared.limits.eos
    for number, tokens in enumerate(prompts):
        cut = input_ids.shape[1] - len(tokens)
        if input_ids[number, cut:].tolist() != tokens:
            raise ValueError(f"attention_mask hides ids of row {number} behind others; pad prompts on the left.")
        yield replace(
            shared,
            tokens=tokens,
            limits=room_for(len(tokens), new, eos, target.context_length),
            stream=number,
            processors=tuple(for_row(processor, number, len(prompts)) for processor in shared.processors),
            padding=tuple(input_ids[number, :cut].tolist()),
        )


def request_from_transformers(
    input_ids: torch.Tensor, passed: dict[str, Any], k: Length, target: CausalModel, asker: Asker
) -> tuple[Request, HandBack]:
    """(the request, how to return its ids).

    Raises:
        ValueError: beams, a cache that already holds tokens, or arguments this decoder would have to ignore.
    """
    config = passed.pop("generation_config")
    given = tuple(passed.pop("logits_processor", None) or ())
    total, eos, criteria = _taken(passed.pop("stopping_criteria", None) or (), config)
    _refuse(config, passed)
    scores = bool(config.output_scores and config.return_dict_in_generate)
    params, rest = split(given, scores) if config.do_sample else (SamplingParams(temperature=0.0), given)
    limits = Limits(total - input_ids.shape[1], total, frozenset(eos))  # total counts a padded row's padding
    shared = RowRequest([], params, limits, seed=seed_for(None, asker), processors=rest, criteria=criteria)
    cache = _own_cache(passed, input_ids)
    request = Request(
        rows=tuple(_rows(input_ids, passed.get("attention_mask"), shared, target)),
        many=True,
        k=k,
        verifier=asker.verifier,
        sampling=asker.sampling,
        return_cache=cache is not None,
        output_scores=scores,
        output_logits=bool(config.output_logits and config.return_dict_in_generate),
    )
    request.check(target)
    pad = config.pad_token_id if config.pad_token_id is not None else (eos[0] if eos else 0)
    as_dict = bool(config.return_dict_in_generate)
    return request, HandBack(input_ids, int(pad), as_dict, request.output_scores, request.output_logits, cache)
