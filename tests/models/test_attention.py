"""Grouped key-value heads: the same logits to the bit, no copies, and the environment as it was."""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import LlamaConfig, LlamaForCausalLM

import decoder.models.hf as hf
from decoder.models.hf import CausalModel
from decoder.models.inputs import grouped_heads

NAME = "TRANSFORMERS_SDPA_FORCE_GQA"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def grouped() -> CausalModel:
    torch.manual_seed(0)
    shape = {"hidden_size": 72, "intermediate_size": 96, "num_attention_heads": 9, "num_key_value_heads": 3}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, num_hidden_layers=2, **shape)).to(torch.bfloat16).eval()
    return CausalModel(model, "target")


def fed(model: CausalModel, starts: list[int], width: int) -> torch.Tensor:
    tokens = torch.arange(len(starts) * 20).view(len(starts), 20) % 50
    with torch.inference_mode():
        session = model.open(len(starts), 40)
        session.feed(tokens, [0] * len(starts))
        session.commit([20] * len(starts))
        return session.feed(tokens[:, :width], starts)


@pytest.mark.parametrize("starts", [[20], [20, 20], [20, 12]])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_logits_are_the_same_to_the_bit(grouped, monkeypatch, starts, width) -> None:
    ours = fed(grouped, starts, width)
    monkeypatch.setattr(hf, "grouped_heads", lambda device: nullcontext())
    assert torch.equal(ours, fed(grouped, starts, width))


@pytest.mark.skipif(Version(transformers.__version__) < Version("5.24"), reason="the library always copies")
def test_nothing_is_copied_behind_a_mask(grouped, monkeypatch) -> None:
    from transformers.integrations import sdpa_attention

    def refuse(*_):
        raise AssertionError("key-value heads were copied")

    monkeypatch.setattr(sdpa_attention, "repeat_kv", refuse)
    assert fed(grouped, [20], 3).shape == (1, 3, 50)


@pytest.mark.parametrize("before", [None, "0", "1"])
def test_a_persons_setting_comes_back_when_the_last_forward_ends(monkeypatch, before) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if before is not None:
        monkeypatch.setenv(NAME, before)
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with grouped_heads(CPU):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with pytest.raises(KeyError), grouped_heads(CPU):
        thread.start()
        assert inside.wait(10)
        raise KeyError
    assert os.environ[NAME] == "1"  # the other one still runs
    leave.set()
    thread.join()
    assert os.environ.get(NAME) == before


def test_other_devices_are_left_alone(monkeypatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    with grouped_heads(torch.device("cuda:0")):
        assert NAME not in os.environ
