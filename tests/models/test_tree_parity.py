"""Greedy parity with `generate(do_sample=False)` where trees are drafted, family by family.

The trees put the better sibling second, so that what is accepted stands behind what is not: keys have to move, and a
node's position is not its slot.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

for folder in (Path(__file__).parents[1], Path(__file__).parent):
    sys.path.append(str(folder))

from test_parity import CASES, LONG, NEW, PROMPTS, build, fates  # noqa: E402

from branching_drafters import BUSH, COMB, FORK, ModelTrees  # noqa: E402
from decoder import SpeculativeDecoder  # noqa: E402
from decoder.models.hf import CausalModel  # noqa: E402
from decoder.models.toy import noisy_copy  # noqa: E402
from decoder.trees import Tree  # noqa: E402
from decoder.types import ragged  # noqa: E402

SHAPES = (BUSH, COMB, FORK, (-1, -1, -1, 2, 3, 4, 1))
CHAINS_ONLY = {"falcon-rotary", "falcon-alibi", "bloom"}  # no explicit masks: drafted as chains


def decoder_of(target, shapes=SHAPES, noise: float = 0.05) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_models(target, drafter=ModelTrees(noisy_copy(target, noise), shapes), temperature=0)


def moved(results) -> int:
    """Rounds whose accepted path did not stand at the start of its tree."""
    return sum(step.path != tuple(range(len(step.path))) for result in results for step in result.steps)


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_greedy_equals_generate(name: str, attention: str, greedy) -> None:
    target = build(name, attention)
    wanted = [greedy(target, prompt, NEW) for prompt in PROMPTS]
    spec = decoder_of(target)
    alone = spec.generate(torch.tensor(PROMPTS[0]), k=7, max_new_tokens=NEW, eos_token_id=None)
    assert list(alone.token_ids) == wanted[0]
    batch = spec.generate([torch.tensor(p) for p in PROMPTS], k=7, max_new_tokens=NEW, eos_token_id=None)
    assert [list(result.token_ids) for result in batch] == wanted
    if name in CHAINS_ONLY:
        assert not any(step.parents for result in [alone, *batch] for step in result.steps)
        return
    assert {"accepted", "recovered", "bonus"} <= fates(batch)
    assert moved([alone]) and moved(batch) >= 3
    assert any(step.accepted >= 2 and step.path[1] > step.path[0] + 1 for result in batch for step in result.steps)


def test_statistics_count_every_node_and_a_position_is_a_depth() -> None:
    target = build("llama", "sdpa")
    result = decoder_of(target, (COMB,)).generate(torch.tensor(LONG), k=4, max_new_tokens=NEW, eos_token_id=None)
    rounds = result.steps[1:]
    assert result.num_draft_tokens == sum(len(step.parents) for step in rounds)
    full = [step for step in rounds if len(step.drafted) == 4]
    assert len(full) > 3 and all(step.depth == 2 for step in full)
    assert len(result.acceptance_per_position) == 2
    assert result.num_accepted_tokens == sum(len(step.path) for step in rounds)
    for step in rounds:
        assert step.emitted[: step.accepted] == tuple(step.drafted[node] for node in step.path)[: len(step.emitted)]
        assert step.tested == step.accepted + (not step.exhausted)
    assert {"parents", "path"} <= set(result.to_dict()["steps"][1])


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3-window"])
def test_a_kept_cache_continues_after_trees(name: str, greedy) -> None:
    target = build(name, "sdpa")
    spec = decoder_of(target)
    first = spec.generate(torch.tensor(LONG), k=7, max_new_tokens=9, eos_token_id=None, return_cache=True)
    assert moved([first])
    longer = [*LONG, *first.token_ids, 13, 14]
    second = spec.generate(torch.tensor(longer), k=7, max_new_tokens=12, eos_token_id=None, cache=first.cache)
    assert list(second.token_ids) == greedy(target, longer, 12)


def test_rows_drop_out_of_a_batch_at_their_own_length(greedy) -> None:
    target = build("llama", "sdpa")
    wanted = [greedy(target, prompt, NEW) for prompt in PROMPTS]
    eos = [wanted[0][3], wanted[1][9]]
    cut = []
    for ids in wanted:
        end = next((i for i, token in enumerate(ids) if token in eos), NEW - 1)
        cut.append(ids[: end + 1])
    results = decoder_of(target).generate([torch.tensor(p) for p in PROMPTS], k=7, max_new_tokens=NEW, eos_token_id=eos)
    assert [list(result.token_ids) for result in results] == cut
    assert len({result.num_iterations for result in results}) >= 2


@pytest.mark.parametrize("options", [{"repetition_penalty": 1.7}, {"no_repeat_ngram_size": 2}, {"min_new_tokens": 18}])
def test_processors_see_the_path_of_each_node(options, greedy) -> None:
    target = build("llama", "sdpa")
    spec = decoder_of(target, noise=0.02)
    for prompt in PROMPTS:
        result = spec.generate(torch.tensor(prompt), k=7, max_new_tokens=NEW, eos_token_id=None, **options)
        plain = spec.generate_baseline(torch.tensor(prompt), max_new_tokens=NEW, eos_token_id=None, **options)
        assert result.token_ids == plain.token_ids
        assert result.num_accepted_tokens


def test_what_cannot_verify_trees_is_given_chains() -> None:
    target = build("llama", "sdpa")
    spec = decoder_of(target)
    for options in ({"invariant": True}, {"verifier": "block", "temperature": 0.7, "seed": 1}):
        result = spec.generate(torch.tensor(LONG), k=7, max_new_tokens=NEW, eos_token_id=None, **options)
        assert result.num_accepted_tokens and not any(step.parents for step in result.steps)


def test_gumbel_sampling_gives_the_same_text_with_trees() -> None:
    target = build("llama", "sdpa")
    asked = {"temperature": 0.8, "seed": 5, "sampling": "gumbel", "max_new_tokens": NEW, "eos_token_id": None}
    spec = decoder_of(target)
    for prompt in PROMPTS:
        result = spec.generate(torch.tensor(prompt), k=7, **asked)
        assert result.token_ids == spec.generate_baseline(torch.tensor(prompt), **asked).token_ids
        assert result.num_accepted_tokens


def test_recorded_logits_are_those_along_the_path() -> None:
    target = build("llama", "sdpa")
    asked = {"max_new_tokens": NEW, "eos_token_id": None, "logprobs": 2, "output_scores": True, "output_logits": True}
    spec = decoder_of(target)
    result = spec.generate(torch.tensor(LONG), k=7, **asked)
    plain = spec.generate_baseline(torch.tensor(LONG), **asked)
    assert moved([result])
    for name in ("logits", "scores"):
        torch.testing.assert_close(
            torch.stack(getattr(result, name)), torch.stack(getattr(plain, name)), atol=2e-4, rtol=1e-4
        )
    assert [said.token_id for said in result.logprobs] == [said.token_id for said in plain.logprobs]
    assert all(abs(a.logprob - b.logprob) < 1e-3 for a, b in zip(result.logprobs, plain.logprobs, strict=True))


def test_ids_that_the_target_lacks_cut_the_tree() -> None:
    target = build("llama", "sdpa")

    class Beyond(ModelTrees):
        def _row(self, context, k):
            tokens, parents = super()._row(context, k)
            return [*tokens[:3], *([10_000] * len(tokens[3:]))], parents

    drafter = Beyond(noisy_copy(target, 0.05), SHAPES)
    spec = SpeculativeDecoder.from_models(target, drafter=drafter, temperature=0)
    result = spec.generate(torch.tensor(LONG), k=7, max_new_tokens=NEW, eos_token_id=None)
    assert (
        result.token_ids == spec.generate_baseline(torch.tensor(LONG), max_new_tokens=NEW, eos_token_id=None).token_ids
    )
    assert max(len(step.drafted) for step in result.steps) == 3


def test_hidden_states_are_kept_along_the_path() -> None:
    """What a head reads after a tree: the states of a forward over the kept text alone."""
    target = build("llama", "sdpa")
    session = CausalModel(target, "target").open(2, 40)
    texts = [[7, 33, 12], [4, 19, 44, 8, 15]]
    tape = session.record([1])
    with torch.inference_mode():
        session.feed(ragged(texts), [0, 0])
        session.commit([len(text) - 1 for text in texts])
        tape.read([0, 0], [2, 4])
        tree = Tree([[-1, -1, 1, 1, 3], [-1, 0, -1]])
        nodes = [[21, 22, 23, 24, 25], [31, 32, 33, 0, 0]]
        fed = torch.tensor([[text[-1], *row] for text, row in zip(texts, nodes, strict=True)])
        session.feed(fed, [2, 4], tree=tree)
        session.commit([6, 6], [[1, 3, 4], [2]])
        found = tape.read([2, 4], [6, 6])  # [B, 4, hidden]
        for row, text in enumerate(([*texts[0], 22, 24, 25], [*texts[1], 33])):
            states = target(torch.tensor([text]), output_hidden_states=True, use_cache=False).hidden_states[1][0]
            begin = len(texts[row]) - 1
            torch.testing.assert_close(found[row, : len(text) - begin], states[begin:], atol=1e-5, rtol=1e-4)
