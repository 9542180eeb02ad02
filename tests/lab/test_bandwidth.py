"""The limit that memory sets to plain decoding."""

from __future__ import annotations

import pytest
import torch

from decoder.models.toy import toy_model
from lab.bandwidth import copy_bandwidth, tokens_per_second_limit, weight_bytes


@pytest.mark.parametrize("tied", [True, False])
def test_weights_read_in_a_forward(tied: bool) -> None:
    model = toy_model("llama", tie_word_embeddings=tied)
    table = model.get_input_embeddings().weight.numel() * 4
    everything = sum(p.numel() * p.element_size() for p in model.parameters())
    assert weight_bytes(model) == (everything if tied else everything - table)
    assert tokens_per_second_limit(model, 10.0 * weight_bytes(model)) == pytest.approx(10.0)


def test_a_copy_has_a_bandwidth() -> None:
    assert 1e6 < copy_bandwidth(torch.device("cpu"), 1 << 20, repeats=3) < 1e13
