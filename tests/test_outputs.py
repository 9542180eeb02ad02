"""Scores, logits and log-probabilities, against `generate` and against one forward without a cache."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessor

from decoder import SpeculativeDecoder
from decoder.models.toy import noisy_copy, toy_model

PROMPT = [7, 33, 12, 50]
RAGGED = [torch.tensor(PROMPT), torch.tensor([11, 2])]


@pytest.fixture(scope="module")
def model():
    return toy_model("llama", seed=5)


@pytest.fixture(scope="module")
def spec(model):
    return SpeculativeDecoder.from_models(model, noisy_copy(model, 0.05), temperature=0)


def uncached(model, result) -> torch.Tensor:
    """Logits [n, V] before each new token, from one forward over the whole text."""
    ids = torch.tensor([[*result.prompt_token_ids, *result.token_ids]])
    with torch.no_grad():
        return model(ids).logits[0, len(result.prompt_token_ids) - 1 : -1]


def close(found, wanted) -> None:
    torch.testing.assert_close(torch.stack(list(found)), torch.stack(list(wanted)), atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2}], ids=str)
def test_greedy_outputs_equal_generates(model, spec, options) -> None:
    asked = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True, "max_new_tokens": 14}
    ids = torch.tensor([PROMPT])
    plain = model.generate(ids, do_sample=False, pad_token_id=0, **asked, **options)
    for ours in (
        spec.generate(ids, **asked, **options),
        model.generate(ids, do_sample=False, pad_token_id=0, custom_generate=spec, **asked, **options),
    ):
        assert torch.equal(ours.sequences, plain.sequences) and len(ours.scores) == len(plain.scores) == 14
        close(ours.scores, plain.scores)
        close(ours.logits, plain.logits)
        assert ours.results[0].num_accepted_tokens > 0, "taken from rounds that accept"
        transitions = model.compute_transition_scores(ours.sequences, ours.scores, normalize_logits=True)
        assert transitions.shape == (1, 14)


def test_sampled_scores_are_those_that_were_sampled_from(model, spec) -> None:
    from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    results = spec.generate(
        RAGGED, max_new_tokens=12, temperature=0.7, top_k=20, top_p=0.8, seed=2, output_scores=True, eos_token_id=[3]
    )
    for result in results:
        logits = uncached(model, result)
        for warp in (TemperatureLogitsWarper(0.7), TopKLogitsWarper(20), TopPLogitsWarper(0.8)):
            logits = warp(None, logits)
        found = torch.stack(result.scores)
        assert torch.equal(torch.isinf(found), torch.isinf(logits))
        kept = ~torch.isinf(logits)
        torch.testing.assert_close(found[kept], logits[kept], atol=5e-5, rtol=1e-4)
        assert result.logits is None and result.logprobs is None


@pytest.mark.parametrize("drafter", ["model", "ngram", "none"])
def test_logprobs_equal_an_uncached_forward(model, spec, drafter: str) -> None:
    results = spec.generate(
        RAGGED, max_new_tokens=15, temperature=1.1, seed=4, logprobs=3, drafter=drafter, eos_token_id=[3, 40]
    )
    for result in results:
        wanted = torch.log_softmax(uncached(model, result), -1)
        assert [each.token_id for each in result.logprobs] == list(result.token_ids)
        for each, row in zip(result.logprobs, wanted, strict=True):
            assert each.logprob == pytest.approx(float(row[each.token_id]), abs=5e-5)
            values, ids = row.topk(3)
            assert [i for i, _ in each.top] == ids.tolist()
            assert [v for _, v in each.top] == pytest.approx(values.tolist(), abs=5e-5)
    assert spec.generate(RAGGED[0], max_new_tokens=2, logprobs=0).logprobs[0].top == ()
    assert results[0].to_dict()["logprobs"][0]["token_id"] == results[0].token_ids[0]


def test_outputs_of_a_stream_and_of_processors_with_state(model, tokenizer, target, draft) -> None:
    class Counting(LogitsProcessor):
        calls = 0

        def __call__(self, ids, scores):
            self.calls += 1
            return scores - 0.01 * self.calls

    own = SpeculativeDecoder.from_models(target, draft, tokenizer=tokenizer, temperature=0)
    stream = own.stream("the cat", max_new_tokens=9, logprobs=1, eos_token_id=None)
    "".join(stream)
    assert len(stream.result.logprobs) == 9
    counted = own.generate(
        "the cat", max_new_tokens=9, logits_processor=[Counting()], output_scores=True, output_logits=True
    )
    for i, (scores, logits) in enumerate(zip(counted.scores, counted.logits, strict=True)):
        torch.testing.assert_close(scores, logits - 0.01 * (i + 1), atol=1e-5, rtol=1e-5)


def test_frequency_and_presence_penalties(model, spec) -> None:
    ids = torch.tensor([PROMPT * 2])
    for options in ({"frequency_penalty": 1.5}, {"presence_penalty": 2.0}, {"frequency_penalty": -0.5}):
        found = spec.generate(ids, max_new_tokens=14, output_scores=True, output_logits=True, **options)
        written: list[int] = []
        for token, scores, logits in zip(found.token_ids, found.scores, found.logits, strict=True):
            wanted = logits.clone()
            for each in set(written):
                wanted[each] -= options.get("frequency_penalty", 0) * written.count(each)
                wanted[each] -= options.get("presence_penalty", 0)
            torch.testing.assert_close(scores, wanted, atol=1e-5, rtol=1e-5)
            assert token == int(wanted.argmax())
            written.append(token)


def test_max_time_ends_a_text(spec) -> None:
    result = spec.generate(torch.tensor(PROMPT), max_new_tokens=100, max_time=0.0)
    assert len(result.token_ids) == 1 and result.finish_reason == "stop"
    assert len(spec.generate(torch.tensor(PROMPT), max_new_tokens=6, max_time=60.0).token_ids) == 6
