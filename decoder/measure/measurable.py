"""The questions a decoder answers about itself, from a prompt and options to `profile` and `advise`.

They use what every call uses (encoding, validation, the parts of a run) and add nothing to ordinary runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import Unpack

from decoder.api import SpeculativeDecoder
from decoder.asked.options import CallOptions
from decoder.asked.request import Request
from decoder.checks import at_least
from decoder.controllers import Length, check_length
from decoder.measure import advise as advising
from decoder.measure import profile as profiling
from decoder.measure.advice import Advice
from decoder.measure.forwards import WIDTHS
from decoder.measure.profile import Profile
from decoder.types import Drafter

PROFILED_TOKENS = 64


def _request(spec: SpeculativeDecoder, prompt: Any, options: CallOptions, k: Length, where: str) -> Request:
    if options.get("max_new_tokens") is None and options.get("max_length") is None:
        options["max_new_tokens"] = PROFILED_TOKENS
    return Request.of(prompt, options, k, where, spec)


def profile(
    spec: SpeculativeDecoder,
    prompt: Any,
    *,
    k: Length = 4,
    widths: Sequence[int] = WIDTHS,
    repeats: int = 9,
    **options: Unpack[CallOptions],
) -> Profile:
    """Where the time of `generate(prompt, k=k, ...)` goes, and what forwards of `widths` tokens cost each model.

    Takes the options of `generate` but for caches and streamers; 64 new tokens by default. Print it, or see
    `Profile.to_dict`. Ordinary runs are not slowed: one run is wrapped from outside.

    Raises:
        ValueError, TypeError: as `generate`; several prompts.
    """
    request = _request(spec, prompt, options, check_length(k), "profile")
    if request.many:
        raise ValueError(f"profile() takes one prompt, not {len(request.rows)}; call it for one at a time.")
    return profiling.profile(spec.run_for(request), request, widths=widths, repeats=repeats)


def advise(
    spec: SpeculativeDecoder,
    prompts: Any,
    *,
    drafters: Sequence[str | Drafter] | None = None,
    repeats: int = 3,
    **options: Unpack[CallOptions],
) -> Advice:
    """Should I speculate on prompts like these, on this device, with what and how long, and what will I gain?

    Measures forwards, acceptance and whole runs; a few seconds to minutes, by the size of the models. Give several
    prompts of the kind you have. drafters: names or objects; the decoder's own and "ngram" by default. Other
    options as in `generate`; 64 new tokens by default. Print the answer.

    Raises:
        ValueError, TypeError: as `generate`; no drafters; prompts after which the target has nothing to say.
    """
    request = _request(spec, prompts, options, 0, "advise")
    at_least("repeats", repeats, 1, "3 to start with.")
    if isinstance(drafters, str):
        raise TypeError(f"drafters={drafters!r} must be a list of names or Drafter objects, as in ['ngram'].")
    chosen: list[str | Drafter] = [spec.drafter, "ngram"] if drafters is None else list(drafters)
    found = {recipe.name: recipe for recipe in (spec.drafter_for(each) for each in chosen)}
    target: Any = spec  # its overloads say more than is needed here
    return advising.advise(target, spec.target_model, found, request.rows, options, repeats=repeats)
