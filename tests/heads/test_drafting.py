"""A head's run: tokens that went by unread leave a hole that no later token sees; sketches tell targets apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from decoder.heads import FeatureHead
from decoder.heads.config import config_for
from decoder.heads.drafting import HeadModel
from decoder.heads.fingerprint import SAME, likeness, sketch
from decoder.heads.store import load_own, save_head
from decoder.models.cache import PositionCache
from decoder.models.features import FeatureTape
from decoder.models.toy import noisy_copy, toy_model


@pytest.fixture
def target() -> Any:
    return toy_model("llama", seed=0, vocab_size=16)


@pytest.fixture
def head(target: Any) -> FeatureHead:
    torch.manual_seed(1)
    made = FeatureHead(config_for(target)).borrow(target)
    for parameter in made.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.4)
    return made


@torch.no_grad()
def test_a_hole_is_seen_by_nobody(head: FeatureHead) -> None:
    """Tokens 1 ... 3 read, those of features 3 ... 5 not, then three more: as if the text had no keys in between."""
    model = HeadModel(head, 16, None, True)
    tape = FeatureTape([])
    session = model.open(1, 32, tape=tape)
    tokens = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12, 13, 14]])
    width = head.config.target.hidden_size * len(head.config.feature_layers)
    states = torch.randn(1, 9, width)
    tape.add([0], states[:, :3])
    session.catch_up()
    session.feed(tokens[:, 1:4], [1], [2])
    session.commit([4])
    tape.add([6], states[:, 6:])
    session.catch_up()
    found = session.feed(tokens[:, 7:10], [7], [2])
    assert session.cache.holes == [[(3, 6)]]

    kept = torch.tensor([0, 1, 2, 6, 7, 8])  # slots with a key
    cache = PositionCache(1, 1, 32)
    cache.place([0], 6)
    features = head.features(states)[:, kept]
    hidden = head(tokens[:, kept + 1], features, kept[None], None, cache.layers[0])
    torch.testing.assert_close(found, head.logits(hidden[:, -1:]), rtol=1e-4, atol=1e-5)

    session.commit([5])  # back into the hole
    assert session.cache.holes == [[(3, 4)]] and session.lengths == [5]


def test_the_tape_takes_the_later_of_two_forwards() -> None:
    tape = FeatureTape([])
    first, second = torch.arange(10.0).view(2, 5, 1), torch.arange(100.0, 104.0).view(2, 2, 1)
    tape.add([3, 4], first)
    tape.add([6, 5], second)  # of row 1 all but one position of the first forward were rejected
    assert tape.begins == [3, 4]
    found = tape.read([4, 4], [8, 7])
    assert found[0, :, 0].tolist() == [1, 2, 100, 101]
    assert found[1, :3, 0].tolist() == [5, 102, 103]


def test_sketches_know_a_rounded_model_and_no_other(target: Any) -> None:
    own = sketch(target)
    rounded = toy_model("llama", seed=0, vocab_size=16).to(torch.bfloat16)
    assert likeness(own, sketch(rounded)) > 0.99 > SAME
    assert likeness(own, sketch(noisy_copy(target, 0.1))) > SAME
    assert likeness(own, sketch(toy_model("llama", seed=1, vocab_size=16))) < 0.5
    assert likeness(own, torch.zeros(0)) == 1


def test_a_head_on_disk_is_the_head(head: FeatureHead, tmp_path: Path) -> None:
    head.target_sketch = torch.randn(3, 4)
    save_head(head, tmp_path, torch.float32)
    again = load_own(tmp_path)
    assert again.config == head.config
    for name, tensor in head.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert not any("embed" in name or "lm_head" in name for name in again.state_dict())
