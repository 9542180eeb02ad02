"""One setting for each row of a batch: each text is the one its prompt and settings give alone."""

from __future__ import annotations

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.models.toy import noisy_copy, toy_model

PROMPTS = [torch.tensor(ids) for ids in ([7, 33, 12, 50], [11], [4, 19, 44, 3, 9, 9, 2])]
ROWS = [
    {"max_new_tokens": 9, "temperature": 0.0},
    {"temperature": 0.9, "top_p": 0.8, "seed": 5, "repetition_penalty": 1.4},
    {"temperature": 1.3, "top_k": 7, "seed": 8, "eos_token_id": [3, 20, 31]},
]


@pytest.fixture(scope="module")
def spec():
    model = toy_model("llama", seed=5)
    return SpeculativeDecoder.from_models(model, noisy_copy(model, 0.05))


@pytest.mark.parametrize("options", [{"k": 4}, {"k": 3, "sampling": "gumbel"}, {"k": 3, "drafter": "ngram"}], ids=str)
def test_a_row_writes_what_it_writes_alone(spec, options) -> None:
    together = spec.generate(PROMPTS, max_new_tokens=16, per_row=ROWS, **options)
    for prompt, own, result in zip(PROMPTS, ROWS, together, strict=True):
        alone = spec.generate(prompt, **{"max_new_tokens": 16, **own}, **options)
        assert result.token_ids == alone.token_ids and result.finish_reason == alone.finish_reason
    assert [len(result.token_ids) for result in together][:2] == [9, 16]
    assert any(result.num_accepted_tokens for result in together)


def test_a_greedy_row_beside_sampling_ones_is_greedy(spec, greedy) -> None:
    first = spec.generate(PROMPTS, max_new_tokens=14, per_row=[{"temperature": 0}, {}, {}])[0]
    assert list(first.token_ids) == greedy(spec.target, PROMPTS[0], 14, eos_token_id=None)


def test_stops_and_processors_are_each_rows_own(target, draft, tokenizer) -> None:
    spec = SpeculativeDecoder.from_models(target, draft, tokenizer=tokenizer, temperature=0)
    free = spec.generate(["the cat", "the cat"], max_new_tokens=20, eos_token_id=None)[0]
    stop = free.text[3:5]
    seen: dict[int, list[int]] = {0: [], 1: []}

    def rule(row: int):
        return lambda ids, scores: bool(seen[row].append(ids.shape[1]))

    own = [{"stop_strings": stop, "stopping_criteria": [rule(0)]}, {"stopping_criteria": [rule(1)]}]
    first, second = spec.generate(["the cat", "the cat"], max_new_tokens=20, eos_token_id=None, per_row=own)
    assert first.text.endswith(stop) and first.finish_reason == "stop" and second.text == free.text
    assert len(seen[0]) == len(first.token_ids) and len(seen[1]) == 20


def test_what_is_not_a_rows_own_is_refused_by_name(spec) -> None:
    for own, message in (
        ([{"k": 3}] * 3, r"unknown keyword 'k'"),
        ([{"drafter": "ngram"}] * 3, r"per_row\[0\]: generate\(\) got an unknown keyword 'drafter'"),
        ([{"top_p": 0}, {}, {}], r"top_p=0 must lie"),
        ([{}], r"per_row holds 1 settings for 3 prompts"),
        ({"temperature": 1}, r"per_row=.* must be a list of dicts"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            spec.generate(PROMPTS, max_new_tokens=4, per_row=own)
