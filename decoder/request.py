"""L3: what one call asks for: keywords, a `generation_config` and the decoder's defaults, settled and validated.

Names and meanings are those of transformers' `generate`. A keyword wins over a `generation_config`, which
wins over the decoder's own default. Nothing is ignored: what is not supported is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from transformers import GenerationConfig

from decoder import processors as library
from decoder.keywords import CallOptions as CallOptions
from decoder.keywords import as_ids, callables, check_values, stop_strings
from decoder.keywords import check_integer as check_integer
from decoder.keywords import check_sampling as check_sampling
from decoder.keywords import reject_unknown as reject_unknown
from decoder.types import SamplingParams

DEFAULT_NEW_TOKENS = 128


# Fields of a generation_config that change nothing about the tokens of a decoder-only run, or are read elsewhere.
_HARMLESS = frozenset(
    "bos_token_id decoder_start_token_id transformers_version cache_implementation cache_config return_unused_kwargs "
    "return_legacy_cache disable_compile "
    "prefill_chunk_size num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold "
    "prompt_lookup_num_tokens max_matching_ngram_size assistant_early_exit assistant_lookbehind target_lookbehind "
    "low_memory compile_config continuous_batching_config early_stopping length_penalty num_beam_groups "
    "diversity_penalty is_assistant speculative_decoding_config".split()
)
# What the library means by "off" for features this decoder does not have.
_OFF: Mapping[str, Any] = {
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "renormalize_logits": False,
    "remove_invalid_values": False,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "num_beams": 1,
    "use_cache": True,
    "token_healing": False,
    "early_stopping": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "output_scores": False,
    "output_logits": False,
}


@dataclass(frozen=True)
class Request:
    """A validated call.

    built, given: processors in the library's order, warpers excluded; those made here or by the library for a prompt
        of `prompt_length` positions, and the caller's own objects.
    options: the call's keywords, completed from its generation_config.
    """

    params: SamplingParams
    max_new_tokens: int | None
    max_length: int | None
    eos: frozenset[int]
    stop_strings: tuple[str, ...]
    built: tuple[Any, ...]
    given: tuple[Any, ...]
    criteria: tuple[Any, ...]
    options: CallOptions
    prompt_length: int

    @property
    def processors(self) -> tuple[Any, ...]:
        return (*self.built, *self.given)

    @property
    def counts_positions(self) -> bool:
        """Whether some processor depends on the prompt's length, so that rows of different lengths cannot share it."""
        return any(library.counts_positions(processor) for processor in self.built)

    def for_row(self, row: int, length: int) -> Request:
        """The request with its processors fitted to batch row `row`, whose prompt has `length` tokens."""
        cut = self.prompt_length - length
        return replace(self, built=tuple(library.fitted(processor, cut, row) for processor in self.built))

    def limits_for(self, prompt_length: int, context: int | None) -> tuple[int, int]:
        """(new tokens, total length) allowed for one prompt.

        Raises:
            ValueError: a prompt that leaves no room, or lengths that contradict each other.
        """
        new, total = self.max_new_tokens, self.max_length
        if new is not None and total is not None and prompt_length + new != total:
            raise ValueError(
                f"max_new_tokens={new} and max_length={total} contradict each other for a prompt of {prompt_length} "
                "tokens; give one of them (max_length counts the prompt)."
            )
        if total is not None and prompt_length >= total:
            raise ValueError(
                f"max_length={total} must exceed the prompt's {prompt_length} tokens, which it counts; "
                "raise it or give max_new_tokens."
            )
        if context is not None and prompt_length > context:
            raise ValueError(
                f"prompt of {prompt_length} tokens is longer than the target's context of {context}; shorten it."
            )
        if total is None:
            total = prompt_length + (DEFAULT_NEW_TOKENS if new is None else new)
        if context is not None:  # a full context still has the one token its last position predicts
            total = min(total, max(context, prompt_length + 1))
        return total - prompt_length, total


def _from_config(config: GenerationConfig) -> dict[str, Any]:
    """The fields of a generation_config that are set and mean something here; refuses what would be ignored."""
    found = {}
    for name, value in vars(config).items():
        if name.startswith("_") or value is None or name in _HARMLESS:
            continue
        if name in CallOptions.__annotations__:
            found[name] = value
        elif name not in _OFF or value != _OFF[name]:
            raise ValueError(
                f"generation_config.{name}={value!r} is not supported here; unset it, or use transformers' generate()."
            )
    return found


def _refuse_unsupported(settings: Mapping[str, Any]) -> None:
    beams = settings.get("num_beams")
    if beams is not None and beams != 1:
        raise ValueError(f"num_beams={beams!r} is not supported: speculative decoding samples or is greedy; use 1.")
    if settings.get("use_cache") is False:
        raise ValueError("use_cache=False is not supported: verification needs the KV cache; leave it out.")


def _sampling(settings: Mapping[str, Any], defaults: SamplingParams) -> SamplingParams:
    values = {}
    for name in ("temperature", "top_k", "top_p", "min_p"):
        given = settings.get(name)
        values[name] = getattr(defaults, name) if given is None else given
    do_sample = settings.get("do_sample")
    params = SamplingParams(**values)
    if do_sample is True and params.greedy:
        raise ValueError("do_sample=True contradicts temperature=0 (greedy); give a temperature > 0.")
    if do_sample is False:
        return SamplingParams(0.0, params.top_k, params.top_p, params.min_p)
    return params


def _merge(options: CallOptions) -> dict[str, Any]:
    """The call's keywords over its generation_config; a length given as a keyword replaces the config's other one."""
    config = options.get("generation_config")
    if config is not None and not isinstance(config, GenerationConfig):
        raise TypeError(f"generation_config={config!r} must be a transformers GenerationConfig.")
    settings: dict[str, Any] = _from_config(config) if config is not None else {}
    given = {name: value for name, value in options.items() if value is not None or name == "eos_token_id"}
    if given.keys() & {"max_new_tokens", "max_length"}:
        settings = {name: value for name, value in settings.items() if name not in ("max_new_tokens", "max_length")}
    return settings | given


def settle(
    options: CallOptions,
    defaults: SamplingParams,
    own_eos: Sequence[int],
    prompt_length: int,
    where: str = "generate",
    device: torch.device | str = "cpu",
) -> Request:
    """Merge and validate one call's keywords.

    Raises:
        TypeError, ValueError: naming the argument, its value, the range and the remedy.
    """
    reject_unknown(options, where)
    settings = _merge(options)
    check_values(settings)
    _refuse_unsupported(settings)
    eos_setting = settings.get("eos_token_id", list(own_eos))
    eos = frozenset(as_ids("eos_token_id", eos_setting)) if eos_setting is not None else frozenset()
    return Request(
        params=_sampling(settings, defaults),
        max_new_tokens=settings.get("max_new_tokens"),
        max_length=settings.get("max_length"),
        eos=eos,
        stop_strings=stop_strings(settings.get("stop_strings")),
        built=library.from_settings(settings, eos, prompt_length, torch.device(device)),
        given=callables("logits_processor", settings.get("logits_processor")),
        criteria=callables("stopping_criteria", settings.get("stopping_criteria")),
        options=cast(CallOptions, settings),
        prompt_length=prompt_length,
    )
