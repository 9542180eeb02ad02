"""Forward costs on simulated time: the table is the truth, the line is least squares, the session is the loop's."""

from __future__ import annotations

import numpy
import pytest
import torch

from decoder.measure.forwards import WIDTHS, cost_of, forward_cost, line, round_cost
from decoder.models.hf import CausalModel
from decoder.models.toy import toy_model
from measure.simulated import Clock, Model, install


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return install(monkeypatch)


def test_a_straight_line_is_found_exactly(clock: Clock) -> None:
    cost = forward_cost(Model(clock, lambda m: 0.04 + 0.002 * m), [1, 2, 3], repeats=4)
    assert tuple(cost.table) == WIDTHS
    assert (cost.fixed_s, cost.per_token_s) == pytest.approx((0.04, 0.002))
    assert cost.worst_residual == pytest.approx(0.0, abs=1e-9)
    assert cost.seconds(5) == pytest.approx(0.05) and cost.seconds(20) == pytest.approx(0.08)
    assert cost.table[4].count == 4 and cost.context == 3


def test_a_cliff_shows_in_the_table_and_in_the_residual(clock: Clock) -> None:
    cost = forward_cost(Model(clock, lambda m: 0.01 if m == 1 else 0.03), [1], widths=(1, 2, 4), repeats=1)
    assert (cost.seconds(1), cost.seconds(2), cost.seconds(3)) == pytest.approx((0.01, 0.03, 0.03))
    assert cost.worst_residual > 0.1


def test_widths_take_turns_behind_the_prompt(clock: Clock) -> None:
    model = Model(clock, lambda m: 1.0)
    forward_cost(model, [5, 6], widths=(1, 3), repeats=2)
    assert model.fed == [(2, [0])] + [(1, [2]), (3, [2])] * 3  # prefill, a warm-up turn, two that count


def test_a_round_s_forwards_come_in_its_order(clock: Clock) -> None:
    """A draft that is dear right after the target, as where the target sweeps the caches, shows what a round pays."""
    order: list[str] = []

    def target_s(m: int) -> float:
        order.append(f"target {m}")
        return 1.0 + 0.1 * m

    def draft_s(m: int) -> float:
        order.append(f"draft {m}")
        return 0.5 if order[-2].startswith("target") else 0.2

    target, draft = Model(clock, target_s), Model(clock, draft_s)
    cost = round_cost(target, draft, [5, 6], 3, repeats=2)
    assert order == ["target 2", "draft 2", *["target 1", "draft 1", "draft 1", "draft 1", "target 4"] * 3]
    assert (cost.k, cost.plain_s, cost.verify_s) == pytest.approx((3, 1.1, 1.4))
    assert cost.draft_s == pytest.approx((0.5 + 0.2 + 0.2) / 3)
    assert all(starts == [2] for _, starts in target.fed[1:] + draft.fed[1:])  # always behind the prompt
    with pytest.raises(ValueError, match=r"repeats=0 must be >= 1"):
        round_cost(target, draft, [5, 6], 3, repeats=0)


def test_the_line_is_numpy_s() -> None:
    points = {1: 3.0, 2: 2.5, 4: 6.0, 9: 11.0}
    slope, intercept = numpy.polyfit(list(points), list(points.values()), 1)
    assert line(points) == pytest.approx((intercept, slope))
    assert line({4: 2.0}) == (2.0, 0.0)
    assert cost_of(0, {1: [1.0, 9.0, 2.0]}).table[1].median == 2.0


def test_a_real_session_is_left_as_a_run_would_leave_it() -> None:
    """Widths beyond the context are left out; the model answers as before."""
    model = toy_model("llama", seed=1, max_position_embeddings=12)
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    with torch.inference_mode():
        before = model(ids).logits
    cost = forward_cost(CausalModel(model, "target"), ids[0].tolist(), widths=(1, 4, 7, 8), repeats=1)
    assert list(cost.table) == [1, 4, 7]
    assert all(each.median > 0 for each in cost.table.values())
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, before)


def test_no_room_and_no_repeats_are_errors(clock: Clock) -> None:
    model = Model(clock, lambda m: 1.0)
    model.context_length = 3
    with pytest.raises(ValueError, match="leave no room behind a prompt of 3"):
        forward_cost(model, [1, 2, 3])
    with pytest.raises(ValueError, match="repeats=0"):
        forward_cost(model, [1], repeats=0)
