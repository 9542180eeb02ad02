"""The texts that a head learns from, where only prompts are given: the target answers them, and the answers are kept.

Two batches of three are written greedily, the third at temperature 0.8, so that a head learns for both. They go to one
file, batch by batch, and a later call goes on with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tqdm.auto import tqdm

from decoder.api import SpeculativeDecoder

TEXTS_FILE = "texts.jsonl"
_SAMPLED = 3  # every third batch is
_TEMPERATURE = 0.8


def is_texts(data: Path) -> bool:
    """Whether a file holds texts, which have tokens, or prompts."""
    if data.is_dir():
        return True
    if data.suffix != ".jsonl" or not data.is_file():
        return False
    with data.open(encoding="utf-8") as file:
        return "tokens" in json.loads(file.readline() or "{}")


def write_texts(
    spec: SpeculativeDecoder,
    prompts: Sequence[Sequence[int]],
    out: Path,
    *,
    new_tokens: int,
    batch: int = 32,
    seed: int = 0,
    progress: bool = False,
) -> Path:
    """Answer every prompt once; returns the file. What it holds already is not written again."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / TEXTS_FILE
    done = len(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else 0
    with path.open("a", encoding="utf-8") as file, tqdm(total=len(prompts), disable=not progress, unit="text") as bar:
        bar.update(done)
        for begin in range(done, len(prompts), batch):
            given = [list(prompt) for prompt in prompts[begin : begin + batch]]
            sampled = (begin // batch) % _SAMPLED == _SAMPLED - 1
            results = spec.generate_baseline(
                given,
                max_new_tokens=new_tokens,
                temperature=_TEMPERATURE if sampled else 0.0,
                top_p=1.0,
                seed=seed + begin,
                batch_size=batch,
            )
            for prompt, result in zip(given, results, strict=True):
                file.write(json.dumps({"prompt": prompt, "tokens": list(result.token_ids)}) + "\n")
            file.flush()
            bar.update(len(given))
    return path
