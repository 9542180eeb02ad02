"""Bad input: an error that names the argument, its value, the allowed range and the remedy, before any model runs."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import GenerationConfig, T5Config, T5ForConditionalGeneration

from decoder import SpeculativeDecoder
from decoder.loop import NonFiniteLogits
from decoder.models.toy import noisy_copy, toy_model

PROMPT = torch.tensor([7, 33, 12, 50])


@pytest.fixture(scope="module")
def models():
    target = toy_model("llama", seed=5)
    return target, noisy_copy(target, 0.05)


@pytest.fixture
def decoder(models, monkeypatch):
    """A decoder whose target must not run: these calls are refused before."""
    spec = SpeculativeDecoder.from_models(*models)

    def never(*args, **kwargs):
        raise AssertionError("the model ran before the input was refused")

    monkeypatch.setattr(models[0], "forward", never)
    monkeypatch.setattr(models[1], "forward", never)
    return spec


class NotCallable:
    pass


REFUSED = [
    ({"k": -1}, ValueError, r"k=-1 must be >= 0"),
    ({"k": 1.5}, TypeError, r"k=1.5 must be an integer"),
    ({"k": True}, TypeError, r"k=True must be an integer"),
    ({"k": "4"}, (TypeError, ValueError), r"k='4' must be an integer"),
    ({"temperature": -0.1}, ValueError, r"temperature=-0.1 must be >= 0"),
    ({"temperature": float("nan")}, ValueError, r"temperature=nan"),
    ({"temperature": float("inf")}, ValueError, r"temperature=inf"),
    ({"temperature": "hot"}, TypeError, r"temperature='hot' must be a number"),
    ({"top_p": 0.0}, ValueError, r"top_p=0.0 must lie in \(0, 1\]"),
    ({"top_p": 1.01}, ValueError, r"top_p=1.01 must lie in \(0, 1\]"),
    ({"top_k": -3}, ValueError, r"top_k=-3 must be >= 0"),
    ({"top_k": 2.0}, TypeError, r"top_k=2.0 must be an integer"),
    ({"min_p": 1.5}, ValueError, r"min_p=1.5 must lie in \[0, 1\]"),
    ({"max_new_tokens": 0}, ValueError, r"max_new_tokens=0 must be >= 1"),
    ({"max_new_tokens": 2.5}, TypeError, r"max_new_tokens=2.5 must be an integer"),
    ({"max_length": 4}, ValueError, r"max_length=4 must exceed the prompt's 4 tokens"),
    ({"max_length": 10, "max_new_tokens": 3}, ValueError, r"max_new_tokens=3 and max_length=10 contradict"),
    ({"min_new_tokens": -1}, ValueError, r"min_new_tokens=-1 must be >= 0"),
    ({"repetition_penalty": 0}, ValueError, r"repetition_penalty=0 must be > 0"),
    ({"repetition_penalty": 2.2e-309}, ValueError, r"repetition_penalty=2.2e-309 must be > 0, at least 1e-06"),
    ({"repetition_penalty": "x"}, TypeError, r"repetition_penalty='x' must be a number"),
    ({"no_repeat_ngram_size": -2}, ValueError, r"no_repeat_ngram_size=-2 must be >= 0"),
    ({"bad_words_ids": [3]}, TypeError, r"bad_words_ids=\[3\] must be a list of non-empty lists"),
    ({"bad_words_ids": [[]]}, TypeError, r"bad_words_ids=\[\[\]\]"),
    ({"bad_words_ids": [[99]]}, ValueError, r"bad_words_ids=\[99\] holds an id outside \[0, 64\)"),
    ({"suppress_tokens": "abc"}, TypeError, r"suppress_tokens='abc' must be a token id or a list"),
    ({"suppress_tokens": [-4]}, ValueError, r"suppress_tokens=-4 must be >= 0"),
    ({"eos_token_id": "</s>"}, TypeError, r"eos_token_id='</s>' must be a token id"),
    ({"eos_token_id": 1.5}, TypeError, r"eos_token_id=1.5 must be a token id"),
    ({"eos_token_id": [2, -1]}, ValueError, r"eos_token_id=-1 must be >= 0"),
    ({"eos_token_id": 2**80, "min_new_tokens": 2}, ValueError, r"eos_token_id=\d+ is no token id"),
    ({"suppress_tokens": [2**80]}, ValueError, r"suppress_tokens=\d+ is no token id"),
    ({"stop_strings": "end"}, ValueError, r"stop_strings=\['end'\] needs a tokenizer"),
    ({"stop_strings": ""}, ValueError, r"stop_strings=\('',\) must be non-empty"),
    ({"stop_strings": 5}, TypeError, r"stop_strings=5 must be a string"),
    ({"stop_strings": [5]}, ValueError, r"stop_strings=\(5,\) must be non-empty strings"),
    ({"do_sample": "yes"}, TypeError, r"do_sample='yes' must be True or False"),
    ({"do_sample": True, "temperature": 0}, ValueError, r"do_sample=True contradicts temperature=0"),
    ({"num_beams": 4}, ValueError, r"num_beams=4 is not supported"),
    ({"num_return_sequences": 0}, ValueError, r"num_return_sequences=0 must be >= 1"),
    ({"use_cache": False}, ValueError, r"use_cache=False is not supported"),
    ({"batch_size": 0}, ValueError, r"batch_size=0 must be >= 1"),
    ({"seed": -1}, ValueError, r"seed=-1 must be >= 0"),
    ({"seed": 1.5}, TypeError, r"seed=1.5 must be an integer"),
    ({"drafter": "oracle"}, ValueError, r"drafter='oracle' is unknown; use one of"),
    ({"drafter": 3}, TypeError, r"drafter=3 must be a name or a Drafter"),
    ({"verifier": "hope"}, ValueError, r"verifier='hope' is unknown; use one of"),
    ({"sampling": "dice"}, ValueError, r"sampling='dice' is unknown; use one of"),
    ({"logits_processor": lambda ids, scores: scores}, TypeError, r"logits_processor=.* must be a list of callables"),
    ({"logits_processor": [NotCallable()]}, TypeError, r"logits_processor=.* must be a list of callables"),
    ({"stopping_criteria": lambda ids, scores: True}, TypeError, r"stopping_criteria=.* must be a list of callables"),
    ({"generation_config": {"top_k": 3}}, TypeError, r"generation_config=.* must be a transformers GenerationConfig"),
    ({"streamer": NotCallable()}, TypeError, r"streamer=.* must have put\(\) and end\(\)"),
    ({"cache": {"a": 1}}, TypeError, r"cache= of type dict must be the `cache` of an earlier result"),
    ({"attention_mask": torch.ones(4)}, ValueError, r"attention_mask goes with a 2-D tensor"),
    ({"max_new_token": 5}, TypeError, r"unknown keyword 'max_new_token'; did you mean 'max_new_tokens'"),
    ({"K": 5}, TypeError, r"unknown keyword 'K'"),
    ({"kk": 5}, TypeError, r"unknown keyword 'kk'; did you mean 'k'"),
    ({"num_assistant_tokens": 5}, TypeError, r"unknown keyword 'num_assistant_tokens'"),
    ({"assistant_model": None}, TypeError, r"unknown keyword 'assistant_model'"),
]


@pytest.mark.parametrize(("options", "kind", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_bad_argument_is_refused_by_name_before_a_model_runs(decoder, options, kind, message: str) -> None:
    with pytest.raises(kind, match=message):
        decoder.generate(PROMPT, **options)


@pytest.mark.parametrize("options", [{"top_p": 0.0}, {"max_length": 2}, {"eos_token_id": "x"}, {"nonsense": 1}])
def test_the_baseline_and_the_stream_refuse_the_same(decoder, tokenizer, options) -> None:
    decoder.tokenizer = tokenizer
    for call in (decoder.generate_baseline, decoder.stream):
        with pytest.raises((TypeError, ValueError), match=next(iter(options))):
            call(PROMPT, **options)


def test_a_generation_config_is_held_to_the_same(decoder) -> None:
    for config, message in (
        (GenerationConfig(num_beams=3), "num_beams=3"),
        (GenerationConfig(penalty_alpha=0.5), "generation_config.penalty_alpha=0.5 is not supported"),
        (GenerationConfig(typical_p=1.5, do_sample=True), "typical_p"),
        (GenerationConfig(output_attentions=True, return_dict_in_generate=True), "generation_config.output_attentions"),
        (GenerationConfig(use_cache=False), "use_cache=False"),
    ):
        with pytest.raises(ValueError, match=message):
            decoder.generate(PROMPT, generation_config=config)


def test_prompts_that_cannot_be_served_are_refused(decoder) -> None:
    with pytest.raises(ValueError, match="prompt of 129 tokens is longer than the target's context of 128"):
        decoder.generate(torch.full((129,), 5))
    with pytest.raises(ValueError, match=r"prompt 0 holds id 64, outside the model's \[0, 64\)"):
        decoder.generate(torch.tensor([3, 64]))
    with pytest.raises(ValueError, match="prompt 0 holds no token ids"):
        decoder.generate(torch.tensor([], dtype=torch.long))
    with pytest.raises(ValueError, match="prompt 1 holds no token ids"):
        decoder.generate(torch.tensor([[3, 4], [5, 6]]), attention_mask=torch.tensor([[1, 1], [0, 0]]))
    with pytest.raises(ValueError, match="a text prompt needs a tokenizer"):
        decoder.generate("hello")


def test_one_prompt_too_long_refuses_the_whole_batch(decoder) -> None:
    with pytest.raises(ValueError, match="longer than the target's context"):
        decoder.generate([PROMPT, torch.full((130,), 5)])


def test_what_goes_with_one_prompt_only(decoder, tokenizer) -> None:
    class Stateful:
        def __call__(self, ids, scores):
            return scores

    for options in ({"return_cache": True}, {"streamer": type("S", (), {"put": print, "end": print})()}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}= goes with one prompt, not 2"):
            decoder.generate([PROMPT, PROMPT], **options)
    with pytest.raises(ValueError, match="logits_processor Stateful may keep state"):
        decoder.generate([PROMPT, PROMPT], logits_processor=[Stateful()])
    with pytest.raises(ValueError, match=r"stream.. yields text and needs a tokenizer"):
        decoder.stream(PROMPT)
    decoder.tokenizer = tokenizer
    with pytest.raises(ValueError, match=r"stream\(\) takes one prompt"):
        decoder.stream([PROMPT, PROMPT])
    with pytest.raises(ValueError, match="num_return_sequences"):
        decoder.stream(PROMPT, num_return_sequences=2)
    with pytest.raises(ValueError, match="return_dict_in_generate=True does not go with stream"):
        decoder.stream(PROMPT, return_dict_in_generate=True)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"temperature": -1}, ValueError, "temperature=-1"),
        ({"top_p": 2.0}, ValueError, "top_p=2.0"),
        ({"drafter": "model"}, ValueError, "drafter='model' needs a draft model"),
        ({"drafter": "nonsense"}, ValueError, "drafter='nonsense' is unknown"),
        ({"verifier": 5}, TypeError, "verifier=5 must be a name or a Verifier"),
        ({"seed": "x"}, TypeError, "seed='x' must be an integer"),
        (
            {"sampling": "gumbel", "verifier": "block"},
            ValueError,
            "verifier='block' does not go with sampling='gumbel'",
        ),
    ],
)
def test_the_constructor_refuses_by_name(models, options, kind, message: str) -> None:
    with pytest.raises(kind, match=message):
        SpeculativeDecoder.from_models(models[0], **options)


def test_names_where_models_belong_and_the_reverse(models) -> None:
    with pytest.raises(TypeError, match="target='gpt2' must be a loaded transformers model"):
        SpeculativeDecoder.from_models("gpt2")
    with pytest.raises(TypeError, match="draft='gpt2' must be a loaded transformers model"):
        SpeculativeDecoder.from_models(models[0], "gpt2")
    with pytest.raises(TypeError, match="target_model_name=5 must be a loaded transformers model"):
        SpeculativeDecoder(5)


def test_an_encoder_decoder_target_is_refused() -> None:
    config = T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match=r"is an encoder-decoder model.*needs a decoder-only model"):
        SpeculativeDecoder.from_models(T5ForConditionalGeneration(config))


# ---- NaN: which model, which position ----


class Poisoned(torch.nn.Module):
    """A head that returns NaN after one token id."""

    def __init__(self, head: torch.nn.Module, embedding: torch.nn.Embedding, bad: int) -> None:
        super().__init__()
        self.head, self.bad = head, bad
        self.weight = head.weight
        self.marked: torch.Tensor | None = None
        embedding.register_forward_hook(lambda module, args, out: self.note(args[0]))

    def note(self, ids: torch.Tensor) -> None:
        self.marked = ids == self.bad

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.head(hidden)
        return logits.masked_fill(self.marked[:, -logits.shape[1] :, None], float("nan"))


def poisoned(seed: int, bad: int):
    model = toy_model("llama", seed=seed)
    model.lm_head = Poisoned(model.lm_head, model.get_input_embeddings(), bad)
    return model


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [0, 4])
def test_nan_from_the_target_names_it_and_the_position(k: int, temperature: float) -> None:
    clean = toy_model("llama", seed=5)
    decoder = SpeculativeDecoder.from_models(clean, drafter="ngram", temperature=temperature, top_p=1.0, seed=0)
    ids = decoder.generate(PROMPT, k=k, max_new_tokens=12, eos_token_id=None).token_ids
    bad = ids[5]
    first = ids.index(bad)
    spoilt = SpeculativeDecoder.from_models(
        poisoned(5, bad), drafter="ngram", temperature=temperature, top_p=1.0, seed=0
    )
    with pytest.raises(NonFiniteLogits, match=rf"the target's logits .* after position {len(PROMPT) + first} of row 0"):
        spoilt.generate(PROMPT, k=k, max_new_tokens=12, eos_token_id=None)


def test_nan_after_a_token_that_is_not_taken_is_no_error(models, greedy) -> None:
    """Greedy: the draft proposes tokens that lead the target to NaN, but they are rejected."""
    wanted = greedy(toy_model("llama", seed=5), PROMPT, 12, eos_token_id=None)
    bad = next(token for token in range(3, 64) if token not in wanted and token not in PROMPT)
    spoilt = SpeculativeDecoder.from_models(poisoned(5, bad), toy_model("llama", seed=8), temperature=0)
    assert list(spoilt.generate(PROMPT, k=4, max_new_tokens=12, eos_token_id=None).token_ids) == wanted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_from_the_draft_names_it_and_the_position(temperature: float) -> None:
    target = toy_model("llama", seed=5)
    plain = SpeculativeDecoder.from_models(target, temperature=temperature, seed=0).generate_baseline(PROMPT)
    decoder = SpeculativeDecoder.from_models(target, poisoned(5, plain.token_ids[0]), temperature=temperature, seed=0)
    with pytest.raises(NonFiniteLogits, match="the draft's logits are NaN or all -inf after position 4 of row 0"):
        decoder.generate(PROMPT, k=3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_processors_that_ban_everything_are_reported(models, temperature: float) -> None:
    decoder = SpeculativeDecoder.from_models(*models, temperature=temperature)
    with pytest.raises(
        NonFiniteLogits, match=r"target's logits are NaN or all -inf after position 3 of row 0.*processors"
    ):
        decoder.generate(PROMPT, suppress_tokens=list(range(64)))


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_that_returns_no_scores_is_named(models, temperature: float, k: int) -> None:
    decoder = SpeculativeDecoder.from_models(*models, temperature=temperature)

    class Broken:
        stateless = True

        def __init__(self, result) -> None:
            self.result = result

        def __call__(self, ids, scores):
            return self.result(scores)

    for result, what in (
        (lambda scores: None, "NoneType"),
        (lambda scores: scores[0], r"shape \[64\]"),
        (lambda scores: scores[:, :5], r"shape \[1, 5\]"),
    ):
        with pytest.raises(
            TypeError, match=rf"logits_processor Broken returned {what}; it must return scores \[1, 64\]"
        ):
            decoder.generate(PROMPT, k=k, max_new_tokens=4, logits_processor=[Broken(result)])


@pytest.mark.parametrize("verdict", [None, "yes", object()])
def test_a_criterion_that_returns_no_verdict_is_named(models, verdict) -> None:
    decoder = SpeculativeDecoder.from_models(*models)

    def rule(ids, scores):
        return verdict

    with pytest.raises(TypeError, match=r"stopping_criteria rule returned .*; it must return True or False"):
        decoder.generate(PROMPT, stopping_criteria=[rule])


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_model_in_training_mode_with_dropout_is_refused(family: str, role: str) -> None:
    """Each of its forwards has another law: neither the promise nor the cache could hold."""
    changes = {"attention_dropout": 0.1} if family == "llama" else {}
    model = toy_model(family, **changes).train()
    quiet = toy_model("llama").train()  # no dropout anywhere: training mode changes nothing
    with pytest.raises(ValueError, match=rf"{role} \w+ is in training mode with dropout.*call \.eval\(\)"):
        SpeculativeDecoder.from_models(*((model, quiet) if role == "target" else (quiet, model)))
    SpeculativeDecoder.from_models(quiet, model.eval())


# ---- names, folders, devices, dtypes ----


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    path = tmp_path_factory.mktemp("model")
    toy_model("llama", vocab_size=len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_paths_that_do_not_exist(folder, tmp_path) -> None:
    missing = str(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"target_model_name='.*nothing' does not exist; give an existing folder"):
        SpeculativeDecoder(missing)
    with pytest.raises(ValueError, match=r"draft_model_name='.*nothing' does not exist"):
        SpeculativeDecoder(str(folder), missing)
    with pytest.raises(ValueError, match=r"target_model_name='.*' could not be loaded"):
        SpeculativeDecoder(str(tmp_path))  # an empty folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:7"}, "device='cuda:7' is not available"),
        ({"device": "abacus"}, "device='abacus' is not a device"),
        ({"dtype": "float99"}, "dtype='float99' is not available; use 'auto'"),
        ({"dtype": torch.int8}, "dtype=torch.int8 is not available"),
    ],
)
@pytest.mark.parametrize("with_draft", [False, True])
def test_devices_and_dtypes_that_are_not_there(folder, options, message: str, with_draft: bool) -> None:
    with pytest.raises(ValueError, match=message):
        SpeculativeDecoder(str(folder), str(folder) if with_draft else None, **options)


def test_a_corrupt_checkpoint_is_refused(folder, tmp_path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-400])
    with pytest.raises(ValueError, match=r"target_model_name='.*broken' could not be loaded \(\w+"):
        SpeculativeDecoder(str(broken))
    weights.write_bytes(b"garbage")
    with pytest.raises(ValueError, match="could not be loaded"):
        SpeculativeDecoder(str(folder), str(broken))


def test_a_checkpoint_that_lacks_weights_is_refused(folder, tmp_path) -> None:
    """transformers fills the gap with random numbers and warns; that would be another model."""
    from safetensors.torch import load_file, save_file

    partial = tmp_path / "partial"
    shutil.copytree(folder, partial)
    weights = load_file(partial / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"is incomplete: the checkpoint lacks .* such as model.layers.1.mlp.up_proj"):
        SpeculativeDecoder(str(partial))


def test_an_encoder_decoder_folder_is_refused_before_its_weights_are_read(tmp_path, tokenizer) -> None:
    config = T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    config.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is an encoder-decoder model; use a decoder-only one"):
        SpeculativeDecoder(str(tmp_path))


def test_a_draft_with_another_tokenizer_is_refused(folder, tmp_path, tokenizer) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    data = json.loads((other / "tokenizer.json").read_text())
    vocab = data["model"]["vocab"]
    first, second = list(vocab)[40], list(vocab)[41]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (other / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match="different tokenizers: 2 of 280 shared ids mean another token"):
        SpeculativeDecoder(str(folder), str(other))


def test_chat_without_a_template(folder) -> None:
    decoder = SpeculativeDecoder(str(folder))
    with pytest.raises(ValueError, match=r"no chat template; pass a string, or set tokenizer.chat_template"):
        decoder.generate([{"role": "user", "content": "hello"}])
