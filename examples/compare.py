"""Plain and speculative decoding side by side on the bundled pair; no network needed.

    python examples/compare.py

A story, sampled, with every token marked by its fate; a check that greedy texts are the same with and without
speculation; and a table of methods that took turns on the same prompts. `specdec bench` compares your own models.
"""

from __future__ import annotations

import sys

from decoder import SamplingParams, SpeculativeDecoder
from decoder.measure import Comparison, Plan, quiet, speculative
from decoder.measure.prompts import OWN_PROMPTS, as_ids
from decoder.report import coloured, legend, visible, wants_colour

TOKENS = 64


def main() -> None:
    with quiet():  # no loading bars
        spec = SpeculativeDecoder()
    story = spec.generate(OWN_PROMPTS[0], k=4, max_new_tokens=2 * TOKENS, seed=3)
    if wants_colour(sys.stdout):
        print(f"{OWN_PROMPTS[0]}{coloured(story)}\n\n{legend()}")
    else:
        print(visible(story.full_text))
    pace, rate = story.tokens_per_iteration, story.acceptance_rate
    print(f"\n{pace:.2f} tokens per target forward, {rate:.0%} of the drafts accepted")

    prompts, greedy = as_ids(spec, OWN_PROMPTS[:4]), {"max_new_tokens": TOKENS, "temperature": 0.0}
    same = sum(spec.generate(ids, k=4, **greedy).text == spec.generate_baseline(ids, **greedy).text for ids in prompts)
    print(f"Greedy texts that are the same with and without speculation: {same} of {len(prompts)}\n")

    plan = Plan(TOKENS, SamplingParams(temperature=0.0), repeats=2)
    methods = ["hf", "hf-assisted", "baseline", speculative(spec, plan, 4)]
    print(Comparison(spec, prompts, plan, methods).run().table())


if __name__ == "__main__":
    main()
