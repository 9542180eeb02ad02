"""A target that lives on disk, with its own narrow copy in memory as the draft: where speculation pays most.

    python scripts/measure_offload.py --target FOLDER --bits 4 --k 4,8 --out experiments/16-offload/greedy

The layers of the target are offloaded to disk through accelerate, so a forward reads all of them anew, whether for one
token or for nine. The draft is the same checkpoint with int4 or int8 weights, held in memory. Reading goes through
the operating system's page cache: with enough memory it is a copy, without it a disk. The table says what was measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM

from decoder import SpeculativeDecoder
from decoder.arguments import draft_lengths
from decoder.drafters import ModelDrafter
from decoder.measure.comparison import Comparison
from decoder.measure.methods import Plan, speculative
from decoder.measure.prompts import OWN_PROMPTS, as_ids
from decoder.models.hf import CausalModel
from decoder.models.loading import load_tokenizer
from decoder.models.quantize import quantized_copy
from decoder.models.sharing import find_layers
from decoder.types import SamplingParams


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--target", required=True, help="a folder or hub name")
    made.add_argument("--bits", type=int, choices=(4, 8), default=4, help="weights of the draft (default 4)")
    made.add_argument("--k", type=draft_lengths, default=[4, 8], help="draft lengths (default 4,8)")
    made.add_argument("--limit", type=int, default=2, help="prompts (default 2)")
    made.add_argument("--max-new-tokens", type=int, default=32)
    made.add_argument("--temperature", type=float, default=0.0)
    made.add_argument("--repeats", type=int, default=2)
    made.add_argument("--dtype", default="bfloat16")
    made.add_argument("--out", type=Path)
    return made


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    return parser().parse_args(argv)


def layers_to_disk(model: Any) -> dict[str, str]:
    """A device map that leaves everything on the CPU but the layers."""
    owner, name, layers = find_layers(model)
    path = next(prefix for prefix, module in model.named_modules() if module is owner)
    where = {f"{path}.{name}.{i}": "disk" for i in range(len(layers))}
    for prefix, module in model.named_modules():
        if not any(True for _ in module.children()) and not any((prefix + ".").startswith(p + ".") for p in where):
            where[prefix] = "cpu"
    return where


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    inside = AutoModelForCausalLM.from_pretrained(options.target, dtype=options.dtype).eval()
    with tempfile.TemporaryDirectory() as folder:
        target = AutoModelForCausalLM.from_pretrained(
            options.target, dtype=options.dtype, device_map=layers_to_disk(inside), offload_folder=folder
        ).eval()
        spec = SpeculativeDecoder.from_models(target, tokenizer=load_tokenizer("--target", options.target))
        draft = CausalModel(quantized_copy(inside, options.bits), "draft", spec.target_model.vocab_size)
        plan = Plan(
            options.max_new_tokens, SamplingParams(temperature=options.temperature, top_p=1.0), repeats=options.repeats
        )
        drafter = ModelDrafter(draft)
        report = Comparison(
            spec,
            as_ids(spec, OWN_PROMPTS[: options.limit]),
            plan,
            ["hf", "baseline", *(speculative(spec, plan, k, drafter) for k in options.k)],
            f"Layers on disk, int{options.bits} copy in memory as draft, T = {options.temperature:g}",
        ).run(progress=sys.stderr.isatty())
    print(report.markdown())
    if options.out is not None:
        report.write(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
