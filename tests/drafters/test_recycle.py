"""Token Recycling: the table against the target's own first choices, its inheritance, and exactness."""

from __future__ import annotations

import pytest
import torch
from drafter_parity import PROMPTS, check_parity, library_greedy, small_target

from decoder import SpeculativeDecoder
from decoder.drafters import RecycleDrafter
from decoder.testing import check_lossless
from decoder.types import Draft


def one_hot(*rows: list[int]) -> torch.Tensor:
    """Logits [B, n, 10] whose first choices these are."""
    return torch.nn.functional.one_hot(torch.tensor(rows), 10).float()


def chain(run, last: int, k: int = 4) -> list[int]:
    draft = run.propose([[last]], [k])
    return draft.tokens[0, : draft.counts[0]].tolist()


def test_chain_follows_what_the_target_said_last():
    run = RecycleDrafter(min_chance=0).start([[1]], None, None, 100)
    assert chain(run, 1) == []
    # read 1, then the drafted 2 and 3; the third drafted place is padding and must not be learnt
    run.learn([[1]], Draft(torch.tensor([[2, 3, 0]]), [2]), one_hot([5, 6, 7, 9]))
    assert chain(run, 1) == [5]
    assert chain(run, 2) == [6]
    assert chain(run, 0) == []
    run.learn([[1, 5]], Draft(torch.zeros(1, 0, dtype=torch.long), [0]), one_hot([2]))
    run.learn([[1, 5, 2]], Draft(torch.tensor([[1]]), [1]), one_hot([3, 5]))
    assert chain(run, 1, 5) == [5, 2, 3, 7]
    assert chain(run, 1, 2) == [5, 2]


def test_rows_learn_for_themselves():
    run = RecycleDrafter().start([[1], [1]], None, None, 100)
    run.learn([[1], [1]], Draft(torch.zeros(2, 0, dtype=torch.long), [0, 0]), one_hot([4], [8]))
    assert run.propose([[1], [1]], [1, 1]).tokens.tolist() == [[4], [8]]
    run.learn([[1, 4], [1, 8]], Draft(torch.zeros(2, 0, dtype=torch.long), [0, 0]), one_hot([1], [2]))
    run.select([1])
    assert run.propose([[1, 8]], [2]).tokens.tolist() == [[2]]


class Watched(RecycleDrafter):
    """Notes what it was shown, without the logits."""

    def __init__(self) -> None:
        super().__init__(memory=True, min_gain=0)
        self.shown: list[list[int]] = []  # shared by its runs: copies are shallow

    def learn(self, contexts, draft, logits):
        drafted = draft.tokens[0, : draft.counts[0]].tolist()
        self.shown += [[*contexts[0], *drafted[:i]] for i in range(len(drafted) + 1)]
        super().learn(contexts, draft, logits)


def test_table_is_the_targets_first_choice_after_each_token_it_read():
    """A forward of each prefix from scratch says what the table must hold, rejected drafts included."""
    target = small_target(1)
    drafter = Watched()
    decoder = SpeculativeDecoder.from_models(target, drafter=drafter, temperature=0)
    decoder.generate(PROMPTS[0], max_new_tokens=48, k=5)
    expected = {}
    with torch.inference_mode():
        for prefix in drafter.shown:
            expected[prefix[-1]] = int(target(torch.tensor([prefix])).logits[0, -1].argmax())
    assert len(drafter.shown) > 48 and drafter._shared.follow == expected  # more than was emitted: some were rejected


def test_memory_leaves_the_table_to_the_next_call():
    target = small_target(2)
    fresh, hot = (
        SpeculativeDecoder.from_models(target, drafter=RecycleDrafter(memory=memory), temperature=0)
        for memory in (False, True)
    )
    rounds = {}
    for name, decoder in (("fresh", fresh), ("hot", hot)):
        runs = [decoder.generate(PROMPTS[0], max_new_tokens=40, k=4) for _ in range(2)]
        assert all(list(run.token_ids) == library_greedy(target, PROMPTS[0], 40) for run in runs)
        rounds[name] = [len(run.steps) for run in runs]
    assert rounds["fresh"][0] == rounds["fresh"][1] == rounds["hot"][0] > rounds["hot"][1]


def test_bad_options_are_named():
    with pytest.raises(TypeError, match="memory"):
        RecycleDrafter(memory=3)


def test_greedy_equals_generate():
    seen = check_parity(RecycleDrafter(min_gain=0))
    assert all(seen[fate] for fate in ("all", "part", "none")), seen
    check_parity(RecycleDrafter(), seeds=(0,))


def test_its_time_is_the_drafters():
    """`learn` is inside draft_s, so that the account stays honest."""
    decoder = SpeculativeDecoder.from_models(small_target(0), drafter=RecycleDrafter(), temperature=0)
    result = decoder.generate(PROMPTS[0], max_new_tokens=8, k=2)
    assert all(step.draft_s > 0 for step in result.steps)
    total = result.prefill_s + result.draft_s + result.target_s + result.overhead_s
    assert total == pytest.approx(result.wall_s)


def test_lossless():
    check_lossless(RecycleDrafter(min_gain=0))
    check_lossless(RecycleDrafter())
