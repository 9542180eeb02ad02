"""The timer charges every second to one phase; a profiled run is the ordinary run; forwards are tabled."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.measure import profiling
from decoder.measure.phases import PHASES, PhaseTimer, Wrapped, open_sessions
from decoder.models.toy import noisy_copy, toy_model
from decoder.types import Drafter
from measure.simulated import Clock

PROMPT = [3, 4, 5, 6, 7]


@pytest.fixture(scope="module")
def spec() -> SpeculativeDecoder:
    target = toy_model("llama", seed=1)
    return SpeculativeDecoder.from_models(target, noisy_copy(target, 0.2), temperature=0.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("decoder.measure.phases.time", clock)
    return clock


def test_inner_calls_are_charged_to_their_own_phase(clock: Clock) -> None:
    timer = PhaseTimer([torch.device("cpu")])
    timer.prefilling = False

    def spend(seconds: float) -> None:
        clock.now += seconds

    def forward() -> None:
        spend(2.0)
        timer.run("cache", spend, 3.0)
        spend(4.0)

    timer.begin()
    spend(1.0)
    timer.run("target forwards", forward)
    spend(10.0)
    timer.end()
    found = {name: seconds for name, seconds in timer.seconds.items() if seconds}
    assert found == {"target forwards": 6.0, "cache": 3.0, "host": 11.0}
    assert timer.calls["target forwards"] == timer.calls["cache"] == 1


def test_forwards_of_the_prompt_are_prefill_and_errors_are_charged_too(clock: Clock) -> None:
    timer = PhaseTimer([])

    def fail() -> None:
        clock.now += 5.0
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        timer.run("target forwards", fail)
    timer.end()
    assert timer.seconds["prefill"] == 5.0 and timer.seconds["host"] == 0.0


def test_a_wrapped_part_is_otherwise_itself(clock: Clock) -> None:
    inner = SimpleNamespace(greedy=True, probs=lambda x: x + 1)
    timer = PhaseTimer([])
    wrapped = Wrapped(inner, timer, {"probs": "warping"})
    assert wrapped.greedy and wrapped.probs(2) == 3
    assert timer.calls["warping"] == 1
    with pytest.raises(AttributeError):
        _ = wrapped.missing


def test_sessions_of_drafters_inside_drafters_are_found(clock: Clock) -> None:
    def session() -> Any:
        return SimpleNamespace(feed=lambda: None, commit=lambda: None, select=lambda: None)

    inner, outer = Drafter(), Drafter()
    inner.__dict__["held"] = session()
    outer.__dict__.update(own=session(), parts=[inner], other="text")
    timer = PhaseTimer([])
    timer.prefilling = False
    open_sessions(outer, timer)
    outer.__dict__["own"].feed()
    inner.__dict__["held"].feed()
    assert timer.calls["draft forwards"] == 2


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 3}, {"drafter": "ngram"}])
def test_a_profiled_run_is_the_ordinary_run(
    spec: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    seen = []
    inner = profiling._profiled
    monkeypatch.setattr(profiling, "_profiled", lambda *args: seen.append(inner(*args)) or seen[-1])
    found = spec.profile(PROMPT, k=3, widths=(1, 2), repeats=1, max_new_tokens=20, eos_token_id=None, **options)
    ordinary = spec.generate(PROMPT, k=3, max_new_tokens=20, eos_token_id=None, **options)
    ((timer, result),) = seen
    assert result.token_ids == ordinary.token_ids
    assert (found.tokens, found.iterations) == (20, ordinary.num_iterations)
    assert timer.calls["target forwards"] == ordinary.num_iterations
    assert timer.calls["verification"] == ordinary.num_iterations + 1
    if "drafter" in options:
        assert found.draft is None and timer.calls["draft forwards"] == 0
    else:
        assert timer.calls["draft forwards"] == ordinary.num_draft_tokens


def test_phases_sum_to_the_wall(spec: SpeculativeDecoder) -> None:
    found = spec.profile(PROMPT, k=3, widths=(1, 2, 4), repeats=1, max_new_tokens=12, eos_token_id=None)
    assert [phase.name for phase in found.phases] == list(PHASES)
    assert sum(phase.seconds for phase in found.phases) == pytest.approx(found.wall_s)
    for name in ("prefill", "draft forwards", "target forwards", "cache", "verification", "host"):
        assert found.seconds(name) > 0
    assert found.draft is not None and list(found.target.table) == list(found.draft.table) == [1, 2, 4]
    assert found.cost_ratio == pytest.approx(found.draft.seconds(1) / found.target.seconds(1))
    json.dumps(found.to_dict(), allow_nan=False)
    text = str(found)
    assert "target forwards" in text and "ms per call" in text and "of a target step" in text


def test_nothing_stays_wrapped(spec: SpeculativeDecoder) -> None:
    before = dict(vars(spec.drafter))
    spec.profile(PROMPT, k=2, widths=(1,), repeats=1, max_new_tokens=6)
    assert vars(spec.drafter) == before
    assert not isinstance(spec.drafter, Wrapped)


def test_automatic_length_can_be_profiled(spec: SpeculativeDecoder) -> None:
    found = spec.profile(PROMPT, k="auto", widths=(1, 2), repeats=1, max_new_tokens=12, eos_token_id=None)
    assert found.tokens == 12


def test_bad_input(spec: SpeculativeDecoder) -> None:
    with pytest.raises(ValueError, match="one prompt, not 2"):
        spec.profile([[1, 2], [3, 4]])
    with pytest.raises(ValueError, match="return_cache="):
        spec.profile(PROMPT, return_cache=True)
    with pytest.raises((ValueError, TypeError), match="k="):
        spec.profile(PROMPT, k=-1)
    with pytest.raises(TypeError, match="unknown keyword"):
        spec.profile(PROMPT, temprature=1.0)


def test_advice_on_real_models(spec: SpeculativeDecoder) -> None:
    advice = spec.advise([PROMPT, [9, 8, 7]], repeats=1, max_new_tokens=12, eos_token_id=None)
    assert [each.drafter for each in advice.candidates] == ["model", "ngram"]
    assert advice.measured_speedup > 0 and advice.predicted_speedup > 0
    again = spec.generate(PROMPT, drafter=advice.drafter, k=advice.k, max_new_tokens=4)
    assert again.token_ids == spec.generate_baseline(PROMPT, max_new_tokens=4).token_ids
    with pytest.raises(TypeError, match="drafters"):
        spec.advise([PROMPT], drafters="ngram")
