"""Cache truth: after every round the cached logits are the uncached ones, for target and draft.

A stale draft cache only lowers acceptance, so no test of the emitted law sees it; this one looks at the states.
"""

from __future__ import annotations

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.asked.request import Request, RowRequest
from decoder.controllers import FixedLength
from decoder.drafters import ModelDrafter
from decoder.generation import Generation, Run
from decoder.models.cache import PositionCache
from decoder.models.hf import CausalModel, CausalSession
from decoder.models.inputs import attention_mask
from decoder.models.toy import noisy_copy, toy_model
from decoder.types import Limits, SamplingParams

PROMPTS = [[7, 33, 12, 50, 9, 41, 28, 60, 17, 5, 22], [11], [4, 19, 44, 8]]
FAMILIES = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "gpt2": {"tie_word_embeddings": False},
    "gemma3_text": {
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "tie_word_embeddings": False,
    },
}


def held_keys(cache: PositionCache, row: int) -> list[torch.Tensor]:
    """Keys and values of the committed positions of one row, per layer."""
    length = cache.lengths[row]
    return [part[row, :, :length] for layer in cache.layers for part in (layer.keys, layer.values)]


def fresh_keys(model, tokens: list[int]) -> list[torch.Tensor]:
    """The same from one forward over the whole text with transformers' own cache."""
    with torch.no_grad():
        out = model(torch.tensor([tokens]), use_cache=True)
    cache = out["cache"] if "cache" in out else out["past_key_values"]
    return [part[0] for layer in cache.layers for part in (layer.keys, layer.values)]


def check_states(session, model, contexts: list[list[int]]) -> None:
    for row, context in enumerate(contexts):
        length = session.cache.lengths[row]
        assert length <= len(context)
        window = getattr(model.config, "sliding_window", None)
        fresh = fresh_keys(model, context[:length]) if length else []
        for mine, true in zip(held_keys(session.cache, row), fresh, strict=False):
            if window is not None and true.shape[1] < mine.shape[1]:
                mine = mine[:, -true.shape[1] :]  # the library keeps the window only
            torch.testing.assert_close(mine, true, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("family", FAMILIES)
def test_both_caches_hold_the_truth_after_every_round(family: str, temperature: float) -> None:
    target = toy_model(family, seed=5, **FAMILIES[family])
    draft = noisy_copy(target, 0.05)
    request = Request(
        rows=tuple(
            RowRequest(
                tokens=prompt,
                params=SamplingParams(temperature, top_p=1.0),
                limits=Limits(14, len(prompt) + 14),
                seed=3,
                stream=row,
            )
            for row, prompt in enumerate(PROMPTS)
        ),
        many=True,
        k=4,
    )
    models = CausalModel(target, "target"), CausalModel(draft, "draft")
    generation = Generation(Run(models[0], ModelDrafter(models[1]), FixedLength(4)), request)
    fates = set()
    for step in generation.steps():
        live = [part.row for part in step.rows if part.finish_reason is None]
        contexts = [generation.rows[row].tokens for row in live]
        fates |= {(part.accepted, len(part.drafted)) for part in step.rows}
        if not live:
            continue
        parts = generation._parts
        assert parts.target.lengths == [len(context) - 1 for context in contexts]
        check_states(parts.target, target, contexts)
        check_states(parts.drafter.session, draft, contexts)
    assert any(accepted == drafted > 0 for accepted, drafted in fates), "no full acceptance was seen"
    assert any(accepted < drafted for accepted, drafted in fates), "no rejection was seen"


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_logits_equal_uncached_ones_after_a_rollback(family: str) -> None:
    model = toy_model(family, seed=5, **FAMILIES[family])
    session = CausalModel(model, "target").open(2, 40)
    truth = [[7, 33, 12, 50, 9, 41, 28, 60, 17, 5], [3, 8, 44, 21, 19, 6, 50, 2, 13, 9]]
    with torch.inference_mode():
        session.feed(torch.tensor([truth[0][:5], [*truth[1][:3], 0, 0]]), [0, 0])
        session.commit([5, 3])
        session.feed(torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4]]), [5, 3])  # a draft that is thrown away
        session.commit([5, 3])
        logits = session.feed(torch.tensor([truth[0][5:9], truth[1][3:7]]), [5, 3])
        for row, (text, start) in enumerate(zip(truth, (5, 3), strict=True)):
            whole = model(torch.tensor([text[: start + 4]])).logits[0, start:]
            torch.testing.assert_close(logits[row], whole, atol=1e-4, rtol=1e-4)


class Shadow:
    """Beside every cached forward, an uncached one over the tokens that now stand at those positions.

    It wraps `CausalSession.feed`, so that whatever a session is told, by whichever drafter, is what is checked.
    """

    def __init__(self, monkeypatch) -> None:
        self.checked = {"target": 0, "draft": 0}
        self.original = CausalSession.feed, CausalSession.select
        shadow = self
        monkeypatch.setattr(CausalSession, "feed", lambda *args: shadow.feed(*args))
        monkeypatch.setattr(CausalSession, "select", lambda *args: shadow.select(*args))

    def feed(self, session, tokens, starts, at=None):
        logits = self.original[0](session, tokens, starts, at)
        rows = session.__dict__.setdefault("shadow", [[] for _ in starts])
        for b, start in enumerate(starts):
            rows[b][start:] = tokens[b].tolist()
            truth = session.model.model(torch.tensor([rows[b]]), use_cache=False).logits[0, start:]
            wanted = truth if at is None else truth[at[b]][None]
            torch.testing.assert_close(logits[b], wanted, atol=1e-4, rtol=1e-4)
            self.checked[session.model.role] += len(wanted)
        return logits

    def select(self, session, rows):
        if "shadow" in session.__dict__:  # a draft that reads its prompt late may lose rows before it has read any
            session.shadow = [session.shadow[row] for row in rows]
        self.original[1](session, rows)


@pytest.mark.parametrize("drafter", ["model", "ngram", "recycle"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_cached_logit_equals_the_uncached_one(family: str, drafter: str, monkeypatch) -> None:
    """Whole generations of ragged batches whose rows end apart, for target and draft, greedy and sampled."""
    target = toy_model(family, seed=5, **FAMILIES[family])
    target.generation_config.eos_token_id = None
    spec = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.05), drafter=drafter, seed=3)
    eos = spec.generate(PROMPTS[0], k=0, max_new_tokens=9, temperature=0).token_ids[-1]
    shadow = Shadow(monkeypatch)
    for k, temperature in ((1, 0.9), (4, 0.0), (6, 0.9), ("auto", 0.0)):
        prompts = [torch.tensor(prompt) for prompt in PROMPTS]
        results = spec.generate(prompts, k=k, temperature=temperature, max_new_tokens=12, eos_token_id=[eos, 16])
        assert len({len(result.token_ids) for result in results}) > 1 or temperature, "no row ended before the others"
    assert shadow.checked["target"] > 60
    assert drafter != "model" or shadow.checked["draft"] > 40


def test_a_hole_in_the_cache_is_caught() -> None:
    cache = PositionCache(1, 1, 32)
    cache.place([0], 4)
    cache.commit([2])
    with pytest.raises(AssertionError, match="hole"):
        cache.place([3], 1)
    with pytest.raises(AssertionError, match="cannot commit"):
        cache.commit([3])


def test_the_mask_is_causal_and_windowed() -> None:
    mask = attention_mask([2, 5], 2, 3, torch.device("cpu"))
    assert mask.shape == (2, 1, 2, 7)
    assert mask[0, 0].int().tolist() == [[1, 1, 1, 0, 0, 0, 0], [0, 1, 1, 1, 0, 0, 0]]
    assert mask[1, 0].int().tolist() == [[0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1]]


@pytest.mark.parametrize("length", [64, 200])
def test_the_buffers_are_at_most_twice_what_the_text_needs(length: int) -> None:
    model = toy_model("llama", max_position_embeddings=512)
    session = CausalModel(model, "target").open(1, 512)
    config = model.config
    with torch.inference_mode():
        for position in range(length):
            session.feed(torch.tensor([[5]]), [position])
            session.commit([position + 1])
    needed = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4 * length
    assert needed <= session.cache.nbytes <= 2 * needed


def test_buffers_never_exceed_what_the_call_may_need() -> None:
    session = CausalModel(toy_model("llama"), "target").open(1, 20)
    with torch.inference_mode():
        session.feed(torch.tensor([[5] * 10]), [0])
    assert session.cache.layers[0].keys.shape[2] == 20


def test_growing_keeps_what_was_written() -> None:
    model = toy_model("llama", max_position_embeddings=512)
    session = CausalModel(model, "target").open(1, 400)
    tokens = torch.randint(3, 60, (1, 300), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        session.feed(tokens[:, :4], [0])
        session.commit([4])
        capacity = session.cache.layers[0].keys.shape[2]
        logits = session.feed(tokens[:, 4:], [4])
        assert session.cache.layers[0].keys.shape[2] > capacity
        torch.testing.assert_close(logits, model(tokens).logits[:, 4:], atol=1e-4, rtol=1e-4)
