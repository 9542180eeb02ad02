"""Synthetic pairs as a source of models for the measuring commands: `--geometry` beside the options of the product.

`scripts/synthetic.py` is the command line of the product with this source, and the measuring scripts take it too.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch

from decoder import SpeculativeDecoder
from decoder.arguments import Source, add_models, add_prompts
from decoder.measure import setup as product
from decoder.measure.comparison import ComparisonReport
from decoder.measure.setup import Setup
from decoder.models import loading
from lab.geometry import GEOMETRIES, synthetic_pair


def _add_models(parser: argparse.ArgumentParser) -> None:
    add_models(parser)
    group = parser.add_argument_group("synthetic models")
    group.add_argument(
        "--geometry",
        metavar="TARGET:DRAFT",
        help="SYNTHETIC: real shapes with random weights instead of models; of " + ", ".join(sorted(GEOMETRIES)),
    )
    group.add_argument("--acceptance", type=float, help="with --geometry: chance that a drafted token is accepted")


def _add_prompts(parser: argparse.ArgumentParser, command: str) -> None:
    add_prompts(parser, command)
    parser.add_argument(
        "--prompt-length", type=int, default=64, metavar="N", help="tokens of a prompt with --geometry (default 64)"
    )


SOURCE = Source(_add_models, _add_prompts)


def set_up(options: argparse.Namespace) -> Setup:
    """Make or load the models, and make or read the prompts.

    Raises:
        ValueError: options that contradict each other, or what loading refuses.
    """
    if options.geometry is not None:
        return _synthetic(options)
    if options.acceptance is not None:
        raise ValueError("--acceptance dials a synthetic pair; give --geometry TARGET:DRAFT with it.")
    return product.set_up(options)


def _synthetic(options: argparse.Namespace) -> Setup:
    if options.acceptance is None:
        raise ValueError(f"--geometry {options.geometry} needs --acceptance, a number in [0, 1].")
    if options.draft is not None or options.prompt is not None or getattr(options, "prompts", None) is not None:
        raise ValueError("--geometry makes its own models and prompts; leave out --draft, --prompts and a prompt.")
    if "hf-lookup" in (getattr(options, "methods", None) or ()):
        raise ValueError("--methods hf-lookup means nothing with --geometry: its random text never repeats itself.")
    product.set_threads(options)
    dtype = loading.check_dtype(options.dtype) or torch.float32
    device = loading.check_device(options.device or "auto") or "cpu"
    seed, asked = options.seed or 0, options.acceptance
    pair = synthetic_pair(options.geometry, asked, dtype=dtype, device=device, seed=seed)
    spec, notes = product.adapted(SpeculativeDecoder.from_models(pair.target, pair.draft), options)
    label = f"SYNTHETIC: shapes of {options.geometry} with random weights; acceptance dialled to {asked:g}"
    prompts = pair.prompts(getattr(options, "limit", 1), options.prompt_length, seed)
    title = f"Synthetic {options.geometry} at {asked:g}"
    return Setup(spec, pair.draft, prompts, title, (label, *notes), lambda report: with_reached(report, asked))


def with_reached(report: ComparisonReport, dialled: float) -> ComparisonReport:
    """The account with the acceptance that was really reached, per position tested."""
    reached = [each.alpha for each in report.summaries if each.alpha is not None]
    text = ", ".join(f"{value:.3f}" for value in reached)
    extra = {"acceptance_dialled": dialled, "acceptance_reached": reached}
    note = f"acceptance (alpha) dialled {dialled:g}, reached {text or 'nothing drafted'}"
    return replace(report, notes=(*report.notes, note), extra=report.extra | extra)
