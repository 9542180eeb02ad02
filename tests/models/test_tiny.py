"""The bundled pair: it loads from the package alone, is small, tells stories, and its draft agrees with its target."""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from decoder.models import tiny
from decoder.models.tiny import TinyPaths, tiny_paths

CORPUS = Path(__file__).parents[2].parent / "shared" / "data" / "corpus"
HELD_OUT_BOOK = "The_Tale_of_Timothy_Turtle.txt"
PROMPTS = (
    "Once upon a time there was an old woman who lived by the sea.",
    "The little bear climbed the tree, and",
    '"Where are you going?" said the frog.',
    "In the morning the king called his three sons.",
)


@pytest.fixture(scope="module")
def paths() -> TinyPaths:
    return tiny_paths()


@pytest.fixture(scope="module")
def tokenizer(paths: TinyPaths) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(paths.tokenizer)


@pytest.fixture(scope="module")
def target(paths: TinyPaths) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(paths.target, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def draft(paths: TinyPaths) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(paths.draft, dtype=torch.float32).eval()


def test_pair_loads_without_network_and_without_pickle(paths: TinyPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the bundled pair asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    for folder in (paths.target, paths.draft):
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.dtype == torch.bfloat16
        assert isinstance(AutoTokenizer.from_pretrained(folder), PreTrainedTokenizerFast)
        assert not [p.name for p in folder.iterdir() if p.suffix not in (".json", ".safetensors")]


def test_pair_is_under_24_megabytes(paths: TinyPaths) -> None:
    files = [p for folder in {paths.target, paths.draft, paths.tokenizer} for p in folder.iterdir()]
    assert sum(p.stat().st_size for p in files) < 24_000_000


def test_sizes_are_those_of_the_model_card(target: torch.nn.Module, draft: torch.nn.Module) -> None:
    assert 7.5e6 < sum(p.numel() for p in target.parameters()) < 12e6
    assert sum(p.numel() for p in draft.parameters()) < 1.9e6
    assert target.config.vocab_size == draft.config.vocab_size == 4096
    assert target.config.max_position_embeddings == 512
    assert draft.config.num_hidden_layers == 1


def test_configurations_name_no_place(paths: TinyPaths) -> None:
    for folder in (paths.target, paths.draft):
        for path in folder.glob("*config.json"):
            content = json.loads(path.read_text(encoding="utf-8"))
            assert not [key for key in content if "path" in key]
            assert not [value for value in content.values() if isinstance(value, str) and "/" in value]


@pytest.mark.parametrize(
    "text",
    [
        "Once upon a time",
        "",
        " ",
        "\n\n\n",
        "naïve café",
        "你好，世界",
        "🦊👩‍👧‍👦",
        "a  b \t c\r\n",
        "\u0000\u007f",
        "'tis don't .",
    ],
)
def test_tokenizer_returns_any_text_unchanged(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= i < 4096 for i in ids)


def test_special_tokens(tokenizer: PreTrainedTokenizerFast, target: torch.nn.Module) -> None:
    assert len(tokenizer) == 4096
    assert tokenizer.bos_token_id == tokenizer.eos_token_id == target.generation_config.eos_token_id == 0
    assert tokenizer.pad_token_id == target.generation_config.pad_token_id == 1
    assert tokenizer.decode([0, *tokenizer.encode("Hello"), 0], skip_special_tokens=True) == "Hello"


def continued(target: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, prompt: str, sample: bool) -> torch.Tensor:
    """The prompt and 48 tokens by the target, (1, n)."""
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    torch.manual_seed(0)
    length = {"min_new_tokens": 48, "max_new_tokens": 48, "top_k": 0}
    return target.generate(ids, attention_mask=torch.ones_like(ids), do_sample=sample, **length)


@torch.no_grad()
def laws(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Next-token probabilities (48, vocab) before each of the last 48 tokens of ids (1, n)."""
    return model(input_ids=ids).logits[0, -49:-1].softmax(-1)


def test_draft_agrees_with_target_at_temperature_1(target, draft, tokenizer) -> None:
    rows = [continued(target, tokenizer, prompt, sample=True) for prompt in PROMPTS]
    overlap = [torch.minimum(laws(target, ids), laws(draft, ids)).sum(-1) for ids in rows]
    assert torch.cat(overlap).mean() > 0.70


def test_draft_agrees_with_target_greedily(target, draft, tokenizer) -> None:
    rows = [continued(target, tokenizer, prompt, sample=False) for prompt in PROMPTS]
    same = [(laws(target, ids).argmax(-1) == laws(draft, ids).argmax(-1)).float() for ids in rows]
    assert torch.cat(same).mean() > 0.75


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus (../shared/data/corpus) is not here")
@torch.no_grad()
def test_bits_per_byte_on_a_held_out_book(target, tokenizer) -> None:
    text = (CORPUS / HELD_OUT_BOOK).read_text(encoding="utf-8").split("\n\n\n")[2][:1600]
    ids = tokenizer(text, return_tensors="pt").input_ids[:, :512]
    scored = tokenizer.decode(ids[0, 1:])
    loss = torch.nn.functional.cross_entropy(target(input_ids=ids).logits[0, :-1], ids[0, 1:], reduction="sum")
    assert float(loss) / math.log(2) / len(scored.encode()) < 1.6


def test_missing_weights_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny" / "target").mkdir(parents=True)
    monkeypatch.setattr(tiny, "files", lambda package: tmp_path)
    with pytest.raises(FileNotFoundError, match=r"target has no config\.json.*train_tiny_pair"):
        tiny_paths()
