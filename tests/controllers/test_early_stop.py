"""Stopping by the draft's confidence before the token is sampled: exact over all outcomes, and it does stop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from simulated_machine import Machine, flat, play

from decoder.clock import Seconds
from decoder.controllers import AutoLength, Experience
from decoder.drafters import ModelDrafter
from decoder.models.toy import TableModel
from decoder.testing import Case, assert_exact, enumerate_law
from decoder.types import Controller, Draft, SamplingParams, Step

TARGET = TableModel.random(3, 0)
NEAR, FAR = TARGET.near(1, 0.4), TableModel.random(3, 7)


class Counting(ModelDrafter):
    """Notes how many tokens each proposal held."""

    seen: list[list[int]] = []  # noqa: RUF012  shared by the copies on purpose

    def propose(self, contexts: Any, counts: Any) -> Draft:
        draft = super().propose(contexts, counts)
        self.seen.append(list(draft.counts))
        return draft


class ByLowLaw(ModelDrafter):
    """The known mistake: a token already sampled is dropped because its q is low."""

    def propose(self, contexts: Any, counts: Any) -> Draft:
        draft = super().propose(contexts, counts)
        assert draft.probs is not None
        chance = draft.probs.gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)  # [B, K]
        likely = (chance >= 0.4).long().cumprod(-1).sum(-1).tolist()
        kept = [min(count, n) for count, n in zip(draft.counts, likely, strict=True)]
        width = max(kept)
        return Draft(draft.tokens[:, :width], kept, draft.probs[:, :width], draft.finite)


@pytest.mark.parametrize("verifier", ["token", "block", "match"])
@pytest.mark.parametrize("draft", [NEAR, FAR], ids=["near", "far"])
@pytest.mark.parametrize("threshold", [0.45, 0.6])
def test_the_law_stays_exact(verifier: str, draft: TableModel, threshold: float) -> None:
    Counting.seen = []
    k, prompts = (2, ((0, 1),)) if verifier == "match" else (3, ((0, 1), (2, 2, 0)))  # match has the largest tree
    case = Case(TARGET, Counting(draft, stop_below=threshold), verifier, k=k, prompts=prompts)
    assert_exact(case, 1e-9)
    lengths = {count for counts in Counting.seen for count in counts}
    assert len(lengths) > 1  # some stopped before others, so the rule was at work


def test_dropping_a_sampled_token_is_caught() -> None:
    case = Case(TARGET, ByLowLaw(NEAR), "token", k=3)
    with pytest.raises(AssertionError, match="not lossless"):
        assert_exact(case, 1e-3)


def test_the_law_stays_exact_with_warping_and_eos() -> None:
    params = SamplingParams(temperature=0.7, top_p=0.8)
    drafter = ModelDrafter(NEAR, stop_below=0.7)
    assert_exact(Case(TARGET, drafter, "block", params, k=3, eos=frozenset({2})), 1e-6)


def test_greedy_drafts_stop_too() -> None:
    Counting.seen = []
    found = enumerate_law(Case(TARGET, Counting(FAR, stop_below=0.6), params=SamplingParams(temperature=0.0), k=3))
    assert found.leaves == 1
    assert any(max(counts) < 3 for counts in Counting.seen)
    assert_exact(Case(TARGET, ModelDrafter(FAR, stop_below=0.6), params=SamplingParams(temperature=0.0), k=3), 1e-9)


def test_a_row_that_stops_does_not_stop_the_others() -> None:
    sure = torch.tensor([9.0, 0.0, 0.0])
    table = torch.zeros(3, 3, 3, dtype=torch.float64)
    table[:, 0] = sure.double()  # after token 0 the draft is certain, after the others it has no idea
    drafter = ModelDrafter(TableModel(table), stop_below=0.6)
    run = drafter.start([[1, 0], [0, 1]], _Plain(), _First(), 100)
    draft = run.propose([[1, 0], [0, 1]], [3, 3])
    assert draft.counts == [3, 0] and draft.tokens.shape == (2, 3)
    assert draft.probs is not None and draft.probs.shape == (2, 3, 3)


class _Plain:
    greedy = False
    processors = ()

    def scores(self, logits: Any, contexts: Any, drafted: Any = None) -> Any:
        return logits

    def probs(self, scores: Any) -> Any:
        return torch.softmax(scores, -1)


class _First:
    """Draws the likeliest token."""

    coupled = False

    def draw(self, probs: Any, starts: Any, counts: Any) -> Any:
        return probs.argmax(-1)

    def accept(self, numerator: Any, denominator: Any, counts: Any) -> Any:
        return denominator <= numerator

    def select(self, rows: Any) -> None:
        pass


@pytest.mark.parametrize("value", [1.0, -0.1, float("nan")])
def test_thresholds_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"stop_below=.*\[0, 1\)"):
        ModelDrafter(NEAR, stop_below=value)


@pytest.mark.parametrize("value", ["0.5", None, True])
def test_thresholds_of_another_type_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="stop_below="):
        ModelDrafter(NEAR).stopping_below(value)


class _Priced:
    """The real controller, with seconds computed from what was drafted: its choices replay."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def next_length(self) -> int:
        return self._controller.next_length()

    def observe(self, step: Step) -> None:
        width = max(len(row.drafted) for row in step.rows)
        lap = None if step.draft_lap is None else Seconds(0.05 * width)
        wall_s = 1.0 + 0.05 * width
        self._controller.observe(Step(step.index, step.rows, wall_s, Seconds(1.0), lap, step.k))


@pytest.mark.parametrize(("verifier", "draft"), [("token", FAR), ("block", NEAR)], ids=["token-far", "block-near"])
def test_the_whole_controller_leaves_the_law_exact(verifier: str, draft: TableModel) -> None:
    """k="auto" itself, choosing from past rounds of the very run that is enumerated."""
    lengths: set[int] = set()

    def controller(_: int) -> Controller:
        experience = Experience()
        play(AutoLength(experience), Machine(flat, 0.05), 0.6, 40, seed=1)
        return _Noting(AutoLength(experience), lengths)

    assert_exact(Case(TARGET, ModelDrafter(draft), verifier, controller=controller, batch_rows=1, new_tokens=4), 1e-9)
    assert any(lengths)


class _Noting(_Priced):
    """Notes the lengths chosen."""

    def __init__(self, controller: Controller, lengths: set[int]) -> None:
        super().__init__(controller)
        self._lengths = lengths

    def next_length(self) -> int:
        k = super().next_length()
        self._lengths.add(k)
        return k
