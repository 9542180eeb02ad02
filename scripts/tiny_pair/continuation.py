"""Text written by the target: batches of continuations, packed into a stream for the draft to learn from."""

from __future__ import annotations

import numpy as np
import torch
from tqdm import tqdm
from transformers import LlamaForCausalLM

# Temperature -> (share of the generated chunks, tokens per segment). Greedy text starts to repeat itself after a
# while, which teaches the draft nothing, so its segments are half as long.
MIXTURE = {1.0: (0.4, 256), 0.8: (0.2, 256), 0.0: (0.4, 128)}
PROMPT_TOKENS = 32


@torch.no_grad()
def continue_prompts(
    model: LlamaForCausalLM, prompts: torch.Tensor, new_tokens: int, temperature: float, generator: torch.Generator
) -> torch.Tensor:
    """Continue prompts (n, p) by `new_tokens` tokens each; returns (n, p + new_tokens) on the CPU.

    temperature 0 takes the most probable token. End-of-text does not stop a row: the next story follows it, as in the
    stream the model was trained on.
    """
    device = next(model.parameters()).device
    pieces, ids, cache = [prompts.cpu()], prompts.to(device), None
    for _ in range(new_tokens):
        output = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, logits = output.past_key_values, output.logits[:, -1].float().cpu()
        if temperature > 0:
            drawn = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        else:
            drawn = logits.argmax(-1, keepdim=True)
        pieces.append(drawn)
        ids = drawn.to(device)
    return torch.cat(pieces, dim=1)


def prompts_from(stream: np.ndarray, count: int, length: int, seed: int) -> torch.Tensor:
    """`count` prompts (count, length) cut from random places of a token stream, a function of the seed."""
    starts = np.random.default_rng(seed).integers(len(stream) - length, size=count)
    return torch.from_numpy(np.stack([stream[s : s + length] for s in starts]).astype(np.int64))


def write_generated(
    model: LlamaForCausalLM, stream: np.ndarray, chunks: int, context: int, seed: int, batch: int
) -> np.ndarray:
    """About chunks * context tokens by the target, uint16 (n,), continuing prompts from the training text.

    The temperatures are mixed as MIXTURE says, the segments shuffled; each begins with its prompt. `batch` rows are
    written at a time; it changes the text, because the random numbers are then shared out differently.
    """
    generator = torch.Generator().manual_seed(seed)
    segments: list[np.ndarray] = []
    for number, (temperature, (share, wanted)) in enumerate(MIXTURE.items()):
        length = min(wanted, context // 2)
        prompt_length = min(PROMPT_TOKENS, length // 2)
        count = max(1, round(share * chunks * context / length))
        prompts = prompts_from(stream, count, prompt_length, seed + number)
        for part in tqdm(prompts.split(batch), desc=f"generate T={temperature}", mininterval=5.0):
            rows = continue_prompts(model, part, length - prompt_length, temperature, generator)
            segments.extend(rows.numpy().astype(np.uint16))
    shuffled = np.random.default_rng(seed).permutation(len(segments))
    return np.concatenate([segments[i] for i in shuffled])
