"""The constructors' options: one value names each, the signatures show them, and what is unknown is refused by name."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.asked.building import Loaded, Named, Settings
from decoder.models.toy import toy_model

CONSTRUCTORS = {"SpeculativeDecoder": SpeculativeDecoder, "from_models": SpeculativeDecoder.from_models}


def test_signatures_show_every_option_with_its_default() -> None:
    shared = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert {"temperature", "drafter", "verifier", "seed", "sampling", "tokenizer"} <= set(shared)
    for construct in CONSTRUCTORS.values():
        found = inspect.signature(construct).parameters
        assert {name: found[name].default for name in shared} == shared
        assert all(found[name].kind is inspect.Parameter.KEYWORD_ONLY for name in shared)
    names = list(inspect.signature(SpeculativeDecoder).parameters)
    assert names[:2] == ["target_model_name", "draft_model_name"]
    assert list(inspect.signature(SpeculativeDecoder.from_models).parameters)[:2] == ["target", "draft"]


def test_help_and_the_docstring_name_every_option() -> None:
    shown = str(inspect.signature(SpeculativeDecoder))
    described = SpeculativeDecoder.__doc__ or ""
    for field in dataclasses.fields(Named):
        assert f"{field.name}:" in shown and field.name in described, field.name
    assert "top_p: 'float' = 0.9" in pydoc.plain(pydoc.render_doc(SpeculativeDecoder))
    shown = pydoc.plain(pydoc.render_doc(SpeculativeDecoder.from_models))
    assert "Without a tokenizer" in shown


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_unknown_keywords_are_named_before_anything_is_loaded(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unknown keyword 'temprature'; did you mean 'temperature'"):
        CONSTRUCTORS[name]("no/such/model", temprature=0.5)
    with pytest.raises(TypeError, match=r"unknown keyword 'zzz'; known: target.*seed, sampling"):
        CONSTRUCTORS[name]("no/such/model", zzz=0.5)


def test_arguments_that_are_missing_or_too_many() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'target'"):
        SpeculativeDecoder.from_models()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="too many positional"):
        SpeculativeDecoder("tiny", None, 0.5)  # type: ignore[misc]
    with pytest.raises(ValueError, match=r"top_p=0 must lie"):
        SpeculativeDecoder("no/such/model", top_p=0)


def test_both_ways_in_settle_the_same_options() -> None:
    model = toy_model("llama")
    options = {"temperature": 0.5, "top_k": 7, "seed": 3, "verifier": "token", "drafter": "ngram"}
    one, other = SpeculativeDecoder(model, **options), SpeculativeDecoder.from_models(model, **options)
    keyword = SpeculativeDecoder(target_model_name=model, **options)
    for spec in (one, other, keyword):
        assert spec.target is model and spec.draft is None and spec.draft_tokenizer is None
        assert (spec.params.temperature, spec.params.top_k, spec.params.top_p) == (0.5, 7, 0.9)
        assert (spec.seed, spec.verifier, spec.drafter.name, spec.sampling) == (3, "token", "ngram", "rejection")
    call = {"max_new_tokens": 6, "eos_token_id": None}
    texts = {spec.generate(torch.tensor([5, 6]), **call).token_ids for spec in (one, other, keyword)}
    assert len(texts) == 1


def test_settings_are_frozen() -> None:
    given = Loaded(toy_model("llama"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        given.temperature = 0.1  # type: ignore[misc]
