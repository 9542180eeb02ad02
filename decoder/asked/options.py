"""The options of a call: each is named, typed and given its check in one table, `CallOptions`.

A new option is one line here and the line in `request` that reads it; `ROW` marks those that `per_row` takes. Names and
meanings are those of transformers' `generate`; errors name the argument, its value, the range and the remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypedDict, get_type_hints

from transformers import GenerationConfig

from decoder import checks
from decoder.checks import at_least
from decoder.drafters import DRAFTERS
from decoder.grammar import Grammar, grammar_of
from decoder.randomness import SOURCES
from decoder.types import Drafter, SamplingParams
from decoder.verify import VERIFIERS

ROW = "row"  # marks options that may differ between the rows of a batch: `per_row` takes them
Check = Callable[[str, Any], Any]  # (name, value that is not None) -> the value in its settled form, or an error


def count(least: int, remedy: str = "give a number of that size, or leave it out.") -> Check:
    """An integer of at least `least`."""
    return lambda name, value: at_least(name, value, least, remedy)


def switch(name: str, value: Any) -> bool:
    """True or False."""
    return checks.switch(name, value, "leave it out.")


def as_ids(name: str, value: Any) -> list[int]:
    """A token id, or several in any container, as a list."""
    ids = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(ids, bool) or not isinstance(ids, (int, Sequence, frozenset, set)) or isinstance(ids, (str, bytes)):
        raise TypeError(f"{name}={value!r} must be a token id or a list of them; leave it out for the default.")
    ids = [ids] if isinstance(ids, int) else list(ids)
    found = [at_least(name, token, 0, "give a token id, a list of them, or None.") for token in ids]
    if max(found, default=0) >= 2**63:
        raise ValueError(f"{name}={max(found)} is no token id; give ids of the model's vocabulary.")
    return found


_LEAST_PENALTY = 1e-6  # logits are divided by it: smaller ones overflow


def penalty(name: str, value: Any) -> float:
    """A factor that logits are divided by."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}={value!r} must be a number > 0; 1.0 means none.")
    if not _LEAST_PENALTY <= value < float("inf"):
        raise ValueError(f"{name}={value!r} must be > 0, at least {_LEAST_PENALTY:g}, and finite; 1.0 means none.")
    return float(value)


def words(name: str, value: Any) -> list[list[int]]:
    """Sequences of token ids."""
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or not all(isinstance(word, Sequence) and not isinstance(word, str) and len(word) > 0 for word in value)
    ):
        raise TypeError(f"{name}={value!r} must be a list of non-empty lists of token ids.")
    return [as_ids(name, word) for word in value]


def strings(name: str, value: Any) -> tuple[str, ...]:
    """A string or several."""
    if not isinstance(value, (str, Sequence)):
        raise TypeError(f"{name}={value!r} must be a string or a list of strings; leave it out to stop at EOS.")
    found = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(string, str) and string for string in found):
        raise ValueError(f"{name}={found!r} must be non-empty strings; leave it out to stop at EOS only.")
    return found


def callables(name: str, value: Any) -> tuple[Any, ...]:
    """A list of callables: processors, stopping criteria."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(callable(each) for each in value):
        raise TypeError(f"{name}={value!r} must be a list of callables, as transformers' {name} is; put it in a list.")
    return tuple(value)


def streamer(name: str, value: Any) -> Any:
    """Something with transformers' streamer protocol."""
    if not (hasattr(value, "put") and hasattr(value, "end")):
        raise TypeError(f"{name}={value!r} must have put() and end(), as transformers' streamers do.")
    return value


def config(name: str, value: Any) -> GenerationConfig:
    if not isinstance(value, GenerationConfig):
        raise TypeError(f"{name}={value!r} must be a transformers GenerationConfig.")
    return value


def sampling_params(name: str, value: Any) -> SamplingParams:
    if not isinstance(value, SamplingParams):
        raise TypeError(f"{name}={value!r} must be a SamplingParams, as in SamplingParams(temperature=0.8, top_p=0.9).")
    return value


def seed(name: str, value: Any) -> int:
    return at_least(name, value, 0, "use None for a fresh one each call.")


def drafter(name: str, value: Any) -> str | Drafter:
    """A name that exists, or an object."""
    if isinstance(value, str) and value not in DRAFTERS:
        raise ValueError(f"{name}={value!r} is unknown; use one of {sorted(DRAFTERS)} or a Drafter object.")
    if not isinstance(value, (str, Drafter)):
        raise TypeError(f"{name}={value!r} must be a name or a Drafter; subclass decoder.Drafter.")
    return value


def check_head(head: Any, drafter: str | Drafter | None) -> None:
    """A draft head goes with the drafter that runs it."""
    if head is not None and drafter not in (None, "eagle"):
        raise ValueError(f"head={head!r} goes with drafter='eagle', not {drafter!r}; leave one of them out.")


def verifier(name: str, value: Any) -> Any:
    """A name that exists, or something to call."""
    if isinstance(value, str) and value not in VERIFIERS:
        raise ValueError(f"{name}={value!r} is unknown; use one of {sorted(VERIFIERS)} or a Verifier object.")
    if not isinstance(value, str) and not callable(value):
        raise TypeError(f"{name}={value!r} must be a name or a Verifier.")
    return value


def sampling(name: str, value: Any) -> str:
    if not isinstance(value, str) or value not in SOURCES:
        raise ValueError(f"{name}={value!r} is unknown; use one of {sorted(SOURCES)}.")
    return value


def _beams(name: str, value: Any) -> int:
    if count(1)(name, value) != 1:
        raise ValueError(f"{name}={value!r} is not supported: speculative decoding samples or is greedy; use 1.")
    return 1


def _uses_cache(name: str, value: Any) -> bool:
    if not switch(name, value):
        raise ValueError(f"{name}=False is not supported: verification needs the KV cache; leave it out.")
    return True


def number(name: str, value: Any) -> float:
    """Any finite number."""
    found = checks.number(name, value)
    if not -float("inf") < found < float("inf"):
        raise ValueError(f"{name}={value!r} must be finite; leave it out for none.")
    return found


def share(name: str, value: Any) -> float:
    """A part of a whole."""
    return checks.in_range(name, value, 0.0, 1.0, "leave it out to keep every token.")


def seconds(name: str, value: Any) -> float:
    """A time to wait."""
    return checks.in_range(name, value, 0.0, float("inf"), "give seconds, or leave it out.", include_high=False)


def callable_(name: str, value: Any) -> Any:
    if not callable(value):
        raise TypeError(f"{name}={value!r} must be callable, as transformers' {name} is.")
    return value


def per_row(name: str, value: Any) -> list[dict[str, Any]]:
    """For each prompt a mapping of options that go over the call's own."""
    if not isinstance(value, Sequence) or not all(isinstance(row, Mapping) for row in value):
        raise TypeError(f"{name}={value!r:.80} must be a list of dicts of options, one for each prompt.")
    for number_, row in enumerate(value):
        reject_unknown(row, f"{name}[{number_}]: generate", ROW_OPTIONS)
    return [dict(row) for row in value]


def as_it_is(name: str, value: Any) -> Any:
    """Checked where it is used: by `SamplingParams`, or together with the prompt."""
    return value


class CallOptions(TypedDict, total=False):
    """Keywords of `generate`, `generate_baseline` and `stream`; None is the same as leaving one out, save for
    `eos_token_id`, where it means that no token ends the text."""

    max_new_tokens: Annotated[int | None, count(1), ROW]
    max_length: Annotated[int | None, count(1), ROW]
    min_new_tokens: Annotated[int | None, count(0), ROW]
    do_sample: Annotated[bool | None, switch, ROW]
    temperature: Annotated[float | None, as_it_is, ROW]
    top_p: Annotated[float | None, as_it_is, ROW]
    top_k: Annotated[int | None, as_it_is, ROW]
    min_p: Annotated[float | None, as_it_is, ROW]
    sampling_params: Annotated[SamplingParams | None, sampling_params, ROW]
    max_time: Annotated[float | None, seconds, ROW]
    min_length: Annotated[int | None, count(0), ROW]
    frequency_penalty: Annotated[float | None, number, ROW]
    presence_penalty: Annotated[float | None, number, ROW]
    sequence_bias: Annotated[Any, as_it_is, ROW]
    begin_suppress_tokens: Annotated[list[int] | None, as_ids, ROW]
    forced_bos_token_id: Annotated[int | None, count(0), ROW]
    forced_eos_token_id: Annotated[int | list[int] | None, as_ids, ROW]
    exponential_decay_length_penalty: Annotated[Any, as_it_is, ROW]
    encoder_repetition_penalty: Annotated[float | None, penalty, ROW]
    encoder_no_repeat_ngram_size: Annotated[int | None, count(0), ROW]
    guidance_scale: Annotated[float | None, number, ROW]
    watermarking_config: Annotated[Any, as_it_is, ROW]
    typical_p: Annotated[float | None, share, ROW]
    epsilon_cutoff: Annotated[float | None, share, ROW]
    eta_cutoff: Annotated[float | None, share, ROW]
    top_h: Annotated[float | None, share, ROW]
    renormalize_logits: Annotated[bool | None, switch, ROW]
    remove_invalid_values: Annotated[bool | None, switch, ROW]
    prefix_allowed_tokens_fn: Annotated[Any, callable_, ROW]
    repetition_penalty: Annotated[float | None, penalty, ROW]
    no_repeat_ngram_size: Annotated[int | None, count(0), ROW]
    bad_words_ids: Annotated[list[list[int]] | None, words, ROW]
    suppress_tokens: Annotated[list[int] | None, as_ids, ROW]
    eos_token_id: Annotated[int | list[int] | None, as_ids, ROW]
    pad_token_id: Annotated[int | None, count(0)]
    stop_strings: Annotated[str | list[str] | None, strings, ROW]
    grammar: Annotated[Grammar | Mapping[str, Any] | None, grammar_of, ROW]
    logits_processor: Annotated[Any, callables, ROW]
    stopping_criteria: Annotated[Any, callables, ROW]
    generation_config: Annotated[GenerationConfig | None, config]
    streamer: Annotated[Any, streamer]
    return_dict_in_generate: Annotated[bool | None, switch]
    output_scores: Annotated[bool | None, switch]
    output_logits: Annotated[bool | None, switch]
    logprobs: Annotated[
        int | None, count(0, "give how many of the likeliest tokens you want beside each, or leave it out.")
    ]
    per_row: Annotated[Any, per_row]
    num_return_sequences: Annotated[int | None, count(1)]
    num_beams: Annotated[int | None, _beams]
    use_cache: Annotated[bool | None, _uses_cache]
    invariant: Annotated[bool | None, switch]
    attention_mask: Annotated[Any, as_it_is]
    seed: Annotated[int | None, seed, ROW]
    drafter: Annotated[str | Drafter | None, drafter]
    verifier: Annotated[Any, verifier]
    sampling: Annotated[str | None, sampling]
    batch_size: Annotated[int, count(1)]
    progress: Annotated[bool, switch]
    return_cache: Annotated[bool, switch]
    cache: Annotated[Any, as_it_is]


_TABLE = {name: hint.__metadata__ for name, hint in get_type_hints(CallOptions, include_extras=True).items()}
CHECKS: Mapping[str, Check] = {name: marks[0] for name, marks in _TABLE.items()}
ROW_OPTIONS = frozenset(name for name, marks in _TABLE.items() if ROW in marks)


def reject_unknown(options: Mapping[str, Any], where: str, known: Iterable[str] | None = None) -> None:
    """Unknown keywords are errors, with the nearest known name as remedy; known: those of a call by default."""
    names = sorted(CHECKS) if known is None else list(known)
    told = ["k", *names] if known is None else names  # k is an argument of its own
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, told, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(told)}."
            raise TypeError(f"{where}() got an unknown keyword {name!r}; {hint}")


def settled(options: Mapping[str, Any]) -> dict[str, Any]:
    """Known keywords in their settled form; those left out are absent, and so is None (but for `eos_token_id`).

    Raises:
        TypeError, ValueError: naming the argument, its value, the range and the remedy.
    """
    found = {name: CHECKS[name](name, value) for name, value in options.items() if value is not None}
    return found | {"eos_token_id": None} if options.get("eos_token_id", 0) is None else found


def check_pair(sampling: str, verifier: Any) -> None:
    """Refuse verifiers that do not go with a sampling method.

    Raises:
        ValueError: naming the argument, its value and the remedy.
    """
    if sampling == "gumbel" and verifier not in ("auto", "match"):
        raise ValueError(
            f"verifier={verifier!r} does not go with sampling='gumbel', which verifies by match; "
            "use verifier='auto', or sampling='rejection'."
        )
