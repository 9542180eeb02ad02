"""Every method does the same work: the same tokens, the same warping, the same rule for EOS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.measure.comparison import Comparison, summary_table
from decoder.measure.methods import Plan, TransformersMethod, named, speculative, transformers_sampling
from decoder.models.toy import noisy_copy, toy_model
from decoder.types import SamplingParams

PROMPTS = [[3, 4, 5, 6, 7], [9, 8, 7, 6]]
GREEDY = Plan(20, SamplingParams(temperature=0.0))
NAMES = ["hf", "hf-assisted", "hf-lookup", "baseline"]


@pytest.fixture(scope="module")
def spec() -> SpeculativeDecoder:
    target = toy_model("llama", seed=1)
    return SpeculativeDecoder.from_models(target, noisy_copy(target, 0.1))


def test_greedy_methods_say_the_same_past_eos(spec: SpeculativeDecoder) -> None:
    """EOS is made a token of the text: ignored by every method, or ending it for every method."""
    reference = named("baseline", spec, GREEDY)(PROMPTS[0], 0).token_ids
    place = next(i for i in range(1, 20) if reference.index(reference[i]) == i)
    methods = [named(name, spec, GREEDY, spec.draft) for name in NAMES]
    methods += [speculative(spec, GREEDY, 3), speculative(spec, GREEDY, "auto"), speculative(spec, GREEDY, 2, "ngram")]
    before = {m: m.generation_config.eos_token_id for m in (spec.target, spec.draft)}
    try:
        for model in before:
            model.generation_config.eos_token_id = reference[place]
        for method in methods:
            assert method(PROMPTS[0], 0).token_ids == reference, method.name
        stopping = Plan(20, GREEDY.params, stop_at_eos=True)
        stopped = [named(name, spec, stopping, spec.draft) for name in NAMES] + [speculative(spec, stopping, 3)]
        for method in stopped:
            assert method(PROMPTS[0], 0).token_ids == reference[: place + 1], method.name
    finally:
        for model, eos in before.items():
            model.generation_config.eos_token_id = eos


def test_the_library_samples_from_the_same_law(spec: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """No top-k of 50 sneaks in: the library's warped scores at the first position are ours."""
    from decoder.warpers import warped_probs

    target: Any = spec.target
    params = SamplingParams(temperature=0.7, top_k=0, top_p=0.95)
    keywords = transformers_sampling(Plan(1, params))
    ids = torch.tensor([PROMPTS[0]])
    kept = target.generation_config.top_k
    target.generation_config.top_k = 5  # what a model's own configuration might say
    try:
        out = target.generate(
            ids, max_new_tokens=1, output_scores=True, return_dict_in_generate=True, pad_token_id=0, **keywords
        )
    finally:
        target.generation_config.top_k = kept
    logits = target(ids).logits[0, -1].detach()
    assert torch.allclose(out.scores[0][0].softmax(-1), warped_probs(logits, params), atol=1e-6)


def test_sampling_repeats_with_its_seed(spec: SpeculativeDecoder) -> None:
    plan = Plan(12, SamplingParams(temperature=1.0, top_p=1.0))
    for name in NAMES:
        method = named(name, spec, plan, spec.draft)
        assert method(PROMPTS[0], 1).token_ids == method(PROMPTS[0], 1).token_ids
        assert len({method(PROMPTS[0], seed).token_ids for seed in range(4)}) > 1


def test_a_fixed_assistant_length_is_for_the_call_only(spec: SpeculativeDecoder) -> None:
    before = spec.draft.generation_config.to_dict()
    method = named("hf-assisted", spec, GREEDY, spec.draft, 2)
    assert isinstance(method, TransformersMethod)
    forwards: list[int] = []
    hook = spec.target.register_forward_hook(lambda _, __, out: forwards.append(out.logits.shape[1]))
    try:
        method(PROMPTS[0], 0)
    finally:
        hook.remove()
    assert max(forwards[1:]) == 3
    assert spec.draft.generation_config.to_dict() == before


def test_names(spec: SpeculativeDecoder) -> None:
    assert speculative(spec, GREEDY, 4).name == "speculative model k=4"
    assert speculative(spec, GREEDY, "auto", "ngram").name == "speculative ngram k=auto"
    with pytest.raises(ValueError, match="needs a draft model"):
        named("hf-assisted", SpeculativeDecoder.from_models(spec.target), GREEDY)
    with pytest.raises(ValueError, match="'vllm' is unknown"):
        named("vllm", spec, GREEDY)


def test_a_comparison_from_models_to_markdown(spec: SpeculativeDecoder, tmp_path: Any) -> None:
    plan = replace(GREEDY, repeats=2)
    methods = [*NAMES, speculative(spec, plan, 3), speculative(spec, plan, 2, "ngram")]
    report = Comparison(spec, PROMPTS, plan, methods, "A title", ["a note"]).run()
    assert [each.name for each in report.summaries] == [*NAMES, "speculative model k=3", "speculative ngram k=2"]
    for each in report.summaries:
        assert each.tokens == 40 and each.prompts == 2
        for found in each.agreement.values():
            assert (found.equal, found.of) == (4, 4)
    drafted = report.summary("speculative model k=3")
    assert set(drafted.speedups) == {"hf", "baseline"} and drafted.alpha is not None
    assert report.summary("baseline").tokens_per_iteration == 1.0
    text = report.markdown()
    assert "a note" in text and "speculative ngram k=2" in text and "4/4" in text
    assert summary_table(report.summaries) in text
    report.write(tmp_path / "out" / "found.json")
    assert (tmp_path / "out" / "found.md").read_text() == text
    import json

    record = json.loads((tmp_path / "out" / "found.json").read_text())
    assert len(record["samples"]) == 6 * 2 * 2 and record["plan"]["repeats"] == 2
    assert record["environment"]["target"]["dtype"] == "float32"
    with pytest.raises(ValueError, match="was not run"):
        report.summary("speculative model k=9")


def test_different_outputs_are_reported() -> None:
    """Two models that differ: the account says where."""
    target, other = toy_model("llama", seed=1), toy_model("llama", seed=2)
    spec = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.1))
    lying = SpeculativeDecoder.from_models(other)
    from decoder.measure.summary import summarise
    from decoder.measure.timing import interleaved

    impostor = speculative(lying, GREEDY, 2)
    samples = interleaved([named("hf", spec, GREEDY), impostor], PROMPTS, repeats=1)
    found = summarise(samples)[1].agreement["hf"]
    assert found.equal == 0 and found.first_difference is not None
