"""L5: the ways to generate that are compared, each as a `Method`: token ids in, new token ids out.

    hf            target.generate: the library's own loop and cache
    hf-assisted   target.generate(assistant_model=draft): the library's speculative decoding, with its own defaults
    hf-lookup     target.generate(prompt_lookup_num_tokens=n): the library's n-gram speculation
    baseline      this project's loop, nothing drafted
    speculative   this project's loop, any drafter, a fixed or an automatic draft length

All get the same warping (the library's default top_k=50 is switched off explicitly) and the same rule for EOS: ignored,
so that every run emits exactly `max_new_tokens`, unless `stop_at_eos`. Only new tokens count; the library's output is
cut after the prompt. Turning ids into text is part of this project's calls and not of the library's, to its favour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from decoder.api import SpeculativeDecoder
from decoder.measure.timing import Counts, Method, Output
from decoder.types import SamplingParams

LOOKUP_TOKENS = 10  # the value of the library's documentation
FOREIGN = ("hf", "hf-assisted", "hf-lookup")
COMPILED = " compiled"


@dataclass(frozen=True)
class Plan:
    """What every method is asked for."""

    max_new_tokens: int
    params: SamplingParams
    stop_at_eos: bool = False


def library_sampling(plan: Plan) -> dict[str, Any]:
    """Keywords of the library's `generate`; whatever its configuration files say is overridden."""
    params = plan.params
    if params.greedy:
        return {"do_sample": False, "temperature": None, "top_k": None, "top_p": None, "min_p": None}
    return {
        "do_sample": True,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p or None,
    }


@dataclass
class LibraryMethod:
    """transformers' `generate`. `extra` turns assistance on."""

    name: str
    target: Any
    plan: Plan
    extra: dict[str, Any] = field(default_factory=dict)
    assistant_tokens: int | None = None

    @property
    def device(self) -> torch.device:
        return torch.device(self.target.device)

    def __call__(self, prompt: Sequence[int], seed: int) -> Output:
        torch.manual_seed(seed)
        ids = torch.tensor([list(prompt)], device=self.device)
        keywords = library_sampling(self.plan) | self.extra
        if not self.plan.stop_at_eos:
            keywords["eos_token_id"] = None
        with self._draft_length():
            out = self.target.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=self.plan.max_new_tokens,
                use_cache=True,
                pad_token_id=0,
                **keywords,
            )
        return Output(tuple(out[0, len(prompt) :].tolist()))

    @contextmanager
    def _draft_length(self) -> Iterator[None]:
        """The library reads the draft length from the draft's own configuration; set for the call, restored after."""
        if self.assistant_tokens is None:
            yield
            return
        config = self.extra["assistant_model"].generation_config
        names = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
        before = {name: getattr(config, name) for name in names}
        config.num_assistant_tokens, config.num_assistant_tokens_schedule = self.assistant_tokens, "constant"
        config.assistant_confidence_threshold = 0.0
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(config, name, value)


@dataclass
class OwnMethod:
    """This project's decoder: `k` drafted tokens a round, 0 for the baseline, "auto" for the controller's choice.

    A decoder built with compile=True says so in its methods' names.
    """

    name: str
    spec: SpeculativeDecoder
    plan: Plan
    k: int | str = 0
    drafter: Any = None

    def __post_init__(self) -> None:
        if self.spec.compile:
            self.name += COMPILED

    @property
    def device(self) -> torch.device:
        return torch.device(self.spec.target.device)

    def __call__(self, prompt: Sequence[int], seed: int) -> Output:
        params = self.plan.params
        options: dict[str, Any] = {
            "max_new_tokens": self.plan.max_new_tokens,
            "temperature": params.temperature,
            "top_k": params.top_k,
            "top_p": params.top_p,
            "min_p": params.min_p,
            "seed": seed,
        }
        if not self.plan.stop_at_eos:
            options["eos_token_id"] = None
        if self.k == 0:
            result = self.spec.generate_baseline(list(prompt), **options)
        else:
            if self.drafter is not None:
                options["drafter"] = self.drafter
            options["k"] = self.k
            result = self.spec.generate(list(prompt), **options)
        return Output(result.token_ids, Counts.of(result))


def label(drafter: Any, k: int | str) -> str:
    """How a speculative method is called in tables."""
    name = drafter if isinstance(drafter, str) else getattr(drafter, "name", "model")
    return f"speculative {name} k={k}"


def speculative(spec: SpeculativeDecoder, plan: Plan, k: int | str, drafter: Any = None) -> OwnMethod:
    """Drafting with `drafter` (the decoder's own by default)."""
    return OwnMethod(label(drafter or spec.drafter, k), spec, plan, k, drafter)


def _assistance(spec: SpeculativeDecoder, assistant: Any) -> dict[str, Any]:
    """The library's keywords; it wants both tokenizers exactly where the vocabularies differ in size."""
    found = {"assistant_model": assistant}
    sizes = {model.config.get_text_config(decoder=True).vocab_size for model in (spec.target, assistant)}
    if assistant is spec.draft and spec.draft_tokenizer is not None and len(sizes) > 1:
        found |= {"tokenizer": spec.tokenizer, "assistant_tokenizer": spec.draft_tokenizer}
    return found


def named(
    name: str, spec: SpeculativeDecoder, plan: Plan, assistant: Any = None, assistant_tokens: int | None = None
) -> Method:
    """A yardstick or rival by name; `assistant` drafts for "hf-assisted".

    Raises:
        ValueError: an unknown name, or "hf-assisted" without a draft model.
    """
    if name == "baseline":
        return OwnMethod(name, spec, plan)
    if name == "hf":
        return LibraryMethod(name, spec.target, plan)
    if name == "hf-lookup":
        return LibraryMethod(name, spec.target, plan, {"prompt_lookup_num_tokens": LOOKUP_TOKENS})
    if name == "hf-assisted":
        if assistant is None:
            raise ValueError("method 'hf-assisted' needs a draft model; give one, or leave the method out.")
        return LibraryMethod(name, spec.target, plan, _assistance(spec, assistant), assistant_tokens)
    raise ValueError(f"method {name!r} is unknown; use one of {[*FOREIGN, 'baseline', 'speculative']}.")
