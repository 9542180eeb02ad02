"""What one call asks for, as one frozen value: a `RowRequest` for each text to write, and what they share.

Names and meanings are those of transformers' `generate`. A row's own setting (`per_row`) wins over a keyword, that over
a `generation_config`, that over the model's own `generation_config`, and that over the decoder's default. Nothing is
ignored: what is not supported is refused by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from transformers import GenerationConfig

from decoder.asked import processors
from decoder.asked.options import CHECKS, CallOptions, as_ids, check_pair, reject_unknown, settled
from decoder.asked.prompts import encode, limits_for
from decoder.controllers import Length, check_length
from decoder.grammar import GrammarMask
from decoder.models.fixed import check_invariant
from decoder.models.hf import CausalModel
from decoder.randomness import fresh_seed
from decoder.types import Drafter, Limits, SamplingParams, Verifier

# Fields of a generation_config that change nothing about the tokens of a decoder-only run, or are read elsewhere.
_HARMLESS = frozenset(
    "bos_token_id decoder_start_token_id transformers_version cache_implementation cache_config return_unused_kwargs "
    "return_legacy_cache disable_compile "
    "prefill_chunk_size num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold "
    "prompt_lookup_num_tokens max_matching_ngram_size assistant_early_exit assistant_lookbehind target_lookbehind "
    "low_memory compile_config continuous_batching_config early_stopping length_penalty num_beam_groups "
    "diversity_penalty is_assistant speculative_decoding_config".split()
)
# What transformers means by "off" for features this decoder does not have.
_OFF: Mapping[str, Any] = {"token_healing": False, "output_attentions": False, "output_hidden_states": False}
# Fields of the model's own generation_config that a call takes over: how a text is written and where it ends. How it
# is sampled (temperature and the like) is the decoder's own setting.
_INHERITED = frozenset(processors.FIELDS) | {"max_new_tokens", "max_length", "stop_strings", "max_time"}


class Asker(Protocol):
    """What a request takes from the decoder it is made for."""

    target: Any  # the model as the caller gave it
    tokenizer: Any
    params: SamplingParams
    verifier: str | Verifier
    seed: int | None
    sampling: str

    @property
    def target_model(self) -> CausalModel: ...


@dataclass(frozen=True)
class RowRequest:
    """What is asked of one text.

    tokens: the prompt's ids, without padding; padding: ids that stood before them, which processors and stopping
        criteria see.
    processors: in transformers' order, warpers excluded; criteria: the caller's stopping criteria.
    seed, stream: what the row's random stream is made of, so that it does not depend on its neighbours.
    """

    tokens: list[int]
    params: SamplingParams
    limits: Limits
    seed: int = 0
    stream: int = 0
    stop_strings: tuple[str, ...] = ()
    processors: tuple[Any, ...] = ()
    criteria: tuple[Any, ...] = ()
    max_time: float | None = None
    padding: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Request:
    """A validated call.

    many: the caller gave several prompts, or wants several texts, and gets a list.
    drafter: as the caller named it; None is the decoder's own.
    """

    rows: tuple[RowRequest, ...]
    many: bool
    k: Length
    drafter: str | Drafter | None = None
    verifier: str | Verifier = "auto"
    sampling: str = "rejection"
    invariant: bool = False
    batch_size: int = 16
    progress: bool = False
    streamer: Any = None
    cache: Any = None
    return_cache: bool = False
    return_dict: bool = False
    pad_token_id: int | None = None
    logprobs: int | None = None
    output_scores: bool = False
    output_logits: bool = False

    @classmethod
    def of(cls, prompt: Any, options: CallOptions, k: Length, where: str, asker: Asker) -> Request:
        """Read one call: a single pass over its keywords, before any model runs.

        Raises:
            TypeError, ValueError: naming the argument, its value, the range and the remedy.
        """
        if type(k) is not int or k < 0:
            check_length(k)
        if options:
            reject_unknown(options, where)
        prompts, many = encode(
            prompt,
            asker.tokenizer,
            options.get("attention_mask"),
            lambda: _padding(options, asker),
            asker.target_model.embedding_size,
        )
        asked = _merged(options, asker)
        copies = asked.get("num_return_sequences", 1)
        request = cls(
            rows=tuple(_rows(prompts, asked, copies, asker)),
            many=many or copies > 1,
            k=k,
            drafter=asked.get("drafter"),
            verifier=asked.get("verifier", asker.verifier),
            sampling=asked.get("sampling", asker.sampling),
            invariant=asked.get("invariant", False),
            batch_size=asked.get("batch_size", 16),
            progress=asked.get("progress", False),
            streamer=asked.get("streamer"),
            cache=asked.get("cache"),
            return_cache=asked.get("return_cache", False),
            return_dict=asked.get("return_dict_in_generate", False),
            pad_token_id=asked.get("pad_token_id"),
            logprobs=asked.get("logprobs"),
            output_scores=asked.get("output_scores", False),
            output_logits=asked.get("output_logits", False),
        )
        request.check(asker.target_model)
        return request

    @property
    def recorded(self) -> bool:
        """Whether results hold what the target said of each token."""
        return self.logprobs is not None or self.output_scores or self.output_logits

    def check(self, target: CausalModel) -> None:
        """What goes with one text only, with some draft lengths only, with some verifiers only.

        Raises:
            ValueError: naming the argument and the remedy.
        """
        for name in ("streamer", "cache", "return_cache"):
            if getattr(self, name) and len(self.rows) > 1:
                raise ValueError(f"{name}= goes with one prompt, not {len(self.rows)}; call once per prompt.")
        if len(self.rows) > 1:
            processors.check_not_shared([row.processors for row in self.rows])
        if self.sampling != "rejection":
            check_pair(self.sampling, self.verifier)
        if self.invariant:
            check_invariant(self.k, target.model.config._attn_implementation)


_SHARED_BY_TEXTS = {"logits_processor", "prefix_allowed_tokens_fn"}  # which each text sees in its own way


def _rows(prompts: Sequence[list[int]], asked: Mapping[str, Any], copies: int, asker: Asker) -> list[RowRequest]:
    own = asked.get("per_row")
    if own is not None and len(own) != len(prompts):
        raise ValueError(f"per_row holds {len(own)} settings for {len(prompts)} prompts; give one dict for each.")
    call_seed = seed_for(asked.get("seed"), asker)
    rows = []
    for number, tokens in enumerate(prompts):
        mine = {} if own is None else settled(own[number])
        settings = _merge(asked, mine)
        for copy in range(copies):
            # With a seed of its own a row writes what it would write alone.
            text = number * copies + copy
            seed, stream = (mine["seed"], copy) if "seed" in mine else (call_seed, text)
            place = (copy, copies) if "logits_processor" in mine else (text, len(prompts) * copies)
            alone = not _SHARED_BY_TEXTS & settings.keys()
            text_settings = settings if alone else processors.of_text(settings, number, *place)
            rows.append(_row(tokens, text_settings, seed, stream, asker))
    return rows


def _row(tokens: list[int], asked: Mapping[str, Any], seed: int, stream: int, asker: Asker) -> RowRequest:
    target = asker.target_model
    _check_together(asked, asker)
    eos = frozenset((asked["eos_token_id"] if "eos_token_id" in asked else own_eos(asker)) or ())
    limits = limits_for(asked, len(tokens), eos, target.context_length)
    params, built = _sampling(asked, asker.params), ()
    if "grammar" in asked:
        mask = GrammarMask(asked["grammar"], asker.tokenizer, target.vocab_size, len(tokens), limits.eos)
        asked = {**asked, "logits_processor": (*asked.get("logits_processor", ()), mask)}
    if processors.ASKED_BY & asked.keys():
        params, built = processors.build(asked, params, tokens, limits, asker.target, target.device)
    return RowRequest(
        tokens=tokens,
        params=params,
        limits=limits,
        seed=seed,
        stream=stream,
        stop_strings=asked.get("stop_strings", ()),
        processors=built,
        criteria=asked.get("stopping_criteria", ()),
        max_time=asked.get("max_time"),
    )


def own_eos(asker: Asker) -> list[int]:
    """The ids that end a text where the call names none: the model's, as in transformers."""
    own = getattr(asker.target.generation_config, "eos_token_id", None)
    if own is None and getattr(asker.tokenizer, "eos_token_id", None) is not None:
        warnings.warn(
            f"the target's generation_config names no eos_token_id, so that no token ends a text, as in transformers; "
            f"its tokenizer's is {asker.tokenizer.eos_token_id}: pass eos_token_id= if texts should end there.",
            stacklevel=2,
        )
    return [] if own is None else [own] if isinstance(own, int) else list(own)


def seed_for(asked: int | None, asker: Asker) -> int:
    """The call's seed, else the decoder's, else one drawn from torch's global generator."""
    seed = asker.seed if asked is None else asked
    return fresh_seed() if seed is None else seed


def _padding(options: CallOptions, asker: Asker) -> int | None:
    """The id that transformers takes for padding where a tensor has no mask: pad, unless it is an EOS."""
    sources = (options.get("generation_config"), asker.target.generation_config)
    found = []
    for name in ("pad_token_id", "eos_token_id"):
        held = [getattr(source, name, None) for source in sources]
        found.append(options.get(name, held[0] if held[0] is not None else held[1]))
    pad, eos = found
    if not isinstance(pad, int) or eos is None:
        return pad if isinstance(pad, int) else None
    return None if pad in as_ids("eos_token_id", eos) else pad


_LENGTHS = {"max_new_tokens", "max_length"}
_SAMPLING = {"temperature", "top_p", "top_k", "min_p"}


def _merge(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """Nearer sources over farther ones; a length replaces the other one, `sampling_params` each of its parts."""
    merged: dict[str, Any] = {}
    for source in sources:
        replaced = _LENGTHS if _LENGTHS & source.keys() else set()
        replaced = replaced | (_SAMPLING if "sampling_params" in source else set())
        merged = {name: value for name, value in merged.items() if name not in replaced} | dict(source)
    return merged


def _merged(options: CallOptions, asker: Asker) -> dict[str, Any]:
    """The model's generation_config, the call's over it, its keywords over both."""
    given = settled(options) if options else {}
    own = _from_config(asker.target.generation_config, "the target's generation_config", _INHERITED)
    config = given.get("generation_config")
    passed = {} if config is None else _from_config(config, "generation_config", frozenset(CHECKS))
    return _merge(own, passed, given)


def _from_config(config: GenerationConfig, what: str, known: frozenset[str]) -> dict[str, Any]:
    """The fields of a generation_config that are set and mean something here; a call's own may hold nothing else."""
    found = {}
    for name, value in vars(config).items():
        if name.startswith("_") or value is None or name in _HARMLESS:
            continue
        if name in known:
            found[name] = value
        elif what == "generation_config" and (name not in _OFF or value != _OFF[name]):
            raise ValueError(
                f"{what}.{name}={value!r} is not supported here; unset it, or use transformers' generate()."
            )
    if found.get("max_new_tokens") is not None:
        found.pop("max_length", None)  # as in transformers
    return settled(found) if found else found


def _check_together(asked: Mapping[str, Any], asker: Asker) -> None:
    """Values that are right by themselves and wrong for this decoder."""
    size = asker.target_model.vocab_size
    for word in asked.get("bad_words_ids", ()):
        if max(word) >= size:
            raise ValueError(f"bad_words_ids={word!r} holds an id outside [0, {size}).")
    if asked.get("stop_strings") and asker.tokenizer is None:
        raise ValueError(f"stop_strings={list(asked['stop_strings'])!r} needs a tokenizer; pass one.")
    if "grammar" in asked and asker.tokenizer is None:
        raise ValueError(f"grammar={asked['grammar']!r} needs a tokenizer; pass tokenizer= when building the decoder.")


def _sampling(asked: Mapping[str, Any], defaults: SamplingParams) -> SamplingParams:
    params: SamplingParams = asked.get("sampling_params", defaults)
    changes = {name: asked[name] for name in ("temperature", "top_p", "top_k", "min_p") if name in asked}
    if changes:
        params = replace(params, **changes)
    if asked.get("do_sample") is True and params.greedy:
        raise ValueError("do_sample=True contradicts temperature=0 (greedy); give a temperature > 0.")
    return replace(params, temperature=0.0) if asked.get("do_sample") is False else params
