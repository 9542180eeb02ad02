"""The ways to generate that are compared, each as a `Method`: token ids in, new token ids out.

    hf            target.generate: transformers' own loop and cache
    hf-assisted   target.generate(assistant_model=draft): transformers' speculative decoding, with its own defaults
    hf-lookup     target.generate(prompt_lookup_num_tokens=n): transformers' n-gram speculation
    baseline      this project's loop, nothing drafted
    speculative   this project's loop, any drafter, a fixed or an automatic draft length

All get the same warping (transformers' default top_k=50 is switched off explicitly) and the same rule for EOS: ignored,
so that every run emits exactly `max_new_tokens`, unless `stop_at_eos`. Only new tokens count; what transformers returns
is cut after the prompt. Turning ids into text is part of this project's calls and not of transformers', to its favour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from decoder.api import SpeculativeDecoder
from decoder.measure.timing import Counts, Method, RunOutput
from decoder.types import SamplingParams

LOOKUP_TOKENS = 10  # the value of transformers' documentation
FOREIGN = ("hf", "hf-assisted", "hf-lookup")
COMPILED = " compiled"


@dataclass(frozen=True)
class Plan:
    """What every method is asked for, and how often each is timed. Run r of a prompt has the seed `seed + r`."""

    max_new_tokens: int
    params: SamplingParams
    stop_at_eos: bool = False
    repeats: int = 3
    warm_up: int = 1
    seed: int = 0


def transformers_sampling(plan: Plan) -> dict[str, Any]:
    """Keywords of transformers' `generate`; whatever the model's configuration files say is overridden."""
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
class TransformersMethod:
    """transformers' `generate`. `extra` turns assistance on."""

    name: str
    target: Any
    plan: Plan
    extra: dict[str, Any] = field(default_factory=dict)
    assistant_tokens: int | None = None

    @property
    def device(self) -> torch.device:
        return torch.device(self.target.device)

    def __call__(self, prompt: Sequence[int], seed: int) -> RunOutput:
        torch.manual_seed(seed)
        ids = torch.tensor([list(prompt)], device=self.device)
        keywords = transformers_sampling(self.plan) | self.extra
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
        return RunOutput(tuple(out[0, len(prompt) :].tolist()))

    @contextmanager
    def _draft_length(self) -> Iterator[None]:
        """transformers reads the draft length from the draft's own configuration; set for the call, restored after."""
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
    """This project's decoder: `k` drafted tokens per round, 0 for the baseline, "auto" for the controller's choice.

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

    def __call__(self, prompt: Sequence[int], seed: int) -> RunOutput:
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
        return RunOutput(result.token_ids, Counts.of(result))


def label(drafter: Any, k: int | str) -> str:
    """How a speculative method is called in tables."""
    name = drafter if isinstance(drafter, str) else getattr(drafter, "name", "model")
    return f"speculative {name} k={k}"


def speculative(spec: SpeculativeDecoder, plan: Plan, k: int | str, drafter: Any = None) -> OwnMethod:
    """Drafting with `drafter` (the decoder's own by default)."""
    return OwnMethod(label(drafter or spec.drafter, k), spec, plan, k, drafter)


def _assistance(spec: SpeculativeDecoder, assistant: Any) -> dict[str, Any]:
    """transformers' keywords; it wants both tokenizers exactly where the vocabularies differ in size."""
    found = {"assistant_model": assistant}
    sizes = {model.config.get_text_config(decoder=True).vocab_size for model in (spec.target, assistant)}
    if assistant is spec.draft and spec.draft_tokenizer is not None and len(sizes) > 1:
        found |= {"tokenizer": spec.tokenizer, "assistant_tokenizer": spec.draft_tokenizer}
    return found


def named(
    name: str, spec: SpeculativeDecoder, plan: Plan, assistant: Any = None, assistant_tokens: int | None = None
) -> Method:
    """A method by name; `assistant` drafts for "hf-assisted", the decoder's own draft model by default.

    Raises:
        ValueError: an unknown name, or "hf-assisted" without a draft model.
    """
    if name == "baseline":
        return OwnMethod(name, spec, plan)
    if name == "hf":
        return TransformersMethod(name, spec.target, plan)
    if name == "hf-lookup":
        return TransformersMethod(name, spec.target, plan, {"prompt_lookup_num_tokens": LOOKUP_TOKENS})
    if name == "hf-assisted":
        assistant = spec.draft if assistant is None else assistant
        if assistant is None:
            raise ValueError("method 'hf-assisted' needs a draft model; give one, or leave the method out.")
        return TransformersMethod(name, spec.target, plan, _assistance(spec, assistant), assistant_tokens)
    raise ValueError(f"method {name!r} is unknown; use one of {[*FOREIGN, 'baseline', 'speculative']}.")
