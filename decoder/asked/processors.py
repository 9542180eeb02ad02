"""Logits processors: transformers' own built for one row, told apart by whether they keep state, fitted to a row.

Those built here are built for one row, and called with its own tokens. What was built for several texts together, by
the caller or by transformers (`custom_generate`), is taken apart: `for_row`. Behind `custom_generate` processors see a
row as transformers shows it, padding included, so that they count as they do there.
This is the one place that knows how transformers builds its processors (`GenerationMixin._get_logits_processor`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import logits_process as library

from decoder.types import Limits, SamplingParams

# Processors of this module are functions of (ids, scores): they may see drafted prefixes that are then rejected.
_STATELESS_MODULES = ("transformers.generation.logits_process",)
_STATEFUL_NAMES = {
    "SynthIDTextWatermarkLogitsProcessor",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",  # calls a function of the user's
    "WhisperNoSpeechDetection",
    "DiaEOSDelayPatternLogitsProcessor",
}
# Fields of a generation_config for which transformers builds a processor, with the values that ask for none.
FIELDS: Mapping[str, Any] = {
    "guidance_scale": 1,
    "sequence_bias": None,
    "encoder_repetition_penalty": 1.0,
    "repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "no_repeat_ngram_size": 0,
    "bad_words_ids": [],
    "min_length": 0,
    "min_new_tokens": 0,
    "forced_bos_token_id": None,
    "forced_eos_token_id": [],
    "remove_invalid_values": False,
    "exponential_decay_length_penalty": None,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "watermarking_config": None,
    "renormalize_logits": False,
}
_LAST = {"watermarking_config", "renormalize_logits"}  # stand behind the warpers
# The same for what goes with sampling only and stands among the warpers.
WARPER_FIELDS: Mapping[str, Any] = {
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "top_h": None,
}
# What transformers fills in before it builds processors.
_PLAIN: Mapping[str, Any] = {"do_sample": False, "num_beams": 1, "num_return_sequences": 1, "use_cache": True}
# Settings for which there is a processor to make or to hand on.
ASKED_BY = (
    FIELDS.keys()
    | WARPER_FIELDS.keys()
    | {"logits_processor", "prefix_allowed_tokens_fn", "frequency_penalty", "presence_penalty"}
)
_WARPERS = {  # in the order in which this decoder applies them
    library.TemperatureLogitsWarper: "temperature",
    library.TopKLogitsWarper: "top_k",
    library.TopPLogitsWarper: "top_p",
    library.MinPLogitsWarper: "min_p",
}


class OccurrencePenalty(library.LogitsProcessor):  # type: ignore[misc]  # transformers is not typed
    """Lowers the scores of tokens that were written before, the prompt not counted.

    scores -= frequency * (times written) + presence * (written at all): OpenAI's frequency_penalty, presence_penalty.
    """

    stateless = True

    def __init__(self, prompt_length: int, frequency: float, presence: float) -> None:
        self.prompt_length, self.frequency, self.presence = prompt_length, frequency, presence

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """input_ids [1, L], scores [1, V] -> [1, V]"""
        written = input_ids[:, self.prompt_length :].to(scores.device)
        counts = torch.zeros_like(scores).scatter_add_(1, written, torch.ones_like(written, dtype=scores.dtype))
        return scores - self.frequency * counts - self.presence * (counts > 0)


def keeps_state(processor: Any) -> bool:
    """Whether a processor may depend on the order and number of its calls. A user's own may, unless it says
    `stateless = True`."""
    kind = type(processor)
    if getattr(processor, "stateless", False):
        return False
    return kind.__module__ not in _STATELESS_MODULES or kind.__name__ in _STATEFUL_NAMES


def check_not_shared(rows: Sequence[Sequence[Any]]) -> None:
    """A processor with state would see the prefixes of several texts mixed. rows: the processors of each text.

    Raises:
        ValueError: naming the processor and the remedy.
    """
    seen: set[int] = set()
    for processor in (each for row in rows for each in row if len(rows) > 1 and keeps_state(each)):
        if id(processor) in seen:
            raise ValueError(
                f"logits_processor {type(processor).__name__} may keep state and cannot serve {len(rows)} texts at "
                "once; call once per prompt with a fresh processor, or set `stateless = True` on it if it is a "
                "function of its arguments alone."
            )
        seen.add(id(processor))


def for_row(processor: Any, row: int, rows: int) -> Any:
    """The processor for text `row` of `rows`; one of transformers' that was built for all of them together holds
    something of each, and keeps this text's part. Those with state begin anew."""
    if rows == 1 or type(processor).__module__ not in _STATELESS_MODULES:
        return processor
    twin = copy.copy(processor)

    def own(batch: Any) -> Any:
        """This row's part of a batch; one part may serve several texts of one prompt."""
        at = row * len(batch) // rows
        return batch[at : at + 1]

    if isinstance(twin, library.RepetitionPenaltyLogitsProcessor):
        if isinstance(twin.prompt_ignore_length, Tensor):  # [B]
            twin.prompt_ignore_length = own(twin.prompt_ignore_length)
    elif isinstance(twin, library.EncoderRepetitionPenaltyLogitsProcessor):
        twin.encoder_input_ids = own(twin.encoder_input_ids)  # [B, L]
    elif isinstance(twin, library.EncoderNoRepeatNGramLogitsProcessor):
        twin.generated_ngrams, twin.batch_size = own(twin.generated_ngrams), 1
    elif isinstance(twin, library.UnbatchedClassifierFreeGuidanceLogitsProcessor):
        held = twin.unconditional_context
        parts = {name: own(held[name]) for name in ("input_ids", "attention_mask") if held[name] is not None}
        twin.unconditional_context = {**held, **parts}
    elif isinstance(twin, library.SynthIDTextWatermarkLogitsProcessor):
        twin.state = None
    elif isinstance(twin, library.PrefixConstrainedLogitsProcessor):
        allowed, prompt = twin._prefix_allowed_tokens_fn, row // twin._num_beams
        twin._prefix_allowed_tokens_fn, twin._num_beams = (lambda _, ids: allowed(prompt, ids)), 1
    return twin


def of_text(asked: Mapping[str, Any], prompt: int, row: int, rows: int) -> dict[str, Any]:
    """Settled options as they are for one text: text `row` of the `rows` that share its processors."""
    found = dict(asked)
    if "logits_processor" in found:
        found["logits_processor"] = tuple(for_row(each, row, rows) for each in found["logits_processor"])
    if (allowed := found.get("prefix_allowed_tokens_fn")) is not None:
        found["prefix_allowed_tokens_fn"] = lambda _, ids: allowed(prompt, ids)  # transformers tells it the prompt
    return found


def moved(processor: Any, device: torch.device) -> Any:
    """A copy whose tensors live on another device: a draft's."""
    twin = copy.deepcopy(processor)
    for name, value in vars(twin).items():
        if isinstance(value, torch.Tensor):
            setattr(twin, name, value.to(device))
    if hasattr(twin, "prepared_bias_variables"):
        twin.prepared_bias_variables = False
    return twin


def split(processors: Sequence[Any], scores: bool = False) -> tuple[SamplingParams, tuple[Any, ...]]:
    """The warpers at the end of transformers' list become parameters; everything before them stays, in its place.

    scores: the caller reads them, so that their normalisation, which changes no probability, stays as well.
    Warpers are functions of the scores, so one that stands elsewhere (twice, or before a watermark) is exact there too.
    """
    rest = list(processors)
    while not scores and rest and isinstance(rest[-1], library.LogitNormalization):
        rest.pop()
    values: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    order = list(_WARPERS)
    while rest and type(rest[-1]) in order and _is_plain(rest[-1]):
        kind = type(rest[-1])
        values[_WARPERS[kind]] = getattr(rest.pop(), _WARPERS[kind])
        order = order[: order.index(kind)]
    return SamplingParams(**values), tuple(rest)


def _is_plain(processor: Any) -> bool:
    """A warper with transformers' usual settings, for which `SamplingParams` can stand."""
    usual = getattr(processor, "filter_value", -float("inf")) == -float("inf")
    return usual and getattr(processor, "min_tokens_to_keep", 1) == 1


def build(
    asked: Mapping[str, Any], params: SamplingParams, tokens: Sequence[int], limits: Limits, model: Any, device: Any
) -> tuple[SamplingParams, tuple[Any, ...]]:
    """All processors of one row in transformers' order (its own, the caller's, the penalties here), and the warpers
    that come after them.

    asked: settled options; tokens: the row's prompt.

    Raises:
        ValueError: what transformers says of a value that it cannot build a processor from.
    """
    wanted = _wanted(asked, FIELDS)
    if not any(len(word) > 1 or word[0] not in limits.eos for word in wanted.get("bad_words_ids", ())):
        wanted.pop("bad_words_ids", None)  # transformers never bans EOS by itself
    reads_scores = bool(asked.get("output_scores"))
    if not reads_scores:
        wanted.pop("renormalize_logits", None)  # changes no probability
    warpers = {} if params.greedy else _wanted(asked, WARPER_FIELDS)
    given = list(asked.get("logits_processor", ()))
    penalties = asked.get("frequency_penalty", 0.0), asked.get("presence_penalty", 0.0)
    if any(penalties):
        given.append(OccurrencePenalty(len(tokens), *penalties))
    if not (wanted or warpers or "prefix_allowed_tokens_fn" in asked):
        return params, tuple(given)
    among_warpers = bool(warpers) or (not params.greedy and bool(_LAST & wanted.keys()))
    if among_warpers:
        warpers |= {"do_sample": True} | {name: getattr(params, name) for name in _WARPERS.values()}
    values = {"max_length": limits.max_length, "eos_token_id": sorted(limits.eos) or None, **_PLAIN}
    try:
        config = GenerationConfig(**(values | wanted | warpers))
        found = _by_transformers(config, given, asked.get("prefix_allowed_tokens_fn"), tokens, model, device)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"transformers cannot build processors for {wanted | warpers!r:.300}: {error}") from error
    return split(found, reads_scores) if among_warpers else (params, tuple(found))


def _wanted(asked: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: asked[name] for name, off in fields.items() if name in asked and asked[name] != off}


def _by_transformers(
    config: GenerationConfig, given: list[Any], allowed: Any, tokens: Sequence[int], model: Any, device: Any
) -> list[Any]:
    """A processor of the caller's takes the place of transformers' own of the same class, as in `generate`."""
    GenerationMixin._prepare_special_tokens(model, config, True, device=device)
    found: list[Any] = GenerationMixin._get_logits_processor(
        model,
        generation_config=config,
        input_ids_seq_length=len(tokens),
        encoder_input_ids=torch.tensor([list(tokens)], device=device),  # [1, L]
        prefix_allowed_tokens_fn=allowed,
        logits_processor=library.LogitsProcessorList(given),
        device=str(device),
        model_kwargs={},
    )
    return found
