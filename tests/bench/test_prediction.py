"""Theory beside measurement: the equation at its corners and against a simulation, the limit set by memory."""

from __future__ import annotations

import random

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.bench.bandwidth import copy_bandwidth, tokens_per_second_limit, weight_bytes
from decoder.bench.measure import compare
from decoder.bench.methods import Plan
from decoder.bench.prediction import paper_speedup, predict
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
    plan = Plan(16, SamplingParams(temperature=0.0))
    report = compare(spec, PROMPTS, plan, methods=["baseline"], drafts=[(None, 2), (None, "auto")], repeats=1)
    name = "speculative model k=2"
    found = predict(spec, PROMPTS, report.summaries, report.samples, {name: 2}, repeats=1)
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
        without = compare(spec, PROMPTS, plan, methods=["hf"], drafts=[(None, 2)], repeats=1)
        predict(spec, PROMPTS, without.summaries, without.samples, {name: 2}, repeats=1)


def test_no_draft_no_prediction() -> None:
    with pytest.raises(ValueError, match="needs a draft model"):
        predict(SpeculativeDecoder.from_models(toy_model("llama")), PROMPTS, [], [], {})


@pytest.mark.parametrize("tied", [True, False])
def test_weights_read_in_a_forward(tied: bool) -> None:
    model = toy_model("llama", tie_word_embeddings=tied)
    table = model.get_input_embeddings().weight.numel() * 4
    everything = sum(p.numel() * p.element_size() for p in model.parameters())
    assert weight_bytes(model) == (everything if tied else everything - table)
    assert tokens_per_second_limit(model, 10.0 * weight_bytes(model)) == pytest.approx(10.0)


def test_a_copy_has_a_bandwidth() -> None:
    assert 1e6 < copy_bandwidth(torch.device("cpu"), 1 << 20, repeats=3) < 1e13
