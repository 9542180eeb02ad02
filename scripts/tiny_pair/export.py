"""The finished pair on disk, in the plain Hugging Face format."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .tokens import END_OF_TEXT_ID, PAD_ID


@torch.no_grad()
def round_to_bfloat16(model: torch.nn.Module) -> None:
    """Round every parameter to bfloat16 in place, keeping its dtype: the model then is what will be exported."""
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16())


def export_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> int:
    """Write config.json, generation_config.json, model.safetensors (bfloat16) and the tokenizer; returns their bytes.

    The configuration names no path, host or origin: only the shape and the special tokens.
    """
    exported = copy.deepcopy(model).to("cpu", torch.bfloat16).eval()
    exported.generation_config = GenerationConfig(
        bos_token_id=END_OF_TEXT_ID, eos_token_id=END_OF_TEXT_ID, pad_token_id=PAD_ID
    )
    exported.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes files that only their owner may read
    tokenizer.save_pretrained(folder)
    _edit(folder / "config.json", lambda entries: entries.pop("_name_or_path", None))
    _edit(folder / "tokenizer_config.json", _plain_tokenizer)
    return sum(path.stat().st_size for path in folder.iterdir())


def _edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    entries = json.loads(path.read_text(encoding="utf-8"))
    change(entries)
    path.write_text(json.dumps(entries, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _plain_tokenizer(entries: dict[str, Any]) -> None:
    # The name of the class since version 4 of transformers; the newest versions write another and read both.
    entries["tokenizer_class"] = "PreTrainedTokenizerFast"
    for name in ("is_local", "local_files_only"):  # how it was loaded here, which is nobody else's concern
        entries.pop(name, None)
