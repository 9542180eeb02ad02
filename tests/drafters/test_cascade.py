"""The cascade: who serves a row, honest laws in one proposal, what each drafter hears afterwards, and exactness."""

from __future__ import annotations

import pytest
import torch
from drafter_parity import PROMPTS, check_parity, small_target

from decoder import Draft, Drafter, SpeculativeDecoder
from decoder.drafters import CascadeDrafter, ModelDrafter, NgramDrafter, RecycleDrafter, SuffixDrafter
from decoder.models.toy import TableModel, noisy_copy
from decoder.testing import check_lossless


class Scripted(Drafter):
    """Offers given tokens per row; with `law`, as if drawn uniformly. Records what it hears."""

    name = "scripted"

    def __init__(self, *offers: list[int], law: bool = False) -> None:
        self.offers, self.law = list(offers), law
        self.asked: list[list[int]] = []
        self.heard: list[list[int]] = []

    def start(self, contexts, warp, random, limit):
        return self

    def propose(self, contexts, counts):
        self.asked.append(list(counts))
        found = [offer[:k] for offer, k in zip(self.offers, counts, strict=True)]
        width = max(map(len, found))
        tokens = torch.tensor([offer + [0] * (width - len(offer)) for offer in found], dtype=torch.long)
        tokens = tokens.reshape(len(found), width)
        probs = torch.full((len(found), width, 10), 0.1) if self.law else None
        return Draft(tokens, list(map(len, found)), probs)

    def keep(self, accepted):
        self.heard.append(list(accepted))

    def select(self, rows):
        self.offers = [self.offers[row] for row in rows]


class Warp:
    greedy = False


def start(*drafters, enough=1, rows=2):
    return CascadeDrafter(drafters, enough=enough).start([[1]] * rows, Warp(), None, 100)


def test_each_row_is_served_by_the_first_that_offers_enough():
    first, second = Scripted([3, 3, 3], [4]), Scripted([5, 5, 5], [6, 6, 6])
    draft = start(first, second, enough=2).propose([[1], [1]], [3, 3])
    assert draft.counts == [3, 3] and draft.tokens.tolist() == [[3, 3, 3], [6, 6, 6]]
    assert second.asked == [[0, 3]]  # only the row that is still open


def test_enough_is_never_more_than_was_asked_for():
    first, second = Scripted([3, 3], [4]), Scripted([5], [6])
    draft = start(first, second, enough=3).propose([[1], [1]], [2, 1])
    assert draft.tokens.tolist() == [[3, 3], [4, 0]] and second.asked == []


def test_where_nobody_offers_enough_the_longest_offer_serves():
    first, second = Scripted([3], [4, 4], []), Scripted([5, 5], [6, 6], [])
    draft = start(first, second, enough=3, rows=3).propose([[1]] * 3, [4, 4, 4])
    assert draft.counts == [2, 2, 0]
    assert draft.tokens.tolist() == [[5, 5], [4, 4], [0, 0]]


def test_a_sampled_offer_is_not_set_aside_for_being_short():
    sampled, other = Scripted([3], [4], law=True), Scripted([5, 5], [6, 6])
    draft = start(sampled, other, enough=2).propose([[1], [1]], [2, 2])
    assert draft.counts == [1, 1] and other.asked == []


def test_a_short_offer_is_not_mistaken_for_the_one_that_serves():
    first, second = Scripted([3]), Scripted([4], law=True)
    run = start(first, second, enough=2, rows=1)
    draft = run.propose([[1]], [2])
    assert draft.tokens.tolist() == [[4]] and draft.probs is not None and draft.sampled
    run.keep([1])
    assert first.heard == [[0]] and second.heard == [[1]]


def test_each_row_carries_the_law_it_was_drawn_from():
    draft = start(Scripted([3, 7], []), Scripted([5], [6, 6, 6], law=True)).propose([[1], [1]], [3, 3])
    assert draft.counts == [2, 3] and draft.probs is not None
    assert draft.probs[0, :2].tolist() == torch.nn.functional.one_hot(torch.tensor([3, 7]), 10).float().tolist()
    assert torch.equal(draft.probs[1], torch.full((3, 10), 0.1))


def test_each_drafter_hears_of_its_own_proposal_only():
    first, second, third = Scripted([3, 3], [], []), Scripted([], [6, 6], []), Scripted([9], [9], [9])
    run = start(first, second, third, rows=3)
    run.propose([[1]] * 3, [2, 2, 2])
    run.keep([2, 1, 0])
    assert first.heard == [[2, 0, 0]] and second.heard == [[0, 1, 0]] and third.heard == [[0, 0, 0]]
    first.offers = [[3], [3], [3]]
    run.propose([[1]] * 3, [2, 2, 2])
    run.keep([1, 1, 1])
    assert first.heard[-1] == [1, 1, 1] and len(second.heard) == 1  # who was not asked hears nothing


def test_bad_options_are_named():
    with pytest.raises(TypeError, match="drafters"):
        CascadeDrafter([])
    with pytest.raises(TypeError, match="drafters"):
        CascadeDrafter(["suffix"])
    with pytest.raises(ValueError, match="enough"):
        CascadeDrafter([NgramDrafter()], enough=0)


def half_right(target):
    return noisy_copy(target, 0.1)


@pytest.mark.parametrize("name", ["with a draft model", "without", "three"])
def test_greedy_equals_generate(name):
    if name == "three":
        drafter = CascadeDrafter([NgramDrafter(min_n=3), RecycleDrafter(), SuffixDrafter()], enough=2)
    else:
        drafter = "cascade"
    seen = check_parity(drafter, half_right if name == "with a draft model" else None)
    assert all(seen[fate] for fate in ("all", "part", "none")), seen


def test_by_name_it_is_suffix_then_model():
    target = small_target(0)
    decoder = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.1), drafter="cascade")
    assert [part.name for part in decoder.drafter.drafters] == ["suffix", "model"]
    assert decoder.drafter.model is decoder.drafter.drafters[1].model
    alone = SpeculativeDecoder.from_models(target, drafter="cascade")
    assert alone.drafter.model is None and alone.drafter.deterministic


def mixed(target: TableModel) -> CascadeDrafter:
    return CascadeDrafter([SuffixDrafter(min_match=2, min_prob=0, growth=3), ModelDrafter(target.near(1, 0.7))])


def test_lossless_with_a_sampling_draft_model():
    check_lossless(mixed)


def test_lossless_with_lookups_only():
    check_lossless(CascadeDrafter([NgramDrafter(min_n=2), RecycleDrafter()], enough=2))


@pytest.mark.parametrize("verifier", ["auto", "token", "match"])
def test_a_sampled_row_does_not_depend_on_its_neighbours(verifier):
    """In a batch some rounds hold lookups only, some a neighbour's sampled draft; the row's text stays the same."""
    target = small_target(3)
    decoder = SpeculativeDecoder.from_models(target, half_right(target), verifier=verifier, temperature=0.7, top_p=1.0)
    cascade = CascadeDrafter([SuffixDrafter(min_match=2), ModelDrafter(decoder.draft_model)])
    kinds = set()
    for seed in range(4):
        alone = decoder.generate(PROMPTS[0], drafter=cascade, max_new_tokens=40, seed=seed)
        batch = decoder.generate([list(p) for p in PROMPTS], drafter=cascade, max_new_tokens=40, seed=seed)
        assert batch[0].token_ids == alone.token_ids
        kinds |= {bool(step.drafted) for step in alone.steps[1:]}
    assert True in kinds


def test_stateful_processors_get_deterministic_drafts():
    """Processing in order asks the cascade for its greedy form, draft model included."""
    target = small_target(2)
    cascade = CascadeDrafter([SuffixDrafter(), ModelDrafter(TableModel.random(3, 0))])
    assert [part.sample for part in cascade.greedy().drafters[1:]] == [False]
    assert cascade.drafters[1].sample
    seen = []

    def note(ids, scores):
        seen.append(ids.shape[1])
        return scores

    decoder = SpeculativeDecoder.from_models(target, half_right(target), drafter="cascade", temperature=0)
    result = decoder.generate(PROMPTS[1], max_new_tokens=20, logits_processor=[note])
    assert seen == list(range(len(PROMPTS[1]), len(PROMPTS[1]) + 20))
    assert len(result.token_ids) == 20
