"""What every drafter must do, whatever it proposes: transformers' greedy tokens, for one row and for ragged batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from decoder import GenerationResult, SpeculativeDecoder
from decoder.models.toy import toy_model

PROMPTS = ([5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7], [9, 3, 9, 3, 9], [4], [11, 12, 13, 14, 15, 11, 12, 9, 13, 11, 12])


def small_target(seed: int = 0, **changes: Any) -> Any:
    """A random Llama over 16 tokens without EOS: its greedy texts repeat themselves, and break off again."""
    model = toy_model("llama", seed=seed, vocab_size=16, **changes)
    model.generation_config.eos_token_id = None
    return model


def library_greedy(model: Any, prompt: Sequence[int], new: int) -> list[int]:
    """The oracle."""
    ids = torch.tensor([list(prompt)])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, pad_token_id=0)
    return out[0, len(prompt) :].tolist()


def fates(results: Sequence[GenerationResult]) -> Counter[str]:
    """How many row rounds were accepted whole, in part, or not at all."""
    seen: Counter[str] = Counter()
    for result in results:
        for step in result.steps:
            if step.drafted:
                seen["all" if step.accepted == len(step.drafted) else "part" if step.accepted else "none"] += 1
    return seen


def check_parity(drafter: Any, draft: Any = None, *, seeds: Sequence[int] = (0, 1, 2), new: int = 48) -> Counter[str]:
    """Greedy tokens equal to transformers' for each prompt alone and for all in one ragged batch; returns the fates."""
    results: list[GenerationResult] = []
    for seed in seeds:
        target = small_target(seed)
        twin = None if draft is None else draft(target)
        decoder = SpeculativeDecoder.from_models(target, twin, drafter=drafter, temperature=0)
        wanted = [library_greedy(target, prompt, new) for prompt in PROMPTS]
        alone = [decoder.generate(prompt, max_new_tokens=new, k=5) for prompt in PROMPTS]
        batch = decoder.generate([list(prompt) for prompt in PROMPTS], max_new_tokens=new, k=3)
        assert [list(result.token_ids) for result in alone] == wanted
        assert [list(result.token_ids) for result in batch] == wanted
        results += [*alone, *batch]
    return fates(results)
