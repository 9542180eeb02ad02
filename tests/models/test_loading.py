"""Loading: folders, placement through accelerate, nothing unsafe by default."""

from __future__ import annotations

import json
import pickle

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.models import loading
from decoder.models.hf import CausalModel, input_device
from decoder.models.toy import noisy_copy, toy_model

PROMPT = torch.tensor([7, 33, 12, 50])


@pytest.fixture(scope="module")
def pair(tmp_path_factory, tokenizer):
    """Two folders: a target and a draft that partly agrees."""
    root = tmp_path_factory.mktemp("pair")
    target = toy_model("llama", seed=3, vocab_size=len(tokenizer))
    for name, model in (("target", target), ("draft", noisy_copy(target, 0.05))):
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root


def test_two_folders_are_all_a_person_needs(pair, greedy) -> None:
    decoder = SpeculativeDecoder(str(pair / "target"), pair / "draft", temperature=0)
    ids = decoder.tokenizer("the cat")["input_ids"]
    result = decoder.generate("the cat", k=4, max_new_tokens=16, eos_token_id=None)
    assert list(result.token_ids) == greedy(decoder.target, ids, 16, eos_token_id=None)
    assert result.num_accepted_tokens > 0
    assert not decoder.target.training and not decoder.draft.training


def test_loaded_models_are_accepted_where_names_are(pair, tokenizer) -> None:
    target = toy_model("llama", seed=3, vocab_size=len(tokenizer))
    by_object = SpeculativeDecoder(target, noisy_copy(target, 0.05), tokenizer=tokenizer, temperature=0)
    mixed = SpeculativeDecoder(str(pair / "target"), noisy_copy(target, 0.05), temperature=0)
    by_name = SpeculativeDecoder(str(pair / "target"), str(pair / "draft"), temperature=0)
    texts = {spec.generate("the cat", max_new_tokens=12).text for spec in (by_object, mixed, by_name)}
    assert len(texts) == 1
    assert mixed.draft is not None and by_object.target is target


@pytest.mark.parametrize("wanted", ["bfloat16", "float16", torch.float64, "auto"])
def test_dtypes(pair, wanted) -> None:
    decoder = SpeculativeDecoder(str(pair / "target"), dtype=wanted, temperature=0)
    dtype = {"auto": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}.get(wanted, wanted)
    assert decoder.target.dtype == dtype
    assert len(decoder.generate("the cat", max_new_tokens=5, eos_token_id=None).token_ids) == 5


def test_draft_and_target_may_differ_in_dtype(pair) -> None:
    decoder = SpeculativeDecoder(str(pair / "target"), str(pair / "draft"), draft_dtype="bfloat16", temperature=0)
    assert (decoder.target.dtype, decoder.draft.dtype) == (torch.float32, torch.bfloat16)
    plain = decoder.generate_baseline("the cat", max_new_tokens=12)
    assert decoder.generate("the cat", max_new_tokens=12).token_ids == plain.token_ids


def test_disk_offload_is_exact(pair, tmp_path, greedy) -> None:
    """All layers but the embedding lie on disk and are brought in by accelerate's hooks, forward by forward."""
    inside = SpeculativeDecoder(str(pair / "target"), temperature=0)
    placement = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.norm": "cpu", "lm_head": "cpu"}
    placement |= {"model.layers.0": "disk", "model.layers.1": "disk"}
    decoder = SpeculativeDecoder(
        str(pair / "target"), str(pair / "draft"), device=placement, offload_folder=str(tmp_path), temperature=0
    )
    offloaded = {name for name, weight in decoder.target.named_parameters() if weight.device.type == "meta"}
    assert any("layers.1" in name for name in offloaded), "nothing was offloaded"
    for k in (0, 4):
        got = decoder.generate("the cat", k=k, max_new_tokens=12, eos_token_id=None)
        assert got.token_ids == inside.generate_baseline("the cat", max_new_tokens=12, eos_token_id=None).token_ids


def test_everything_on_disk_still_finds_its_input_device(pair, tmp_path) -> None:
    model = loading.load_model(
        "target_model_name", str(pair / "target"), device={"": "disk"}, offload_folder=str(tmp_path)
    )
    assert model.get_input_embeddings().weight.device.type == "meta"
    assert input_device(model) == torch.device("cpu")


def test_neither_configuration_nor_weights_are_touched(pair, tokenizer) -> None:
    target = toy_model("llama", seed=3, vocab_size=len(tokenizer))
    draft = noisy_copy(target, 0.05)
    before = [
        (model.config.to_json_string(), model.generation_config.to_json_string(), model.state_dict())
        for model in (target, draft)
    ]
    copies = [{name: tensor.clone() for name, tensor in state.items()} for _, _, state in before]
    decoder = SpeculativeDecoder.from_models(target, draft, tokenizer=tokenizer, temperature=0.7)
    decoder.generate("the cat", k=3, max_new_tokens=8, repetition_penalty=1.2, seed=1)
    for model, (config, generation, state), copy in zip((target, draft), before, copies, strict=True):
        assert model.config.to_json_string() == config
        assert model.generation_config.to_json_string() == generation
        assert all(torch.equal(state[name], tensor) for name, tensor in copy.items())


def test_there_is_no_second_copy_of_the_weights(tokenizer) -> None:
    target = toy_model("llama", seed=3, vocab_size=len(tokenizer))
    decoder = SpeculativeDecoder.from_models(target, target, tokenizer=tokenizer)
    assert decoder.target_model.model is target and decoder.draft_model.model is target


def test_pickled_weights_are_not_read(pair, tmp_path) -> None:
    """A pickle can run code when it is read; this one would leave a mark."""
    mark = tmp_path / "mark"

    class Bomb:
        def __reduce__(self):
            return (open, (str(mark), "w"))

    folder = tmp_path / "pickled"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((pair / "target" / name).read_text())
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match=r"could not be loaded .*pickled weights are not read"):
        SpeculativeDecoder(str(folder))
    assert not mark.exists()


def test_remote_code_does_not_run_unless_asked(pair, tmp_path) -> None:
    folder = tmp_path / "remote"
    folder.mkdir()
    mark = tmp_path / "mark"
    config = json.loads((pair / "target" / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    config["model_type"] = "something_of_its_own"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil: pass\n")
    with pytest.raises(ValueError, match="could not be loaded"):
        SpeculativeDecoder(str(folder), tokenizer=object())
    assert not mark.exists()


STATEFUL = {
    "lfm2": {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3},
    "mamba": {"state_size": 4, "num_hidden_layers": 2},
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "recurrent_gemma": {"attention_window_size": 16, "lru_width": 32},
    "rwkv": {"attention_hidden_size": 32},
}


@pytest.mark.parametrize("family", STATEFUL)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_state_that_cannot_be_rolled_back_is_refused_before_a_token(family: str, role: str) -> None:
    model = toy_model(family, **STATEFUL[family])
    other = toy_model("llama")
    models = (model, other) if role == "target" else (other, model)
    with pytest.raises(ValueError, match=rf"{role} \w+ .*cannot be rolled back.*transformers' own generate"):
        SpeculativeDecoder.from_models(*models)


def test_a_cache_that_the_model_copies_for_itself_is_refused() -> None:
    """A model of an untested family is asked: are its cached logits the uncached ones, also after a rollback?"""

    class Forgetful(type(toy_model("llama"))):
        """Reads its cache one layer off, as a model with private ideas about caches would."""

        def forward(self, *args, cache=None, past_key_values=None, **kwargs):
            kept = cache if cache is not None else past_key_values
            if kept is not None and kept.get_seq_length() > 0:
                kept.layers[0].keys.zero_()
            name = "cache" if cache is not None else "past_key_values"
            return super().forward(*args, **{name: kept}, **kwargs)

    model = toy_model("llama")
    model.__class__ = Forgetful
    model.config.model_type = "forgetful"
    with pytest.raises(
        ValueError, match=r"target Forgetful .*(cached logits differ from uncached|fails with a position-addressed)"
    ):
        CausalModel(model, "target")


def test_an_untested_family_that_behaves_is_accepted() -> None:
    model = toy_model("llama")
    model.config.model_type = "of_tomorrow"
    assert not CausalModel(model, "target").can_batch


def test_a_model_that_adds_layers_to_its_cache_is_refused() -> None:
    """Copies of its own are out of reach of a rollback, even where the first logits look right."""

    class Looping(type(toy_model("llama"))):
        def forward(self, *args, cache=None, past_key_values=None, **kwargs):
            kept = cache if cache is not None else past_key_values
            out = super().forward(*args, **{"cache" if cache is not None else "past_key_values": kept}, **kwargs)
            if kept is not None and len(kept.layers) == 2:
                kept.layers += [kept.layers[0]]
            return out

    model = toy_model("llama").to(torch.bfloat16)
    model.__class__ = Looping
    model.config.model_type = "looping"
    with pytest.raises(
        ValueError, match=r"draft Looping .*(cached logits differ from uncached|fails with a position-addressed)"
    ):
        CausalModel(model, "draft")
