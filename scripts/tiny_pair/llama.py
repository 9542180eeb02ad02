"""Llama models of a given shape, and the precision they are trained in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from .presets import Shape
from .tokens import END_OF_TEXT_ID, PAD_ID


def build_llama(shape: Shape, vocab_size: int, context: int, seed: int) -> LlamaForCausalLM:
    """A randomly initialised float32 Llama, a function of the arguments alone."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=context,
        tie_word_embeddings=shape.tied,
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=END_OF_TEXT_ID,
        pad_token_id=PAD_ID,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


@torch.no_grad()
def copy_embeddings(source: LlamaForCausalLM, model: LlamaForCausalLM) -> bool:
    """Start `model` with the input and output embeddings of `source` when the widths agree; returns whether they do."""
    theirs = source.get_input_embeddings().weight, source.get_output_embeddings().weight
    ours = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    if theirs[0].shape != ours[0].shape:
        return False
    for mine, other in zip(ours, theirs, strict=True):
        mine.copy_(other)
    return True


def wants_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 autocast pays: on a GPU, and on a processor with bfloat16 tiles (AMX).

    Without tiles it was measured slower than float32 for these sizes, although the instructions exist.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    return bool(torch.cpu._is_amx_tile_supported())


def autocast(device: torch.device, bfloat16: bool) -> AbstractContextManager[object]:
    """Autocast to bfloat16 on `device`, or nothing."""
    return torch.autocast(device.type, torch.bfloat16) if bfloat16 else nullcontext()
