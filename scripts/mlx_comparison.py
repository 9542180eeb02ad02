"""The same prompts through another runtime, mlx-lm, plain and with its draft model, beside this project's loop.

    pip install 'mlx[cpu]' mlx-lm             # Linux; on Apple silicon: pip install mlx-lm
    python scripts/mlx_comparison.py --out experiments/09-another-runtime/tiny
    python scripts/mlx_comparison.py --target FOLDER --draft FOLDER --dtype float16     # any pair both can load

Runtime and algorithm can so be told apart: each runtime's speculative run is set against its own plain run, and the
plain runs against each other. All are greedy and emit exactly --max-new-tokens tokens, interleaved run by run in one
process; texts are compared token for token. mlx-lm drafts k tokens per round and keeps those that equal its own choice.

torch and mlx each use their own threads; --threads binds torch only. mlx runs on --mlx-device.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from decoder import SpeculativeDecoder
from decoder.measure.comparison import ComparisonReport
from decoder.measure.environment import environment
from decoder.measure.methods import OwnMethod, Plan, label, named
from decoder.measure.prompts import OWN_PROMPTS, as_ids, read_prompts
from decoder.measure.summary import MethodSummary, speedup, summarise
from decoder.measure.timing import RunOutput, Sample, interleaved
from decoder.models.tiny import tiny_paths
from decoder.types import SamplingParams

MISSING = "mlx-lm is not installed; pip install 'mlx[cpu]' mlx-lm (on Apple silicon: pip install mlx-lm)."


@dataclass
class MlxMethod:
    """mlx-lm's greedy generation; with a draft, its speculative one. Ids in, ids out, like the other methods."""

    name: str
    target: Any
    plan: Plan
    draft: Any = None
    k: int = 4

    @property
    def device(self) -> torch.device:
        """What is drained before the clock is read: nothing of mlx's, since reading the ids waits for them."""
        return torch.device("cpu")

    def __call__(self, prompt: Sequence[int], seed: int) -> RunOutput:
        import mlx.core as mx
        from mlx_lm.generate import generate_step, speculative_generate_step

        ids, count = mx.array(list(prompt)), self.plan.max_new_tokens
        if self.draft is None:
            return RunOutput(tuple(int(token) for token, _ in generate_step(ids, self.target, max_tokens=count)))
        steps = speculative_generate_step(ids, self.target, self.draft, num_draft_tokens=self.k, max_tokens=count)
        return RunOutput(tuple(int(token) for token, _, _ in steps))


def mlx_model(folder: Path, dtype: str) -> Any:
    """The model of a Hugging Face folder in mlx. Its configuration is copied with the keys mlx-lm reads spelled out."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for file in folder.iterdir():
            if file.suffix in (".safetensors", ".json"):
                shutil.copy(file, place / file.name)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        rope = config.pop("rope_parameters", None) or {}
        if rope.get("rope_type", "default") != "default":
            raise ValueError(f"{folder} scales its positions ({rope['rope_type']}); compare a model that does not.")
        config.setdefault("rope_theta", rope.get("rope_theta", 10000.0))
        (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
        model = load_model(place)[0]
        model.set_dtype(getattr(mx, dtype))
        mx.eval(model.parameters())
    return model


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("--target", type=Path, help="folder of a model; default: the bundled pair")
    made.add_argument("--draft", type=Path, help="folder of its draft; without one only plain runs are compared")
    made.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    made.add_argument("--mlx-device", choices=("cpu", "gpu"), default="cpu")
    made.add_argument("--device", default="cpu", help="of torch (default cpu)")
    made.add_argument("--threads", type=int, help="threads of torch; default: torch's own choice")
    made.add_argument("--k", type=int, default=4, help="drafted tokens per round, of both (default 4)")
    made.add_argument("--prompts", type=Path, help=".txt or .jsonl; default: our own")
    made.add_argument("--limit", type=int, default=4, help="prompts used (default 4)")
    made.add_argument("--max-new-tokens", type=int, default=96)
    made.add_argument("--repeats", type=int, default=3)
    made.add_argument("--out", type=Path, help="write PATH.json and PATH.md; token ids are left out")
    return made


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    return parser().parse_args(argv)


def within_each_runtime(samples: Sequence[Sample], names: Sequence[str]) -> str:
    """mlx's speculative run against mlx's own plain run; ours against ours is a column of the table."""
    if "mlx speculative" not in names:
        return ""
    by = {name: [each for each in samples if each.method == name] for name in ("mlx", "mlx speculative")}
    ratio = speedup(by["mlx speculative"], by["mlx"])
    interval = "" if ratio.lower is None else f" ({ratio.lower:.2f} to {ratio.upper:.2f})"
    return f"mlx speculative over mlx plain: {ratio.ratio:.2f}x{interval}"


def measure(options: argparse.Namespace) -> tuple[SpeculativeDecoder, list[MethodSummary], list[Sample], Plan]:
    import mlx.core as mx

    mx.set_default_device(getattr(mx, options.mlx_device))
    bundled = tiny_paths()
    target = options.target or bundled.target
    draft = options.draft if options.target is not None else bundled.draft
    spec = SpeculativeDecoder(
        str(target), None if draft is None else str(draft), dtype=options.dtype, device=options.device, temperature=0.0
    )
    plan = Plan(options.max_new_tokens, SamplingParams(temperature=0.0), repeats=options.repeats)
    mlx_target = mlx_model(target, options.dtype)
    methods: list[Any] = [named("hf", spec, plan), named("baseline", spec, plan), MlxMethod("mlx", mlx_target, plan)]
    if draft is not None:
        methods.append(OwnMethod(label(spec.drafter, options.k), spec, plan, options.k))
        methods.append(MlxMethod("mlx speculative", mlx_target, plan, mlx_model(draft, options.dtype), options.k))
    texts = OWN_PROMPTS if options.prompts is None else read_prompts(options.prompts)
    prompts = as_ids(spec, texts[: options.limit])
    samples = interleaved(methods, prompts, repeats=options.repeats)
    return spec, summarise(samples), samples, plan


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    try:
        import mlx_lm  # noqa: F401
    except ImportError as error:
        print(f"mlx_comparison.py: {MISSING} ({error})", file=sys.stderr)
        return 2
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    spec, summaries, samples, plan = measure(options)
    name = "bundled pair" if options.target is None else options.target.name
    runtimes = (
        f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')} on its {options.mlx_device}; all greedy, {options.dtype}"
    )
    notes = [note for note in (runtimes, within_each_runtime(samples, [each.name for each in summaries])) if note]
    bare = tuple(replace(sample, token_ids=()) for sample in samples)
    place = environment(spec.target, spec.draft)
    report = ComparisonReport(
        f"{name}, k = {options.k}: two runtimes", plan, tuple(summaries), bare, place, tuple(notes)
    )
    print(report.markdown())
    if options.out is not None:
        report.write(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
