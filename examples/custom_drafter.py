"""A drafter of your own: it remembers which token followed each pair of tokens, and drafts along these memories.

python examples/custom_drafter.py      # offline: the bundled pair if it is installed, else a random toy model
"""

from __future__ import annotations

from itertools import pairwise

import torch

from decoder import Draft, Drafter, SpeculativeDecoder
from decoder.models.tiny import tiny_paths
from decoder.models.toy import toy_model


class PairDrafter(Drafter):
    name = "pairs"
    deterministic = True  # a proposal is a function of the text so far, so `Draft.probs` stays None

    def propose(self, contexts, counts):
        rows = []
        for context, k in zip(contexts, counts, strict=True):
            follows = dict(zip(pairwise(context), context[2:], strict=False))
            drafted = list(context[-2:])
            while len(drafted) - 2 < k and tuple(drafted[-2:]) in follows:
                drafted.append(follows[tuple(drafted[-2:])])
            rows.append(drafted[2:] if len(context) > 2 else [])
        width = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=torch.long)
        return Draft(tokens.reshape(len(rows), width), [len(row) for row in rows])


def main() -> None:
    try:
        tiny_paths()
        spec, prompt = SpeculativeDecoder("tiny", drafter=PairDrafter(), temperature=0), "Once upon a time"
    except FileNotFoundError:
        model = toy_model("llama", vocab_size=16)
        spec, prompt = SpeculativeDecoder.from_models(model, drafter=PairDrafter(), temperature=0), [5, 6, 7]
    result = spec.generate(prompt, k=6, max_new_tokens=60, eos_token_id=None)
    assert result.token_ids == spec.generate_baseline(prompt, max_new_tokens=60, eos_token_id=None).token_ids
    print(result.text or list(result.token_ids))
    print(f"{result.acceptance_rate:.0%} of the drafts accepted, {result.tokens_per_iteration:.2f} tokens per forward")


if __name__ == "__main__":
    main()
