"""The questions a decoder answers about itself: `profile` and `advise`, as methods of `SpeculativeDecoder`.

They use what every call uses (encoding, validation, the setting of a run) and add nothing to ordinary runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import Unpack

from decoder.controllers import Length, check_length
from decoder.generation import Setting
from decoder.keywords import CallOptions, check_integer
from decoder.measure.advice import Advice
from decoder.measure.advise import advise
from decoder.measure.forwards import WIDTHS
from decoder.measure.profile import Profile, profile
from decoder.models.hf import CausalModel
from decoder.request import Request
from decoder.types import Drafter

PROFILED_TOKENS = 64


class Measurable:
    """A mixin; `SpeculativeDecoder` provides what is only declared here."""

    _target: CausalModel
    _draft: CausalModel | None
    drafter: Drafter

    def _encode(self, prompt: Any, options: CallOptions, where: str) -> tuple[list[list[int]], bool]:
        raise NotImplementedError

    def _settle(self, rows: Sequence[Sequence[int]], options: CallOptions, where: str) -> Request:
        raise NotImplementedError

    def _setting(self, options: CallOptions, k: Length, target: CausalModel | None = None) -> Setting:
        raise NotImplementedError

    def _drafter(self, choice: str | Drafter | None) -> Drafter:
        raise NotImplementedError

    def profile(
        self,
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
        check_length(k)
        if options.get("max_new_tokens") is None and options.get("max_length") is None:
            options["max_new_tokens"] = PROFILED_TOKENS
        rows, many = self._encode(prompt, options, "profile")
        if many:
            raise ValueError(f"profile() takes one prompt, not {len(rows)}; call it for one at a time.")
        request = self._settle(rows, options, "profile")
        return profile(self._setting(options, k), request, rows[0], widths=widths, repeats=repeats)

    def advise(
        self,
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
        if options.get("max_new_tokens") is None and options.get("max_length") is None:
            options["max_new_tokens"] = PROFILED_TOKENS
        rows, _ = self._encode(prompts, options, "advise")
        self._settle(rows, options, "advise")
        check_integer("repeats", repeats, 1, "3 to start with.")
        if isinstance(drafters, str):
            raise TypeError(f"drafters={drafters!r} must be a list of names or Drafter objects, as in ['ngram'].")
        chosen: list[str | Drafter] = [self.drafter, "ngram"] if drafters is None else list(drafters)
        found = {recipe.name: recipe for recipe in (self._drafter(each) for each in chosen)}
        return advise(self, self._target, found, rows, options, repeats=repeats)  # type: ignore[arg-type]
