"""What one call asks for, as one frozen value: prompt, keywords, `generation_config` and the decoder's defaults.

Names and meanings are those of transformers' `generate`. A keyword wins over a `generation_config`, which
wins over the decoder's own default. Nothing is ignored: what is not supported is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from transformers import GenerationConfig

from decoder.asked import processors
from decoder.asked.options import CHECKS, CallOptions, as_ids, check_pair, reject_unknown, settled
from decoder.asked.prompts import encode
from decoder.controllers import Length
from decoder.models.fixed import check_invariant
from decoder.models.hf import CausalModel
from decoder.randomness import fresh_seed
from decoder.types import Drafter, Limits, SamplingParams, Verifier

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
# What transformers means by "off" for features this decoder does not have.
_OFF: Mapping[str, Any] = {
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "renormalize_logits": False,
    "remove_invalid_values": False,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "token_healing": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "output_scores": False,
    "output_logits": False,
}


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


@dataclass(frozen=True, kw_only=True)
class Request:
    """A validated call.

    rows: token ids of each text to write, without padding; limits: where each of them ends.
    many: the caller gave several prompts, or wants several texts, and gets a list.
    prompt_length: positions of the prompt for which `built` was made.
    built, given: processors in transformers' order, warpers excluded; those made here or by transformers, and the
        caller's own objects.
    drafter: as the caller named it; None is the decoder's own.
    """

    rows: tuple[list[int], ...]
    many: bool
    k: Length
    params: SamplingParams
    limits: tuple[Limits, ...]
    prompt_length: int
    stop_strings: tuple[str, ...] = ()
    built: tuple[Any, ...] = ()
    given: tuple[Any, ...] = ()
    criteria: tuple[Any, ...] = ()
    seed: int = 0
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

    @classmethod
    def of(cls, prompt: Any, options: CallOptions, k: Length, where: str, asker: Asker) -> Request:
        """Read one call: a single pass over its keywords, before any model runs.

        Raises:
            TypeError, ValueError: naming the argument, its value, the range and the remedy.
        """
        reject_unknown(options, where)
        target = asker.target_model
        rows, many = encode(
            prompt, asker.tokenizer, options.get("attention_mask"), _padding(options, asker), target.embedding_size
        )
        asked = _merged(options)
        eos = asked["eos_token_id"] if "eos_token_id" in asked else own_eos(asker)
        _check_together(asked, asker)
        copies = asked.get("num_return_sequences", 1)
        limits = [_limits(asked, len(row), frozenset(eos or ()), target.context_length) for row in rows]
        request = cls(
            rows=tuple(row for row in rows for _ in range(copies)),
            many=many or copies > 1,
            k=k,
            params=_sampling(asked, asker.params),
            limits=tuple(limit for limit in limits for _ in range(copies)),
            prompt_length=len(rows[0]),
            stop_strings=asked.get("stop_strings", ()),
            built=processors.from_settings(asked, frozenset(eos or ()), len(rows[0]), target.device),
            given=asked.get("logits_processor", ()),
            criteria=asked.get("stopping_criteria", ()),
            seed=seed_for(asked.get("seed"), asker),
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
        )
        request.check(target)
        return request

    @property
    def processors(self) -> tuple[Any, ...]:
        return (*self.built, *self.given)

    @property
    def counts_positions(self) -> bool:
        """Whether some processor depends on the prompt's length, so that rows of different lengths cannot share it."""
        return any(processors.counts_positions(processor) for processor in self.built)

    def for_row(self, row: int) -> Request:
        """The request with its processors fitted to the batch that begins with this row."""
        cut = self.prompt_length - len(self.rows[row])
        return replace(self, built=tuple(processors.fitted(processor, cut, row) for processor in self.built))

    def check(self, target: CausalModel) -> None:
        """What goes with one text only, with some draft lengths only, with some verifiers only.

        Raises:
            ValueError: naming the argument and the remedy.
        """
        for name in ("streamer", "cache", "return_cache"):
            if getattr(self, name) and len(self.rows) > 1:
                raise ValueError(f"{name}= goes with one prompt, not {len(self.rows)}; call once per prompt.")
        processors.check_one_row(self.given, len(self.rows))
        check_pair(self.sampling, self.verifier)
        if self.invariant:
            check_invariant(self.k, target.model.config._attn_implementation)


def own_eos(asker: Asker) -> list[int]:
    """The ids that end a text where the call names none: the model's, else the tokenizer's."""
    own = getattr(asker.target.generation_config, "eos_token_id", None)
    if own is None and asker.tokenizer is not None:
        own = asker.tokenizer.eos_token_id
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


def _merged(options: CallOptions) -> dict[str, Any]:
    """The call's keywords over its generation_config; a length given as a keyword replaces the config's other one."""
    given = settled(options)
    config = given.get("generation_config")
    held = {} if config is None else _from_config(config)
    replaced: set[str] = set()
    if given.keys() & {"max_new_tokens", "max_length"}:
        replaced |= {"max_new_tokens", "max_length"}
    if "sampling_params" in given:
        replaced |= {"temperature", "top_p", "top_k", "min_p"}
    return settled({name: value for name, value in held.items() if name not in replaced | given.keys()}) | given


def _from_config(config: GenerationConfig) -> dict[str, Any]:
    """The fields of a generation_config that are set and mean something here; refuses what would be ignored."""
    found = {}
    for name, value in vars(config).items():
        if name.startswith("_") or value is None or name in _HARMLESS:
            continue
        if name in CHECKS:
            found[name] = value
        elif name not in _OFF or value != _OFF[name]:
            raise ValueError(
                f"generation_config.{name}={value!r} is not supported here; unset it, or use transformers' generate()."
            )
    return found


def _check_together(asked: Mapping[str, Any], asker: Asker) -> None:
    """Values that are right by themselves and wrong for this decoder."""
    size = asker.target_model.vocab_size
    for word in asked.get("bad_words_ids", ()):
        if max(word) >= size:
            raise ValueError(f"bad_words_ids={word!r} holds an id outside [0, {size}).")
    if "stop_strings" in asked and asker.tokenizer is None:
        raise ValueError(f"stop_strings={list(asked['stop_strings'])!r} needs a tokenizer; pass one.")


def _sampling(asked: Mapping[str, Any], defaults: SamplingParams) -> SamplingParams:
    params: SamplingParams = asked.get("sampling_params", defaults)
    changes = {name: asked[name] for name in ("temperature", "top_p", "top_k", "min_p") if name in asked}
    if changes:
        params = replace(params, **changes)
    if asked.get("do_sample") is True and params.greedy:
        raise ValueError("do_sample=True contradicts temperature=0 (greedy); give a temperature > 0.")
    return replace(params, temperature=0.0) if asked.get("do_sample") is False else params


def _limits(asked: Mapping[str, Any], prompt_length: int, eos: frozenset[int], context: int | None) -> Limits:
    """Where the text after one prompt ends.

    Raises:
        ValueError: a prompt that leaves no room, or lengths that contradict each other.
    """
    new, total = asked.get("max_new_tokens"), asked.get("max_length")
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
    if total is not None:
        new = total - prompt_length
    return room_for(prompt_length, DEFAULT_NEW_TOKENS if new is None else new, eos, context)


def room_for(prompt_length: int, new: int, eos: frozenset[int], context: int | None) -> Limits:
    """`new` tokens after a prompt, or as many as the target's context has room for.

    Raises:
        ValueError: a prompt longer than the context.
    """
    total = prompt_length + new
    if context is not None:
        if prompt_length > context:
            raise ValueError(
                f"prompt of {prompt_length} tokens is longer than the target's context of {context}; shorten it."
            )
        total = min(total, max(context, prompt_length + 1))  # a full context still has the token after its last
    return Limits(total - prompt_length, total, eos)
