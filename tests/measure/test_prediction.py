"""Theory beside measurement: the equation at its corners and against a simulation."""

from __future__ import annotations

import random

import pytest

from decoder import SpeculativeDecoder
from decoder.measure.comparison import Comparison
from decoder.measure.methods import Plan, speculative
from decoder.measure.prediction import paper_speedup, predict
from decoder.models.toy import noisy_copy, toy_model
from decoder.types import SamplingParams

PROMPTS = [[3, 4, 5, 6, 7], [9, 8, 7]]


def test_the_equation_at_its_corners() -> None:
    assert paper_speedup(0.0, 4, 0.1, 1.0) == pytest.approx(1 / 1.4)
    assert paper_speedup(1.0, 4, 0.0, 1.0) == pytest.approx(5.0)
    assert paper_speedup(0.999999, 4, 0.0, 1.0) == pytest.approx(5.0, rel=1e-4)
    assert paper_speedup(0.8, 4, 0.05, 1.0) == pytest.approx(3.3616 / 1.2, rel=1e-6)


def test_the_equation_is_what_independent_rounds_do() -> None:
    source = random.Random(0)
    alpha, k, c, verify = 0.7, 3, 0.2, 1.3
    tokens = 0
    for _ in range(40_000):
        accepted = 0
        while accepted < k and source.random() < alpha:
            accepted += 1
        tokens += accepted + 1
    assert paper_speedup(alpha, k, c, verify) == pytest.approx(tokens / (40_000 * (k * c + verify)), rel=0.01)


def test_predictions_stand_beside_what_was_measured() -> None:
    target = toy_model("llama", seed=1)
    spec = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.1))
    plan = Plan(16, SamplingParams(temperature=0.0), repeats=1)
    methods = [speculative(spec, plan, 2), speculative(spec, plan, "auto")]
    report = Comparison(spec, PROMPTS, plan, ["baseline", *methods]).run()
    name = "speculative model k=2"
    found = predict(spec, PROMPTS, report, {name: 2}, repeats=1)
    (row,) = found.rows
    assert row.alpha == report.summary(name).alpha
    seconds = {"baseline": 0.0, name: 0.0}  # behind the prefill, for the 15 tokens behind the first one
    for sample in report.samples:
        if sample.method in seconds and sample.counts is not None:
            assert sample.counts.emitted_after_prefill == 15
            seconds[sample.method] += sample.wall_s - sample.counts.prefill_s
    assert row.measured == pytest.approx(seconds["baseline"] / seconds[name])
    assert row.cost_ratio > 0 and row.verify_ratio > 0
    assert row.predicted == pytest.approx(paper_speedup(row.alpha, 2, row.cost_ratio, row.verify_ratio))
    assert row.reached == pytest.approx(row.measured / row.predicted)
    assert "reached %" in found.markdown() and "m=16" in found.markdown()
    with pytest.raises(ValueError, match="run that method too"):
        without = Comparison(spec, PROMPTS, plan, ["hf", methods[0]]).run()
        predict(spec, PROMPTS, without, {name: 2}, repeats=1)


def test_no_draft_no_prediction() -> None:
    spec, plan = SpeculativeDecoder.from_models(toy_model("llama")), Plan(2, SamplingParams(temperature=0.0), repeats=1)
    with pytest.raises(ValueError, match="needs a draft model"):
        predict(spec, PROMPTS, Comparison(spec, PROMPTS, plan, ["baseline"]).run(), {})
