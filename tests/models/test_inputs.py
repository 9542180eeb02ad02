"""Positions and masks sliced from something made once equal those made for the forward at hand."""

from __future__ import annotations

import pytest
import torch

from decoder.models.hf import CausalModel
from decoder.models.inputs import Inputs, attention_mask
from decoder.models.toy import toy_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("context", [None, 40])
@pytest.mark.parametrize("starts", [[0], [7], [38], [7, 7], [7, 3]])
def test_positions_count_on_from_each_row(starts: list[int], context: int | None) -> None:
    found = Inputs(context, CPU).positions(starts, 4)
    last = 10**9 if context is None else context - 1  # only padding can lie beyond
    assert found.tolist() == [[min(start + i, last) for i in range(4)] for start in starts]


def test_masks_are_those_made_for_the_forward_at_hand_however_far_a_text_grows() -> None:
    inputs = Inputs(None, CPU)
    for start in (1, 5, 511, 512, 513, 2000, 64):
        for count in (2, 3, 17, 32):
            mask = inputs.causal_mask(start, count)
            assert mask is not None
            assert torch.equal(mask, attention_mask([start], count, None, CPU)), (start, count)


def test_masks_share_their_memory() -> None:
    inputs = Inputs(None, CPU)
    one, other = inputs.causal_mask(100, 3), inputs.causal_mask(101, 5)
    assert one is not None and other is not None
    assert one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


@pytest.mark.parametrize(("start", "count"), [(9, 1), (0, 5), (9, 33)])
def test_where_the_library_needs_no_mask_or_makes_it_once_it_gets_none(start: int, count: int) -> None:
    assert Inputs(None, CPU).causal_mask(start, count) is None


@pytest.mark.parametrize(
    ("family", "options", "ours"),
    [
        ("llama", {}, True),
        ("llama", {"attn_implementation": "eager"}, False),  # adds its mask to the scores
        ("mistral", {"sliding_window": 8}, False),
        ("gpt2", {}, True),
    ],
)
def test_only_models_whose_layers_all_see_the_whole_past_get_the_plain_mask(family, options, ours) -> None:
    model = CausalModel(toy_model(family, seed=1, **options), "target")
    assert (model.masks([9], 3) is not None) == ours
    assert model.masks([9, 9], 1) is None


def test_a_banned_id_and_a_padded_head_stay_impossible() -> None:
    model = CausalModel(toy_model("llama", seed=1), "target", vocab_size=60, banned=[4, 7])
    logits = model.open(1, 8).feed(torch.tensor([[5, 6]]), [0])
    assert logits.shape[-1] == 60
    assert torch.isinf(logits[0, :, [4, 7]]).all() and torch.isfinite(logits).sum() == 2 * 58


def test_positions_beyond_those_held_are_made() -> None:
    inputs = Inputs(10_000_000, torch.device("cpu"))
    assert inputs.positions([9_999_990], 3).tolist() == [[9_999_990, 9_999_991, 9_999_992]]
    assert len(inputs._positions) < 100_000  # a context that is merely announced costs no memory
