"""L5: what the measuring commands share: options that name models and prompts, and what they build."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from decoder.api import SpeculativeDecoder
from decoder.bench.geometry import GEOMETRIES, synthetic_pair
from decoder.bench.prompts import OWN_PROMPTS, as_ids, read_prompts
from decoder.controllers import Length
from decoder.models import loading
from decoder.models.quantize import quantized_copy
from decoder.types import SamplingParams


@dataclass(frozen=True)
class Setup:
    """Models and prompts, ready to run. `assistant` is the draft as given, `spec.draft` may have narrower weights."""

    spec: SpeculativeDecoder
    assistant: Any
    prompts: list[list[int]]
    title: str
    notes: tuple[str, ...]


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which models, where and how precise."""
    group = parser.add_argument_group("models")
    group.add_argument("--target", default="tiny", help="hub name or folder; default: the bundled pair")
    group.add_argument("--draft", help="hub name or folder of a draft model")
    group.add_argument(
        "--geometry",
        metavar="TARGET:DRAFT",
        help="SYNTHETIC: real shapes with random weights instead of models; of " + ", ".join(sorted(GEOMETRIES)),
    )
    group.add_argument("--acceptance", type=float, help="with --geometry: chance that a drafted token is accepted")
    group.add_argument("--draft-bits", type=int, choices=(4, 8), help="narrow weights for the draft (CPU); still exact")
    group.add_argument("--packed", action="store_true", help="our runs over packed matrices (CPU): faster, more memory")
    group.add_argument("--dtype", default="auto", help="float32, bfloat16, ...; default: as stored, geometry float32")
    group.add_argument("--device", default="auto")
    group.add_argument("--threads", type=int, help="threads of torch; default: torch's own choice")


def add_work_options(parser: argparse.ArgumentParser) -> None:
    """Which prompts, how long, how sampled."""
    group = parser.add_argument_group("work")
    group.add_argument("--prompts", type=Path, help=".txt (one a line) or .jsonl (prompt or turns); default: our own")
    group.add_argument("--category", action="append", default=[], help="only this category of a .jsonl; repeatable")
    group.add_argument("--limit", type=int, default=4, help="prompts used (default 4)")
    group.add_argument("--prompt-length", type=int, default=64, help="tokens of a prompt with --geometry (default 64)")
    group.add_argument("--max-new-tokens", type=int, default=128)
    group.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    group.add_argument("--top-p", type=float, default=1.0)
    group.add_argument("--top-k", type=int, default=0)
    group.add_argument("--seed", type=int, default=0)


def sampling(args: argparse.Namespace) -> SamplingParams:
    return SamplingParams(args.temperature, args.top_p, args.top_k)


def set_up(args: argparse.Namespace) -> Setup:
    """Load or make the models, and read the prompts.

    Raises:
        ValueError: options that contradict each other, or what loading refuses.
    """
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    if args.limit < 1:
        raise ValueError(f"--limit={args.limit} must be >= 1.")
    if args.geometry is not None:
        return _synthetic(args)
    if args.acceptance is not None:
        raise ValueError("--acceptance dials a synthetic pair; give --geometry TARGET:DRAFT with it.")
    given = SpeculativeDecoder(args.target, args.draft, device=args.device, dtype=args.dtype)
    spec, notes = as_asked(given, args.draft_bits, args.packed)
    chosen = OWN_PROMPTS[: args.limit]
    prompts = read_prompts(args.prompts, args.limit, args.category) if args.prompts is not None else chosen
    names = [Path(name).name for name in (args.target, args.draft) if name]
    return Setup(spec, given.draft, as_ids(given, prompts), " with draft ".join(names), notes)


def _synthetic(args: argparse.Namespace) -> Setup:
    if args.acceptance is None:
        raise ValueError(f"--geometry {args.geometry} needs --acceptance, a number in [0, 1].")
    if args.draft is not None or args.prompts is not None:
        raise ValueError("--geometry makes its own models and prompts; leave out --draft and --prompts.")
    dtype = loading.check_dtype(args.dtype) or torch.float32
    device = loading.check_device(args.device) or "cpu"
    pair = synthetic_pair(args.geometry, args.acceptance, dtype=dtype, device=device, seed=args.seed)
    given = SpeculativeDecoder.from_models(pair.target, pair.draft)
    spec, notes = as_asked(given, args.draft_bits, args.packed)
    label = f"SYNTHETIC: shapes of {args.geometry} with random weights; acceptance dialled to {args.acceptance:g}"
    prompts = pair.prompts(args.limit, args.prompt_length, args.seed)
    return Setup(spec, pair.draft, prompts, f"Synthetic {args.geometry} at {args.acceptance:g}", (label, *notes))


def as_asked(given: SpeculativeDecoder, bits: int | None, packed: bool) -> tuple[SpeculativeDecoder, tuple[str, ...]]:
    """The decoder with its draft's weights in 4 or 8 bits, or with packed matrices, and notes that say so."""
    if bits is None and not packed:
        return given, ()
    if bits is not None and given.draft is None:
        raise ValueError(f"--draft-bits={bits} needs a draft model; give --draft or --geometry.")
    draft, notes = given.draft, []
    if packed:
        which = "the target" if draft is None or bits is not None else "target and draft"
        notes.append(f"baseline and speculative run over packed matrices of {which} (packed=True); hf* as loaded")
    if bits is not None:
        draft = quantized_copy(draft, bits)
        narrow = f"speculative runs: the draft's matrices in {bits} bits"
        notes.append(f"{narrow}; hf-assisted drafts with the given weights")
    spec = SpeculativeDecoder.from_models(given.target, draft, tokenizer=given.tokenizer, packed=packed)
    return spec, tuple(notes)


def lengths(values: Sequence[str]) -> list[Length]:
    """Draft lengths from the command line.

    Raises:
        ValueError: neither a positive integer nor "auto".
    """
    for value in values:
        if value != "auto" and not (value.isdigit() and int(value) > 0):
            raise ValueError(f"--k {value!r} must be a positive integer or auto; plain decoding is --method baseline.")
    return ["auto" if value == "auto" else int(value) for value in values]
