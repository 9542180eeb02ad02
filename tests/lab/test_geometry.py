"""Synthetic pairs: the target says its record at every precision, the draft agrees as often as dialled."""

from __future__ import annotations

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.models.quantize import quantized_copy
from lab.geometry import GEOMETRIES, follow, partly_agreeing, shape, successors, synthetic_pair

NEW = 60


def test_the_record_is_one_cycle_through_all_tokens() -> None:
    record = successors(97, seed=3)
    assert sorted(follow(record, 5, 97)) == list(range(97))
    assert follow(record, 5, 97)[-1] == 5
    assert not torch.equal(record, successors(97, seed=4))


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.9, 1.0])
def test_the_draft_s_table_agrees_as_often_as_dialled(acceptance: float) -> None:
    record = successors(20_000, seed=0)
    table = partly_agreeing(record, acceptance, seed=1)
    assert float((table == record).double().mean()) == pytest.approx(acceptance, abs=0.02)
    assert len(set(table.tolist())) == 20_000  # one head row for each token


def test_the_share_holds_in_short_runs_too() -> None:
    """Else a benchmark of 64 tokens would measure its luck."""
    record = successors(5_000, seed=0)
    agrees = partly_agreeing(record, 0.71, seed=1) == record
    along = torch.tensor([0, *follow(record, 0, len(record) - 1)])
    runs = agrees[along].double().unfold(0, 64, 1).mean(-1)
    assert runs.min() > 0.60 and runs.max() < 0.82  # drawn freely: 0.53 to 0.89
    stretches = agrees[along].reshape(-1, 25)
    assert len({tuple(each) for each in stretches.tolist()}) > 150  # and not one pattern over and over


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_text_follows_the_record_whatever_the_precision(family: str, dtype: torch.dtype) -> None:
    pair = synthetic_pair(f"small-{family}:smaller-{family}", 0.7, dtype=dtype)
    spec = SpeculativeDecoder.from_models(pair.target, pair.draft)
    for temperature in (0.0, 0.8):
        prompt = pair.prompts(1, 10)[0]
        result = spec.generate(prompt, k=4, temperature=temperature, max_new_tokens=NEW, eos_token_id=None, seed=0)
        assert list(result.token_ids) == follow(pair.record, prompt[-1], NEW)


@pytest.mark.parametrize("acceptance", [0.3, 0.8])
def test_acceptance_is_as_dialled(acceptance: float) -> None:
    """600 tokens: a standard error of at most 0.03 in alpha."""
    pair = synthetic_pair("small-gpt2:smaller-gpt2", acceptance, dtype=torch.float32, seed=1)
    spec = SpeculativeDecoder.from_models(pair.target, pair.draft, temperature=0.0)
    results = spec.generate(pair.prompts(4, 6), k=3, max_new_tokens=150, eos_token_id=None)
    tested = sum(step.tested for result in results for step in result.steps[1:])
    accepted = sum(result.num_accepted_tokens for result in results)
    assert accepted / tested == pytest.approx(acceptance, abs=0.09)


def test_extremes() -> None:
    for acceptance, expected in ((0.0, 0.0), (1.0, 1.0)):
        pair = synthetic_pair("small-llama:smaller-llama", acceptance, dtype=torch.float32)
        spec = SpeculativeDecoder.from_models(pair.target, pair.draft, temperature=0.0)
        assert spec.generate(pair.prompts(1, 6)[0], k=3, max_new_tokens=20, eos_token_id=None).alpha == expected


@pytest.mark.parametrize("bits", [8, 4])
def test_a_narrow_draft_reads_the_same_table(bits: int) -> None:
    """Quantising changes what a forward costs, not what this draft proposes."""
    pair = synthetic_pair("small-gpt2:smaller-gpt2", 0.7, dtype=torch.float32)
    prompts = pair.prompts(2, 6)
    counts = []
    for draft in (pair.draft, quantized_copy(pair.draft, bits)):
        spec = SpeculativeDecoder.from_models(pair.target, draft, temperature=0.0)
        results = spec.generate(prompts, k=3, max_new_tokens=40, eos_token_id=None)
        counts.append([(r.num_draft_tokens, r.num_accepted_tokens) for r in results])
    assert counts[0] == counts[1]


def test_the_library_s_assistant_accepts_as_often() -> None:
    pair = synthetic_pair("small-gpt2:smaller-gpt2", 1.0, dtype=torch.float32)
    prompt = torch.tensor([pair.prompts(1, 6)[0]])
    forwards = []
    pair.target.register_forward_hook(lambda *_: forwards.append(1))
    out = pair.target.generate(prompt, assistant_model=pair.draft, do_sample=False, max_new_tokens=40, pad_token_id=0)
    assert out[0, 6:].tolist() == follow(pair.record, int(prompt[0, -1]), 40)
    assert len(forwards) < 10


def test_published_shapes() -> None:
    """Parameters as published, head and embedding counted once where the family ties them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    millions = {"distilgpt2": 82, "gpt2": 124, "gpt2-medium": 355, "gpt2-large": 774, "smollm2-135m": 135}
    millions |= {"llama-3.2-1b": 1236, "llama-3.1-8b": 8030}
    for name, published in millions.items():
        sizes = shape(name)
        tied = name != "llama-3.1-8b"
        config = AutoConfig.for_model(sizes.pop("model_type"), **sizes, tie_word_embeddings=tied)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        assert model.num_parameters() / 1e6 == pytest.approx(published, rel=0.006), name


def test_bad_input() -> None:
    for name, acceptance, message in (
        ("small-gpt2", 0.5, "must be TARGET:DRAFT"),
        ("small-gpt2:nothing", 0.5, "geometry 'nothing' is unknown"),
        ("small-gpt2:distilgpt2", 0.5, "mixes vocabularies of 512 and 50257"),
        ("small-gpt2:smaller-gpt2", 1.5, "acceptance=1.5"),
    ):
        with pytest.raises(ValueError, match=message):
            synthetic_pair(name, acceptance, dtype=torch.float32)
    assert set(GEOMETRIES) >= {"gpt2-large", "distilgpt2"}
