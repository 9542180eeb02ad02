"""L5: `specdec train-head`: a head for a target, from texts that the target wrote."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from decoder.api import SpeculativeDecoder
from decoder.files import write_json
from decoder.heads.config import config_for
from decoder.heads.eagle import FeatureHead
from decoder.heads.fingerprint import sketch
from decoder.heads.store import WEIGHTS_FILE, load_own
from decoder.measure.prompts import as_ids, read_prompts
from decoder.models.tiny import tiny_paths
from decoder.training.curves import ACCEPTANCE_FILE
from decoder.training.recipe import Recipe
from decoder.training.run import Run
from decoder.training.start import fit_outputs, initialise
from decoder.training.teacher import LessonStore, Teacher
from decoder.training.texts import batch_of, batches, frequent_ids, read_texts
from decoder.training.writing import is_texts, write_texts

RECIPE_FILE = "recipe.json"


def new_head(target: Any, data: Path, recipe: Recipe) -> FeatureHead:
    """A head at the start of its training: its vocabulary from the texts, its weights from the target."""
    size = int(target.get_output_embeddings().weight.shape[0])
    vocabulary = 0 if recipe.vocabulary >= size else recipe.vocabulary
    head = FeatureHead(config_for(target, vocabulary, recipe.feature_layers, recipe.joins))
    if vocabulary:
        head.draft_ids = frequent_ids(read_texts(data, recipe.longest), size, vocabulary)
    head.target_sketch = sketch(target)
    torch.manual_seed(recipe.seed)
    initialise(head, target, copy_layer=recipe.copy_layer)
    return head


def train_head(
    target: Any,
    data: Path,
    out: Path,
    recipe: Recipe,
    *,
    store_gb: float = 8.0,
    store: Path | None = None,
    pause_after_s: float = float("inf"),
) -> Run:
    """Train a head for a transformers model in memory, into `out`; goes on from what is there.

    data: a .jsonl file of texts, or a folder of them.  store_gb: bound of the hidden states kept on disk, in GB of each
        process; 0 keeps none.  store: where; within `out` by default.
    pause_after_s: stop with a checkpoint after so long.
    """
    for parameter in target.parameters():
        parameter.requires_grad_(False)
    fresh = not (out / WEIGHTS_FILE).is_file()
    head = new_head(target, data, recipe) if fresh else load_own(out)
    head.borrow(target)
    weights = target.get_output_embeddings().weight.detach()
    rows = weights[head.draft_ids.to(weights.device)].float()
    run = Run(head, Teacher(target, head.config.feature_layers), rows, data, out, recipe)
    if store_gb > 0:
        place = (store or out / "lessons") / f"process{run.accelerator.process_index}"
        run.teacher.store = LessonStore(place, int(store_gb * 1e9))
    if fresh and recipe.fit_tokens and head.join is not None:
        fit(run)
    if run.accelerator.is_main_process:
        write_json(out / RECIPE_FILE, recipe.to_dict())
    run.train(pause_after_s)
    return run


def fit(run: Run) -> dict[str, float]:
    """Begin at the closed form over the first texts; every process computes the same."""
    recipe, found, seen = run.recipe, [], 0
    texts = [text for text in read_texts(run.data, recipe.longest) if not text.held_out]
    for group in batches(texts, recipe.tokens_per_batch, recipe.seed):
        batch = batch_of(group, recipe.skip)
        found.append((batch, run.teacher.lesson(batch)))
        seen += int(batch.learn.sum())
        if seen >= recipe.fit_tokens:
            break
    return fit_outputs(run.head, found)


def load_target(name: str, dtype: str = "float32") -> Any:
    """A transformers model, "tiny" for the bundled one."""
    source = str(tiny_paths().target) if name == "tiny" else name
    return AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))


def run_command(options: argparse.Namespace) -> None:
    """What `specdec train-head` does: texts where only prompts are given, then the head."""
    given = {field.name: getattr(options, field.name, None) for field in fields(Recipe)}
    recipe = Recipe(**{name: value for name, value in given.items() if value is not None})
    data, out, dtype = Path(options.data), Path(options.out), options.dtype or "float32"
    if dtype not in ("float32", "bfloat16", "float16"):
        raise ValueError(f"--dtype {dtype!r} must be float32, bfloat16 or float16.")
    if not data.exists():
        raise ValueError(f"--data {str(data)!r} does not exist; name a file of texts or prompts, or a folder of texts.")
    if not is_texts(data):
        spec = SpeculativeDecoder(options.target, dtype=dtype, drafter="none")
        prompts = as_ids(spec, read_prompts(data))
        target, shown = spec.target, sys.stderr.isatty()
        data = write_texts(
            spec, prompts, out / "texts", new_tokens=options.max_new_tokens, seed=recipe.seed, progress=shown
        )
    else:
        target = load_target(options.target, dtype)
    run = train_head(target, data, out, recipe, store_gb=options.store_gb)
    if run.accelerator.is_main_process:
        print((out / ACCEPTANCE_FILE).read_text(encoding="utf-8"), end="")
