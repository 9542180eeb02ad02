"""Advice on simulated time: the truth is known, so prediction, measurement, choice and words can be checked."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from decoder.measure.advice import Advice
from decoder.measure.advising import PROBE_LENGTH, advice_on
from measure.simulated import Clock, Decoder, Model, Recipe, install

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return install(monkeypatch)


def ask(clock: Clock, seconds: Callable[[int], float], *recipes: Recipe, overhead_s: float = 0.0) -> Advice:
    model = Model(clock, seconds)
    decoder = Decoder(model, overhead_s=overhead_s)
    return advice_on(decoder, model, {recipe.name: recipe for recipe in recipes}, PROMPTS, {}, repeats=1)


def theory(alpha: float, k: int, c: float, verify: float = 1.0) -> float:
    return (1 - alpha ** (k + 1)) / ((1 - alpha) * (k * c + verify))


def test_a_good_draft_is_advised_with_the_best_length(clock: Clock) -> None:
    advice = ask(clock, lambda m: 0.1, Recipe("model", 0.8, 0.01))
    truth = {k: theory(0.8, k, 0.1) for k in range(1, PROBE_LENGTH + 1)}
    assert advice.speculate and advice.drafter == "model"
    assert truth[advice.k] > 0.97 * max(truth.values())
    assert advice.predicted_speedup == pytest.approx(truth[advice.k], rel=0.08)
    assert advice.measured_speedup == pytest.approx(advice.predicted_speedup, rel=0.08)
    assert advice.best.cost_ratio == pytest.approx(0.1) and advice.best.alpha == pytest.approx(0.8, abs=0.05)
    assert str(advice).startswith(f"Yes: speculate with drafter='model' and k={advice.k}.")


def test_an_expensive_draft_is_refused_for_its_cost(clock: Clock) -> None:
    advice = ask(clock, lambda m: 0.1, Recipe("model", 0.5, 0.09))
    assert (advice.speculate, advice.drafter, advice.k) == (False, None, 0)
    assert "one draft step costs 0.90 of a plain step" in advice.reasons[0]
    assert str(advice).startswith("No: plain decoding (10.0 tokens/s)")
    assert advice.measured_speedup < 1


def test_a_hopeless_draft_is_refused_for_its_acceptance(clock: Clock) -> None:
    advice = ask(clock, lambda m: 0.1, Recipe("model", 0.02, 0.02))
    assert not advice.speculate
    assert "% of the tested drafts were accepted" in advice.reasons[0]


def test_a_cliff_in_verification_is_named(clock: Clock) -> None:
    advice = ask(clock, lambda m: 0.1 if m == 1 else 0.3, Recipe("model", 0.6, 0.001))
    assert not advice.speculate
    assert f"checking {advice.best.k + 1} tokens at once costs 3.00 times one token" in advice.reasons[0]


def test_the_loop_s_own_time_is_named_where_it_weighs_most(clock: Clock) -> None:
    model = Model(clock, lambda m: 0.001)
    decoder = Decoder(model)
    plain = decoder.generate_baseline

    class Heavy(Decoder):
        def generate_baseline(self, prompt: list[int], **options: object) -> object:
            return plain(prompt)

    heavy = Heavy(model, overhead_s=0.02)
    advice = advice_on(heavy, model, {"model": Recipe("model", 0.7, 0.0001)}, PROMPTS, {}, repeats=1)
    assert not advice.speculate and "loop's own work" in advice.reasons[0]


def test_the_better_of_two_is_chosen_and_silence_is_explained(clock: Clock) -> None:
    silent = Recipe("ngram", 0.9, 0.0, proposes=0.0)
    advice = ask(clock, lambda m: 0.1, silent, Recipe("model", 0.8, 0.01))
    assert advice.drafter == "model"
    assert advice.candidates[0].alpha is None
    assert "found nothing to propose" in advice.reasons[0]
    assert len(advice.candidates) == 2


def test_a_rare_lookup_counts_its_empty_rounds(clock: Clock) -> None:
    """It proposes in a third of the rounds: the prediction must hold there too."""
    advice = ask(clock, lambda m: 0.1, Recipe("ngram", 0.7, 0.0, proposes=1 / 3))
    assert advice.best.without_proposal == pytest.approx(2 / 3, abs=0.08)
    assert advice.measured_speedup == pytest.approx(advice.predicted_speedup, rel=0.08)
    assert advice.speculate


def test_a_gain_below_the_threshold_is_no_gain(clock: Clock) -> None:
    advice = ask(clock, lambda m: 0.1 if m == 1 else 0.165, Recipe("ngram", 0.7, 0.0))
    assert advice.speculate
    advice = ask(clock, lambda m: 0.1 if m == 1 else 0.33, Recipe("ngram", 0.7, 0.0))
    assert not advice.speculate


def test_a_measurement_far_from_the_prediction_is_pointed_out(clock: Clock) -> None:
    """A decoder that is slower in whole runs than its parts say."""
    model = Model(clock, lambda m: 0.1)

    class Busy(Decoder):
        def generate(self, prompt: list[int], **options: object) -> object:
            result = super().generate(prompt, **options)
            clock.now += result.wall_s
            return result

    recipe = Recipe("model", 0.9, 0.001)
    assert "of the predicted one" in str(advice_on(Busy(model), model, {"model": recipe}, PROMPTS, {}, repeats=1))
    assert "of the predicted one" not in str(
        advice_on(Decoder(model), model, {"model": recipe}, PROMPTS, {}, repeats=1)
    )


def test_advice_is_plain_data(clock: Clock) -> None:
    record = json.loads(json.dumps(ask(clock, lambda m: 0.1, Recipe("model", 0.8, 0.01)).to_dict(), allow_nan=False))
    assert record["speculate"] is True and record["candidates"][0]["predicted_by_k"]["1"] > 1


def test_nothing_to_ask_about(clock: Clock) -> None:
    model = Model(clock, lambda m: 0.1)
    with pytest.raises(ValueError, match="drafters is empty"):
        advice_on(Decoder(model), model, {}, PROMPTS, {})
    with pytest.raises(ValueError, match="prompts end at once"):
        advice_on(Decoder(model, tokens=1), model, {"model": Recipe("model", 0.5, 0.1)}, PROMPTS, {})
