"""`model.generate(..., custom_generate=spec)`: transformers' prepared call, in this project's terms.

What arrives there differs by version (`cache` or `past_key_values`, a mask or None); the warpers arrive inside the
processor list and are taken out of it, so that they are applied once. transformers drops `streamer` and `stop_strings`
on this path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation import logits_process as library
from transformers.generation import stopping_criteria as rules
from transformers.generation.utils import GenerateDecoderOnlyOutput

from decoder.asked.options import as_ids
from decoder.asked.processors import check_one_row
from decoder.asked.prompts import encode
from decoder.asked.request import Asker, Request, room_for, seed_for
from decoder.models.hf import CausalModel
from decoder.types import SamplingParams

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
_EXTRA_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


@dataclass(frozen=True)
class Output:
    """How to hand the ids back."""

    prompt: torch.Tensor  # [B, L], as it came, padding included
    pad: int
    as_dict: bool

    def pack(self, new: Sequence[Sequence[int]]) -> Any:
        """Prompt and new ids, padded on the right: [B, L + longest]."""
        width = max(map(len, new))
        tail = [list(ids) + [self.pad] * (width - len(ids)) for ids in new]
        sequences = torch.cat([self.prompt, torch.tensor(tail, device=self.prompt.device)], dim=1)
        return GenerateDecoderOnlyOutput(sequences=sequences) if self.as_dict else sequences


_WARPERS = {  # in the order in which this decoder applies them
    library.TemperatureLogitsWarper: "temperature",
    library.TopKLogitsWarper: "top_k",
    library.TopPLogitsWarper: "top_p",
    library.MinPLogitsWarper: "min_p",
}


def _is_plain(processor: Any) -> bool:
    """A warper with transformers' usual settings, for which `SamplingParams` can stand."""
    usual = getattr(processor, "filter_value", -float("inf")) == -float("inf")
    return usual and getattr(processor, "min_tokens_to_keep", 1) == 1


def _split(processors: Sequence[Any]) -> tuple[SamplingParams, tuple[Any, ...]]:
    """The warpers at the end of the list become parameters; everything before them stays a processor, in its place.

    Warpers are functions of the scores, so one that stands elsewhere (twice, or before a watermark) is exact there too.
    """
    rest = list(processors)
    while rest and isinstance(rest[-1], library.LogitNormalization):
        rest.pop()  # changes no probability
    values: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    order = list(_WARPERS)
    while rest and type(rest[-1]) in order and _is_plain(rest[-1]):
        kind = type(rest[-1])
        values[_WARPERS[kind]] = getattr(rest.pop(), _WARPERS[kind])
        order = order[: order.index(kind)]
    return SamplingParams(**values), tuple(rest)


def _refuse(config: Any, passed: dict[str, Any]) -> None:
    """Raise ValueError for what this decoder would have to ignore."""
    cache = passed.get("cache", passed.get("past_key_values"))
    unknown = sorted(name for name, value in passed.items() if name not in _IGNORED and value is not None)
    if unknown:
        raise ValueError(f"custom_generate received {unknown}, which would have to be ignored; leave them out.")
    if config.num_beams not in (None, 1):
        raise ValueError(f"num_beams={config.num_beams} is not supported: use 1.")
    if config.use_cache is False or passed.get("use_cache") is False:
        raise ValueError("use_cache=False is not supported: verification needs the KV cache; leave it out.")
    if cache is not None and cache.get_seq_length() > 0:
        raise ValueError("a cache that already holds tokens is not supported with custom_generate; leave it out.")
    wanted = [name for name in _EXTRA_OUTPUTS if getattr(config, name, None)]
    if wanted:
        raise ValueError(f"custom_generate cannot return {wanted} here; leave them out.")


def request_from_transformers(
    input_ids: torch.Tensor, passed: dict[str, Any], target: CausalModel, asker: Asker
) -> tuple[Request, Output]:
    """(the request, how to return its ids).

    Raises:
        ValueError: beams, a cache that already holds tokens, or arguments this decoder would have to ignore.
    """
    config = passed.pop("generation_config")
    processors = passed.pop("logits_processor", None) or ()
    criteria = passed.pop("stopping_criteria", None) or ()
    _refuse(config, passed)
    params, rest = _split(processors)
    if not config.do_sample:
        params, rest = SamplingParams(temperature=0.0), tuple(processors)
    eos = [] if config.eos_token_id is None else as_ids("eos_token_id", config.eos_token_id)
    own = (rules.MaxLengthCriteria, rules.EosTokenCriteria)
    rows, _ = encode(input_ids, None, passed.get("attention_mask"), vocab_size=target.embedding_size)
    new = int(config.max_length) - input_ids.shape[1]  # max_length counts a padded row's padding
    request = Request(
        rows=tuple(rows),
        many=True,
        k=4,
        params=params,
        limits=tuple(room_for(len(row), new, frozenset(eos), target.context_length) for row in rows),
        prompt_length=input_ids.shape[1],
        built=rest,
        criteria=tuple(rule for rule in criteria if not isinstance(rule, own)),
        seed=seed_for(None, asker),
        verifier=asker.verifier,
        sampling=asker.sampling,
    )
    check_one_row(request.built, len(rows))
    pad = config.pad_token_id if config.pad_token_id is not None else (eos[0] if eos else 0)
    return request, Output(input_ids, int(pad), bool(config.return_dict_in_generate))
