"""What a command's options stand for: models, prompts and what every method is asked for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from decoder.api import SpeculativeDecoder
from decoder.measure.comparison import ComparisonReport
from decoder.measure.methods import Plan
from decoder.measure.prompts import OWN_PROMPTS, as_ids, read_prompts
from decoder.models.quantize import quantized_copy

_PLACEMENT = ("device", "dtype", "draft_device", "draft_dtype")
_DECODING = ("drafter", "head", "verifier", "seed", "packed", "compile", "temperature", "top_p", "top_k", "min_p")


def _as_it_is(report: ComparisonReport) -> ComparisonReport:
    return report


@dataclass(frozen=True)
class Setup:
    """Models and prompts, ready to run.

    assistant: the draft as given; `spec.draft` may have narrower weights.   prompts: text, messages or token ids.
    told: what the source of the models has to add to the account of a comparison.
    """

    spec: SpeculativeDecoder
    assistant: Any
    prompts: Sequence[Any]
    title: str
    notes: tuple[str, ...] = ()
    told: Callable[[ComparisonReport], ComparisonReport] = _as_it_is

    def ids(self) -> list[list[int]]:
        """The prompts as token ids."""
        return as_ids(self.spec, self.prompts)


def given(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """The options that were typed or have a default of their own; the others keep the decoder's."""
    return {name: value for name in names if (value := getattr(options, name, None)) is not None}


def set_up(options: argparse.Namespace) -> Setup:
    """Load the models and read the prompts that the options name.

    Raises:
        ValueError: options that contradict each other, or what loading refuses.
    """
    prompts = asked_prompts(options)
    if not sys.stderr.isatty():
        logging.disable_progress_bar()  # of loading weights: noise in a log
    set_threads(options)
    placed = given(options, _PLACEMENT)
    names = " with draft ".join(Path(name).name for name in (options.target, options.draft) if name)
    if options.draft_bits is None:
        loaded = spec = SpeculativeDecoder(options.target, options.draft, **placed, **given(options, _DECODING))
        notes = packing_note(options, spec.draft)
    else:
        loaded = SpeculativeDecoder(options.target, options.draft, **placed)
        spec, notes = adapted(loaded, options)
    if options.chat and getattr(spec.tokenizer, "chat_template", None) is None:
        raise ValueError("--chat needs a tokenizer with a chat template, and this target's has none; leave it out.")
    return Setup(spec, loaded.draft, prompts, names, notes)


def set_threads(options: argparse.Namespace) -> None:
    if options.threads is not None:
        torch.set_num_threads(options.threads)


def packing_note(options: argparse.Namespace, draft: Any) -> tuple[str, ...]:
    """Which models run packed: transformers' own methods never do."""
    if not options.packed:
        return ()
    which = "the target" if draft is None or options.draft_bits is not None else "target and draft"
    return (f"baseline and speculative run over packed matrices of {which} (packed=True); hf* as loaded",)


def adapted(loaded: SpeculativeDecoder, options: argparse.Namespace) -> tuple[SpeculativeDecoder, tuple[str, ...]]:
    """A decoder over the same models as the options ask: its draft's weights in 4 or 8 bits, say; and notes on that."""
    draft, bits, notes = loaded.draft, options.draft_bits, packing_note(options, loaded.draft)
    if bits is not None:
        if draft is None:
            raise ValueError(f"--draft-bits={bits} needs a draft model; give --draft.")
        draft = quantized_copy(draft, bits)
        narrow = f"speculative runs: the draft's matrices in {bits} bits"
        notes += (f"{narrow}; hf-assisted drafts with the given weights",)
    tokenizers = {"tokenizer": loaded.tokenizer, "draft_tokenizer": loaded.draft_tokenizer}
    spec = SpeculativeDecoder.from_models(loaded.target, draft, **tokenizers, **given(options, _DECODING))
    return spec, notes


def twin(spec: SpeculativeDecoder, *, compile: bool) -> SpeculativeDecoder:
    """The same decoder over the same tensors (packed once for both, where asked for), compiled or eager."""
    draft = None if spec.draft_model is None else spec.draft_model.model
    kept: dict[str, Any] = {
        name: getattr(spec, name) for name in ("tokenizer", "draft_tokenizer", "verifier", "seed", "sampling")
    }
    kept |= {"drafter": spec.drafter.name, "compile": compile}
    return SpeculativeDecoder.from_models(spec.target_model.model, draft, **asdict(spec.params), **kept)


def asked_prompts(options: argparse.Namespace) -> list[Any]:
    """The prompt that was typed, the prompts of a file, or our own; `--chat` makes plain text a message.

    Raises:
        ValueError: a prompt and a file, or categories without a file.
    """
    text, path, categories = options.prompt, getattr(options, "prompts", None), getattr(options, "category", None)
    if text is not None and path is not None:
        raise ValueError("a prompt and --prompts were both given; leave one out.")
    if categories and path is None:
        raise ValueError(f"--category {','.join(categories)} chooses from a file; give --prompts FILE with it.")
    if path is not None:
        found = read_prompts(Path(path), options.limit, categories or ())
    elif text is not None:
        found = [sys.stdin.read() if text == "-" else text]
    else:
        found = list(OWN_PROMPTS[: getattr(options, "limit", 1)])
    if options.chat:
        found = [[{"role": "user", "content": each}] if isinstance(each, str) else each for each in found]
    return found


def plan_of(options: argparse.Namespace, spec: SpeculativeDecoder) -> Plan:
    """What every method is asked for."""
    return Plan(
        options.max_new_tokens,
        spec.params,
        options.stop_at_eos,
        options.repeats,
        options.warm_up,
        options.seed or 0,
    )
