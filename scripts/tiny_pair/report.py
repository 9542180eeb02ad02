"""What the finished pair can do: bits per byte, acceptance rates, cost ratio, samples."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedTokenizerFast

from . import corpus, tokens
from .agreement import held_out_continuations, measure_agreement
from .continuation import continue_prompts
from .evaluation import bits_per_byte, held_out_windows, token_bytes

SAMPLE_PROMPTS = (
    "Once upon a time there was a little rabbit who",
    "In a far country there lived a king who had three daughters.",
    '"What is the matter?" asked the old woman, looking at the boy.',
)
SAMPLE_TEMPERATURE = 0.8
SAMPLE_TOKENS = 200


def load_float32(folder: Path) -> LlamaForCausalLM:
    """Load an exported model for measuring: its bfloat16 weights, computed with in float32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def bits_per_byte_by_book(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path, books: list[corpus.Book], context: int
) -> dict[str, float]:
    """Bits per byte of every held-out book, and of all their tokens together under the key "all"."""
    sizes = token_bytes(tokenizer)
    figures: dict[str, float] = {}
    bits = content = 0.0
    for book in (b for b in books if b.split == "heldout"):
        text = corpus.load_split(folder, "heldout", [book])
        windows = held_out_windows(tokens.encode_stream(tokenizer, text.sections), sizes, context, None)
        figures[book.title] = bits_per_byte(model, windows)
        bits += figures[book.title] * windows.content_bytes
        content += windows.content_bytes
    return figures | {"all": bits / content}


def agreement_figures(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, heldout: np.ndarray, context: int, count: int, seed: int
) -> dict[str, float]:
    """Teacher-forced acceptance rates after `count` held-out prompts, and on the held-out text itself."""
    new_tokens = min(128, context // 2)
    made = held_out_continuations(target, heldout, count, min(32, context // 4), new_tokens, seed)
    rows = torch.from_numpy(heldout[: len(heldout) // context * context].astype(np.int64)).view(-1, context)
    results = {
        "continuations_temperature_1": measure_agreement(target, draft, made.sampled, made.prompt_length),
        "continuations_greedy": measure_agreement(target, draft, made.greedy, made.prompt_length),
        "held_out_text": measure_agreement(target, draft, rows, 1),
    }
    return {f"{name}.{key}": value for name, result in results.items() for key, value in asdict(result).items()}


@torch.no_grad()
def step_seconds(models: dict[str, LlamaForCausalLM], past: int = 128, rounds: int = 60) -> dict[str, float]:
    """Median seconds of one cached decoding step (1 token after about `past`) of each model, interleaved, eager."""
    times: dict[str, list[float]] = {name: [] for name in models}
    prompt = torch.full((1, past), 5)
    caches = {name: model(input_ids=prompt, use_cache=True).past_key_values for name, model in models.items()}
    for _ in range(rounds):
        for name, model in models.items():
            began = time.perf_counter()
            model(input_ids=prompt[:, :1], past_key_values=caches[name], use_cache=True)
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values[5:]) for name, values in times.items()}


def unedited_samples(target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """One continuation of each prompt of SAMPLE_PROMPTS, seeds 0, 1, 2, at SAMPLE_TEMPERATURE, prompt included."""
    texts = []
    for seed, prompt in enumerate(SAMPLE_PROMPTS):
        ids = torch.tensor([[tokens.END_OF_TEXT_ID, *tokenizer.encode(prompt, add_special_tokens=False)]])
        generator = torch.Generator().manual_seed(seed)
        made = continue_prompts(target, ids, SAMPLE_TOKENS, SAMPLE_TEMPERATURE, generator)
        texts.append(tokenizer.decode(made[0, 1:]))
    return texts
