"""L3: what one call asks for: keywords, a `generation_config` and the decoder's defaults, settled and validated.

Names and meanings are those of transformers' `generate`. A keyword wins over a `generation_config`, which
wins over the decoder's own default. Nothing is ignored: what is not supported is refused by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from transformers import GenerationConfig
from transformers.generation import logits_process as library

from decoder.randomness import SOURCES
from decoder.types import SamplingParams

DEFAULT_NEW_TOKENS = 128


class CallOptions(TypedDict, total=False):
    """Keywords of `generate`, `generate_baseline` and `stream`."""

    max_new_tokens: int | None
    max_length: int | None
    min_new_tokens: int | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    bad_words_ids: list[list[int]] | None
    suppress_tokens: list[int] | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    stop_strings: str | list[str] | None
    logits_processor: Any
    stopping_criteria: Any
    generation_config: GenerationConfig | None
    streamer: Any
    return_dict_in_generate: bool | None
    num_return_sequences: int | None
    num_beams: int | None
    use_cache: bool | None
    attention_mask: Any
    seed: int | None
    drafter: Any
    verifier: Any
    sampling: str | None
    batch_size: int
    progress: bool
    return_cache: bool
    cache: Any


# Fields of a generation_config that change nothing about the tokens of a decoder-only run, or are read elsewhere.
_HARMLESS = frozenset(
    "bos_token_id decoder_start_token_id transformers_version cache_implementation cache_config return_unused_kwargs "
    "output_attentions output_hidden_states output_scores output_logits return_legacy_cache disable_compile "
    "prefill_chunk_size num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold "
    "prompt_lookup_num_tokens max_matching_ngram_size assistant_early_exit assistant_lookbehind target_lookbehind "
    "low_memory compile_config continuous_batching_config early_stopping length_penalty num_beam_groups "
    "diversity_penalty token_healing is_assistant speculative_decoding_config".split()
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
}


@dataclass(frozen=True)
class Request:
    """A validated call. `processors` are transformers' objects in the library's order, warpers excluded."""

    params: SamplingParams
    max_new_tokens: int | None
    max_length: int | None
    eos: frozenset[int]
    stop_strings: tuple[str, ...]
    processors: tuple[Any, ...]
    criteria: tuple[Any, ...]
    options: CallOptions

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


def reject_unknown(options: Mapping[str, Any], where: str) -> None:
    """Unknown keywords are errors, with the nearest known name as remedy."""
    known = sorted(CallOptions.__annotations__)
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, [*known, "k"], 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: k, {', '.join(known)}."
            raise TypeError(f"{where}() got an unknown keyword {name!r}; {hint}")


def check_integer(name: str, value: Any, minimum: int, remedy: str) -> int:
    """An int of at least `minimum`, or an error that names all three."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} must be an integer >= {minimum}; {remedy}")
    if value < minimum:
        raise ValueError(f"{name}={value} must be >= {minimum}; {remedy}")
    return value


def check_sampling(sampling: Any, verifier: Any) -> None:
    """Refuse an unknown sampling method, and verifiers that do not go with it.

    Raises:
        ValueError: naming the argument, its value and the remedy.
    """
    if sampling not in SOURCES:
        raise ValueError(f"sampling={sampling!r} is unknown; use one of {sorted(SOURCES)}.")
    if sampling == "gumbel" and verifier not in ("auto", "match"):
        raise ValueError(
            f"verifier={verifier!r} does not go with sampling='gumbel', which verifies by match; "
            "use verifier='auto', or sampling='rejection'."
        )


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


def _as_ids(name: str, value: Any) -> list[int]:
    ids = value.tolist() if hasattr(value, "tolist") else value
    ids = [ids] if isinstance(ids, int) else list(ids)
    return [check_integer(name, token, 0, "give a token id, a list of them, or None.") for token in ids]


def _processors(settings: Mapping[str, Any], eos: frozenset[int], prompt_length: int) -> tuple[Any, ...]:
    """transformers' own processors, in the order of its `_get_logits_processor`."""
    built: list[Any] = []
    penalty = settings.get("repetition_penalty")
    if penalty is not None and penalty != 1.0:
        built.append(library.RepetitionPenaltyLogitsProcessor(penalty=float(penalty)))
    ngram = settings.get("no_repeat_ngram_size")
    if ngram:
        built.append(library.NoRepeatNGramLogitsProcessor(ngram))
    words = settings.get("bad_words_ids")
    if words:
        built.append(library.NoBadWordsLogitsProcessor(words, sorted(eos) or None))
    least = settings.get("min_new_tokens")
    if least and eos:
        check_integer("min_new_tokens", least, 0, "give how many tokens must come before EOS.")
        built.append(library.MinNewTokensLengthLogitsProcessor(prompt_length, least, sorted(eos)))
    suppressed = settings.get("suppress_tokens")
    if suppressed:
        built.append(library.SuppressTokensLogitsProcessor(_as_ids("suppress_tokens", suppressed)))
    return (*built, *(settings.get("logits_processor") or ()))


def settle(
    options: CallOptions, defaults: SamplingParams, own_eos: Sequence[int], prompt_length: int, where: str = "generate"
) -> Request:
    """Merge and validate one call's keywords.

    Raises:
        TypeError, ValueError: naming the argument, its value, the range and the remedy.
    """
    reject_unknown(options, where)
    config = options.get("generation_config")
    settings: dict[str, Any] = _from_config(config) if config is not None else {}
    settings |= {name: value for name, value in options.items() if value is not None or name == "eos_token_id"}
    _refuse_unsupported(settings)
    eos_setting = settings.get("eos_token_id", list(own_eos))
    eos = frozenset(_as_ids("eos_token_id", eos_setting)) if eos_setting is not None else frozenset()
    for name in ("max_new_tokens", "max_length"):
        if settings.get(name) is not None:
            check_integer(name, settings[name], 1, "give the number of tokens, or leave it out.")
    strings = settings.get("stop_strings") or ()
    strings = (strings,) if isinstance(strings, str) else tuple(strings)
    if not all(isinstance(string, str) and string for string in strings):
        raise ValueError(f"stop_strings={strings!r} must be non-empty strings; leave it out to stop at EOS only.")
    return Request(
        params=_sampling(settings, defaults),
        max_new_tokens=settings.get("max_new_tokens"),
        max_length=settings.get("max_length"),
        eos=eos,
        stop_strings=strings,
        processors=_processors(settings, eos, prompt_length),
        criteria=tuple(settings.get("stopping_criteria") or ()),
        options=options,
    )
