"""k="auto" through the public API on toy models: same greedy text, right bookkeeping, state kept by the decoder."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.controllers import AutoLength
from decoder.controllers import auto as auto_module
from decoder.drafters import LayerSkipDrafter, ModelDrafter
from decoder.models.toy import noisy_copy, toy_model

PROMPTS = [[3, 5, 7, 11, 13], [4, 6, 9], [8, 8, 10, 12, 14, 15, 16]]


@pytest.fixture
def spec() -> SpeculativeDecoder:
    target = toy_model("llama", 0)
    return SpeculativeDecoder.from_models(target, noisy_copy(target, 0.05), temperature=0.0)


@pytest.fixture
def always_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions without timing: the ledger affords everything and every length seems to pay."""
    monkeypatch.setattr("decoder.controllers.auto.Ledger.affords", lambda *_, **__: True)
    monkeypatch.setattr(AutoLength, "_affords", lambda *_: True)
    monkeypatch.setattr(auto_module, "GAIN", 0.0)


def test_greedy_text_is_the_baseline_s(spec: SpeculativeDecoder) -> None:
    for _ in range(3):
        for prompt in PROMPTS:
            plain = spec.generate_baseline(prompt, max_new_tokens=40, eos_token_id=None)
            auto = spec.generate(prompt, k="auto", max_new_tokens=40, eos_token_id=None)
            assert auto.token_ids == plain.token_ids


@pytest.mark.usefixtures("always_drafts")
def test_greedy_text_is_the_baseline_s_while_drafting(spec: SpeculativeDecoder) -> None:
    """Every switch between plain and drafting rounds, in a ragged batch, with the prompt read late by the draft."""
    plain = spec.generate_baseline(PROMPTS, max_new_tokens=60, eos_token_id=None)
    auto = spec.generate(PROMPTS, k="auto", max_new_tokens=60, eos_token_id=None)
    assert [each.token_ids for each in auto] == [each.token_ids for each in plain]
    rounds = auto[0].steps
    assert not rounds[1].drafted and not rounds[2].drafted and rounds[3].drafted


def test_the_draft_reads_the_prompt_with_its_first_proposal(spec: SpeculativeDecoder) -> None:
    forwards: list[int] = []
    hook = spec.draft.register_forward_pre_hook(lambda _, args, kwargs: forwards.append(1), with_kwargs=True)
    spec.generate(PROMPTS[0], k="auto", max_new_tokens=2, eos_token_id=None)
    assert not forwards  # two tokens: the prefill and one plain round
    spec.generate(PROMPTS[0], k=1, max_new_tokens=2, eos_token_id=None)
    assert forwards
    hook.remove()


def test_a_first_reading_too_dear_for_the_text_to_come_is_not_risked(
    spec: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafters that read the prompt are known as such by the controller; a lookup is asked whatever reading costs."""
    monkeypatch.setattr(auto_module, "_READING_GUESS", 1e9)
    monkeypatch.setattr(auto_module, "GAIN", 0.0)
    monkeypatch.setattr("decoder.controllers.auto.Ledger.affords", lambda *_, **__: True)
    for drafter, reads in [("model", True), (LayerSkipDrafter([1]), True), ("cascade", True), ("ngram", False)]:
        result = spec.generate(PROMPTS[0], k="auto", drafter=drafter, max_new_tokens=20, eos_token_id=None)
        assert (result.draft_s == 0.0) == reads, drafter
    shared = LayerSkipDrafter(1)  # a prefix of the layers shares the target's cache
    assert spec.generate(PROMPTS[0], k="auto", drafter=shared, max_new_tokens=20, eos_token_id=None).draft_s > 0.0


@pytest.mark.usefixtures("always_drafts")
def test_the_second_call_knows_the_yardstick(spec: SpeculativeDecoder) -> None:
    spec.generate(PROMPTS[0], k="auto", max_new_tokens=20, eos_token_id=None)
    second = spec.generate(PROMPTS[0], k="auto", max_new_tokens=20, eos_token_id=None)
    assert any(round_.drafted for round_ in second.steps[1:3])  # a fresh decoder's first two are plain


@pytest.mark.parametrize("drafter", ["ngram", "none", "model"])
def test_every_drafter_goes_with_auto(spec: SpeculativeDecoder, drafter: str) -> None:
    plain = spec.generate_baseline(PROMPTS[1], max_new_tokens=50, eos_token_id=None)
    for _ in range(2):
        auto = spec.generate(PROMPTS[1], k="auto", drafter=drafter, max_new_tokens=50, eos_token_id=None)
        assert auto.token_ids == plain.token_ids
    assert auto.prefill_s + auto.draft_s + auto.target_s + auto.overhead_s == pytest.approx(auto.wall_s)


def test_stream_takes_auto_and_stop_below() -> None:
    target = toy_model("llama", 0)
    spec = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.05), temperature=0.0)
    assert isinstance(spec.drafter, ModelDrafter)
    unsure = spec.drafter.stopping_below(0.5)
    plain = spec.generate_baseline(PROMPTS, max_new_tokens=40, eos_token_id=None)
    for k in (4, "auto"):
        stopped = spec.generate(PROMPTS, k=k, drafter=unsure, max_new_tokens=40, eos_token_id=None)
        assert [each.token_ids for each in stopped] == [each.token_ids for each in plain]
    with pytest.raises(ValueError, match="needs a tokenizer"):
        spec.stream(PROMPTS[0], k="auto")


@pytest.mark.parametrize("k", ["fast", -1, 2.5, None, True])
def test_other_lengths_are_refused_before_anything_runs(spec: SpeculativeDecoder, k: Any) -> None:
    spec.target.forward = None  # would fail loudly
    for call in (spec.generate, spec.stream):
        with pytest.raises((TypeError, ValueError), match="k="):
            call(PROMPTS[0], k=k)


def test_conversations_continue_with_auto(spec: SpeculativeDecoder) -> None:
    """A draft that was never asked has an empty cache to hand on; the next turn reads what it lacks."""
    first = spec.generate(PROMPTS[0], k="auto", max_new_tokens=5, eos_token_id=None, return_cache=True)
    prompt = [*first.prompt_token_ids, *first.token_ids, 20, 21]
    plain = spec.generate_baseline(prompt, max_new_tokens=30, eos_token_id=None)
    for k in ("auto", 4):
        again = spec.generate(prompt, k=k, max_new_tokens=30, eos_token_id=None, cache=first.cache)
        assert again.token_ids == plain.token_ids


def test_threads_share_a_decoder(spec: SpeculativeDecoder) -> None:
    plain = [spec.generate_baseline(prompt, max_new_tokens=30, eos_token_id=None).token_ids for prompt in PROMPTS]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        found[number] = spec.generate(PROMPTS[number], k="auto", max_new_tokens=30, eos_token_id=None).token_ids

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(len(PROMPTS))] == plain


def test_the_controller_sees_what_it_needs(spec: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Length and room of every row, and laps that are already measured when the round is observed."""
    seen = []
    real = AutoLength.observe
    monkeypatch.setattr(AutoLength, "observe", lambda self, step: (seen.append(step), real(self, step))[1])
    spec.generate(PROMPTS[0], k="auto", max_new_tokens=20, eos_token_id=None)
    length = len(PROMPTS[0])
    for step in seen:
        length += len(step.rows[0].emitted)
        assert step.rows[0].length == length
        assert step.rows[0].room == len(PROMPTS[0]) + 20 - length
        assert step.wall_s >= step.target_s + (0.0 if step.is_prefill else step.draft_s) > 0
    assert torch.is_inference_mode_enabled() is False
