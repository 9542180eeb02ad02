"""The options of a call: each is named, typed and given its check in one table, `CallOptions`.

A new option is one line here and the line in `request` that reads it. Names and meanings are those of transformers'
`generate`; errors name the argument, its value, the range and the remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypedDict, get_type_hints

from transformers import GenerationConfig

from decoder import checks
from decoder.checks import at_least
from decoder.drafters import DRAFTERS
from decoder.randomness import SOURCES
from decoder.types import Drafter, SamplingParams
from decoder.verify import VERIFIERS

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


def as_it_is(name: str, value: Any) -> Any:
    """Checked where it is used: by `SamplingParams`, or together with the prompt."""
    return value


class CallOptions(TypedDict, total=False):
    """Keywords of `generate`, `generate_baseline` and `stream`; None is the same as leaving one out, save for
    `eos_token_id`, where it means that no token ends the text."""

    max_new_tokens: Annotated[int | None, count(1)]
    max_length: Annotated[int | None, count(1)]
    min_new_tokens: Annotated[int | None, count(0)]
    do_sample: Annotated[bool | None, switch]
    temperature: Annotated[float | None, as_it_is]
    top_p: Annotated[float | None, as_it_is]
    top_k: Annotated[int | None, as_it_is]
    min_p: Annotated[float | None, as_it_is]
    sampling_params: Annotated[SamplingParams | None, sampling_params]
    repetition_penalty: Annotated[float | None, penalty]
    no_repeat_ngram_size: Annotated[int | None, count(0)]
    bad_words_ids: Annotated[list[list[int]] | None, words]
    suppress_tokens: Annotated[list[int] | None, as_ids]
    eos_token_id: Annotated[int | list[int] | None, as_ids]
    pad_token_id: Annotated[int | None, count(0)]
    stop_strings: Annotated[str | list[str] | None, strings]
    logits_processor: Annotated[Any, callables]
    stopping_criteria: Annotated[Any, callables]
    generation_config: Annotated[GenerationConfig | None, config]
    streamer: Annotated[Any, streamer]
    return_dict_in_generate: Annotated[bool | None, switch]
    num_return_sequences: Annotated[int | None, count(1)]
    num_beams: Annotated[int | None, _beams]
    use_cache: Annotated[bool | None, _uses_cache]
    invariant: Annotated[bool | None, switch]
    attention_mask: Annotated[Any, as_it_is]
    seed: Annotated[int | None, seed]
    drafter: Annotated[str | Drafter | None, drafter]
    verifier: Annotated[Any, verifier]
    sampling: Annotated[str | None, sampling]
    batch_size: Annotated[int, count(1)]
    progress: Annotated[bool, switch]
    return_cache: Annotated[bool, switch]
    cache: Annotated[Any, as_it_is]


CHECKS: Mapping[str, Check] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(CallOptions, include_extras=True).items()
}


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
