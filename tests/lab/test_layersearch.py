"""The search for layers: it promises what the papers' formula says, and finds the layers that do nothing."""

from __future__ import annotations

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.drafters.layerskip import LayerSkipDrafter
from decoder.models.toy import toy_model
from lab.layersearch import StepCosts, search_layers


def test_promise_is_the_papers_formula() -> None:
    """alpha 0.8, c = 0.1, verification as cheap as a step: k = 5 of theorem 3.8's curve."""
    costs = StepCosts(base_s=0.0, layer_s=0.1, verify_s=(1.0,) * 9)
    promise = costs.promise((0,), 0.8)
    by_hand = {k: (1 - 0.8 ** (k + 1)) / (1 - 0.8) / (0.1 * k + 1) for k in range(1, 9)}
    assert promise.k == max(by_hand, key=by_hand.__getitem__)
    assert promise.speedup == pytest.approx(max(by_hand.values()))


def test_search_finds_the_layers_that_do_nothing() -> None:
    """Layers 1 and 2 write nothing to the residual stream: without them the draft is the target."""
    model = toy_model("llama", seed=5, num_hidden_layers=4)
    with torch.no_grad():
        for layer in (1, 2):
            model.model.layers[layer].self_attn.o_proj.weight.zero_()
            model.model.layers[layer].mlp.down_proj.weight.zero_()
    spec = SpeculativeDecoder.from_models(model, temperature=1.0, top_p=1.0)
    found = search_layers(spec, [[1, 5, 9], [4, 4, 8]], new_tokens=12)
    trail = {promise.layers: promise for promise in found.trail}
    assert trail[(0, 3)].alpha == pytest.approx(1.0, abs=1e-4)
    assert min(trail, key=len) != (0, 3)  # it looked further
    assert found.best.speedup == max(promise.speedup for promise in trail.values())
    result = spec.generate([1, 5, 9], max_new_tokens=10, eos_token_id=None, drafter=LayerSkipDrafter((0, 3)))
    assert result.acceptance_rate == 1.0


def test_search_refuses_nonsense() -> None:
    spec = SpeculativeDecoder.from_models(toy_model("llama", seed=5, num_hidden_layers=4))
    with pytest.raises(ValueError, match="prompts="):
        search_layers(spec, [])
    with pytest.raises(ValueError, match="breadth=0"):
        search_layers(spec, [[1]], breadth=0)
