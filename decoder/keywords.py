"""L3: the keywords of a call and what each may hold. Errors name the argument, its value, the range and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from transformers import GenerationConfig

from decoder.drafters import DRAFTERS
from decoder.models.fixed import INVARIANT_K
from decoder.randomness import SOURCES
from decoder.types import Drafter
from decoder.verify import VERIFIERS


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
    invariant: bool | None
    attention_mask: Any
    seed: int | None
    drafter: Any
    verifier: Any
    sampling: str | None
    batch_size: int
    progress: bool
    return_cache: bool
    cache: Any


def reject_unknown(options: Mapping[str, Any], where: str, known: Iterable[str] | None = None) -> None:
    """Unknown keywords are errors, with the nearest known name as remedy; known: those of a call by default."""
    names = sorted(CallOptions.__annotations__) if known is None else list(known)
    told = ["k", *names] if known is None else names  # k is an argument of its own
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, told, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(told)}."
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
    if not isinstance(sampling, str) or sampling not in SOURCES:
        raise ValueError(f"sampling={sampling!r} is unknown; use one of {sorted(SOURCES)}.")
    if sampling == "gumbel" and verifier not in ("auto", "match"):
        raise ValueError(
            f"verifier={verifier!r} does not go with sampling='gumbel', which verifies by match; "
            "use verifier='auto', or sampling='rejection'."
        )


def check_invariant(k: Any, attention: str) -> None:
    """Whether every forward can have one shape.

    Raises:
        ValueError: a draft length that does not fit, or attention that takes no explicit mask.
    """
    if k == "auto" or k > INVARIANT_K:
        raise ValueError(f"invariant=True serves draft lengths up to {INVARIANT_K}, not k={k!r}; give a smaller k.")
    if attention not in ("eager", "sdpa"):
        raise ValueError(
            f"invariant=True needs attn_implementation 'eager' or 'sdpa', not {attention!r}; reload the model."
        )


def check_choices(drafter: Any, verifier: Any, seed: Any) -> None:
    """Names that exist, or objects of the right kind.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    if isinstance(drafter, str) and drafter not in DRAFTERS:
        raise ValueError(f"drafter={drafter!r} is unknown; use one of {sorted(DRAFTERS)} or a Drafter object.")
    if drafter is not None and not isinstance(drafter, (str, Drafter)):
        raise TypeError(f"drafter={drafter!r} must be a name or a Drafter; subclass decoder.Drafter.")
    if isinstance(verifier, str) and verifier not in VERIFIERS:
        raise ValueError(f"verifier={verifier!r} is unknown; use one of {sorted(VERIFIERS)} or a Verifier object.")
    if not isinstance(verifier, str) and not callable(verifier):
        raise TypeError(f"verifier={verifier!r} must be a name or a Verifier.")
    if seed is not None:
        check_integer("seed", seed, 0, "use None for a fresh one each call.")


def as_ids(name: str, value: Any) -> list[int]:
    ids = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(ids, bool) or not isinstance(ids, (int, Sequence, frozenset, set)) or isinstance(ids, (str, bytes)):
        raise TypeError(f"{name}={value!r} must be a token id or a list of them; leave it out for the default.")
    ids = [ids] if isinstance(ids, int) else list(ids)
    found = [check_integer(name, token, 0, "give a token id, a list of them, or None.") for token in ids]
    if max(found, default=0) >= 2**63:
        raise ValueError(f"{name}={max(found)} is no token id; give ids of the model's vocabulary.")
    return found


_LEAST_PENALTY = 1e-6  # logits are divided by it: smaller ones overflow


def _check_penalty(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"repetition_penalty={value!r} must be a number > 0; 1.0 means none.")
    if not _LEAST_PENALTY <= value < float("inf"):
        raise ValueError(
            f"repetition_penalty={value!r} must be > 0, at least {_LEAST_PENALTY:g}, and finite; 1.0 means none."
        )


def _check_words(words: Any) -> None:
    if (
        not isinstance(words, Sequence)
        or isinstance(words, str)
        or not all(isinstance(word, Sequence) and not isinstance(word, str) and len(word) > 0 for word in words)
    ):
        raise TypeError(f"bad_words_ids={words!r} must be a list of non-empty lists of token ids.")
    for word in words:
        as_ids("bad_words_ids", word)


def stop_strings(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, (str, Sequence)):
        raise TypeError(f"stop_strings={value!r} must be a string or a list of strings; leave it out to stop at EOS.")
    strings = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(string, str) and string for string in strings):
        raise ValueError(f"stop_strings={strings!r} must be non-empty strings; leave it out to stop at EOS only.")
    return strings


def callables(name: str, value: Any) -> tuple[Any, ...]:
    """A list of callables: processors, stopping criteria."""
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(callable(each) for each in value):
        raise TypeError(f"{name}={value!r} must be a list of callables, as transformers' {name} is; put it in a list.")
    return tuple(value)


_LEAST = {"max_new_tokens": 1, "max_length": 1, "min_new_tokens": 0, "no_repeat_ngram_size": 0, "batch_size": 1} | {
    "num_return_sequences": 1,
    "num_beams": 1,
    "pad_token_id": 0,
}
_SWITCHES = ("do_sample", "use_cache", "progress", "return_cache", "return_dict_in_generate", "invariant")


def check_values(settings: Mapping[str, Any]) -> None:
    """Every keyword that is not validated where it is used."""
    for name, least in _LEAST.items():
        if settings.get(name) is not None:
            check_integer(name, settings[name], least, "give a number of that size, or leave it out.")
    for name in _SWITCHES:
        if settings.get(name) is not None and not isinstance(settings[name], bool):
            raise TypeError(f"{name}={settings[name]!r} must be True or False, or leave it out.")
    if settings.get("repetition_penalty") is not None:
        _check_penalty(settings["repetition_penalty"])
    if settings.get("bad_words_ids") is not None:
        _check_words(settings["bad_words_ids"])
    if settings.get("suppress_tokens") is not None:
        as_ids("suppress_tokens", settings["suppress_tokens"])
    streamer = settings.get("streamer")
    if streamer is not None and not (hasattr(streamer, "put") and hasattr(streamer, "end")):
        raise TypeError(f"streamer={streamer!r} must have put() and end(), as transformers' streamers do.")
