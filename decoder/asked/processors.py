"""transformers' logits processors: building them from keywords, telling which keep state, fitting them to a row.

A processor is called with one row's own tokens, without padding. Some processors count positions, so what the library
built for a padded prompt, or for a prompt of another length, is fitted to the row first.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.generation import logits_process as library

# Processors of this module are functions of (ids, scores): they may see drafted prefixes that are then rejected.
_STATELESS_MODULES = ("transformers.generation.logits_process",)
_STATEFUL_NAMES = {
    "SynthIDTextWatermarkLogitsProcessor",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",  # calls a function of the user's
}
# Attributes that count positions from the start of the prompt as transformers saw it.
_POSITIONS = {
    "MinLengthLogitsProcessor": "min_length",
    "MinNewTokensLengthLogitsProcessor": "prompt_length_to_skip",
    "ForcedEOSTokenLogitsProcessor": "max_length",
    "SuppressTokensAtBeginLogitsProcessor": "begin_index",
    "ExponentialDecayLengthPenalty": "regulation_start",
    "RepetitionPenaltyLogitsProcessor": "prompt_ignore_length",
}


def keeps_state(processor: Any) -> bool:
    """Whether a processor may depend on the order and number of its calls. A user's own may, unless it says
    `stateless = True`."""
    kind = type(processor)
    if getattr(processor, "stateless", False):
        return False
    return kind.__module__ not in _STATELESS_MODULES or kind.__name__ in _STATEFUL_NAMES


def check_one_row(processors: Sequence[Any], rows: int) -> None:
    """A processor with state would see the prefixes of several texts mixed.

    Raises:
        ValueError: naming the processor and the remedy.
    """
    mixed = next((type(processor).__name__ for processor in processors if keeps_state(processor)), None)
    if rows > 1 and mixed is not None:
        raise ValueError(
            f"logits_processor {mixed} may keep state and cannot serve {rows} texts at once; call once per prompt with "
            "a fresh processor, or set `stateless = True` on it if it is a function of its arguments alone."
        )


def counts_positions(processor: Any) -> bool:
    """Whether it must be fitted to each row's length."""
    name = _POSITIONS.get(type(processor).__name__)
    return name is not None and getattr(processor, name, None) is not None


def fitted(processor: Any, cut: int, row: int) -> Any:
    """The processor for batch row `row`, whose prompt has `cut` positions fewer than the one it was built for."""
    if not counts_positions(processor):
        return processor
    name = _POSITIONS[type(processor).__name__]
    value = getattr(processor, name)
    if isinstance(value, torch.Tensor):
        value = int(value.reshape(-1)[row if value.numel() > 1 else 0])
    twin = copy.copy(processor)
    setattr(twin, name, max(0, value - cut))
    return twin


def moved(processor: Any, device: torch.device) -> Any:
    """A copy whose tensors live on another device: a draft's."""
    twin = copy.deepcopy(processor)
    for name, value in vars(twin).items():
        if isinstance(value, torch.Tensor):
            setattr(twin, name, value.to(device))
    if hasattr(twin, "prepared_bias_variables"):
        twin.prepared_bias_variables = False
    return twin


def from_settings(
    settings: Mapping[str, Any], eos: frozenset[int], prompt_length: int, device: torch.device
) -> tuple[Any, ...]:
    """transformers' own processors for settled keywords, in the order of its `_get_logits_processor`."""
    built: list[Any] = []
    penalty = settings.get("repetition_penalty", 1.0)
    if penalty != 1.0:
        built.append(library.RepetitionPenaltyLogitsProcessor(penalty=penalty))
    if settings.get("no_repeat_ngram_size"):
        built.append(library.NoRepeatNGramLogitsProcessor(settings["no_repeat_ngram_size"]))
    words = settings.get("bad_words_ids", [])
    if any(len(word) > 1 or word[0] not in eos for word in words):  # transformers never bans EOS by itself
        built.append(library.NoBadWordsLogitsProcessor(words, sorted(eos) or None))
    least = settings.get("min_new_tokens")
    if least and eos:
        stops = torch.tensor(sorted(eos), device=device)
        built.append(library.MinNewTokensLengthLogitsProcessor(prompt_length, least, stops))
    if settings.get("suppress_tokens"):
        built.append(library.SuppressTokensLogitsProcessor(settings["suppress_tokens"], device=str(device)))
    return tuple(built)
