"""A feature head drafts: exact whatever it says; features of rejected tokens are replaced; q is what was drawn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drafter_parity import PROMPTS, check_parity, library_greedy, small_target

from decoder import SpeculativeDecoder
from decoder.drafters import EagleDrafter
from decoder.heads import FeatureHead
from decoder.heads.config import config_for
from decoder.heads.store import save_head
from decoder.models.toy import toy_model


def random_head(target: Any, seed: int = 0, outputs: int = 0, joins: str = "input") -> FeatureHead:
    """Guesses at random: nearly everything it drafts is rejected."""
    torch.manual_seed(seed)
    head = FeatureHead(config_for(target, outputs, joins=joins))
    if outputs:
        head.draft_ids = torch.randperm(head.config.target.vocab_size)[:outputs].sort().values
    for parameter in head.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return head


def successor(model: Any) -> list[int]:
    """A target's next token as a function of the last one only, where one can be had: its greedy choice after one."""
    return [library_greedy(model, [token], 1)[0] for token in range(model.config.vocab_size)]


def bigram_target(seed: int = 0) -> Any:
    """A Llama whose layers do nothing: the next token is a function of the last."""
    model = small_target(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
    return model


def knowing_head(target: Any) -> FeatureHead:
    """Knows a bigram target: the embedding goes straight to the output matrix."""
    head = random_head(target)
    size = head.config.hidden_size
    with torch.no_grad():
        head.attention.o_proj.weight.zero_()
        head.mlp.down_proj.weight.zero_()
        head.join.weight.zero_()
        head.join.weight[:, :size] = torch.eye(size)
        head.norm.weight.copy_(target.model.norm.weight)
    return head


@pytest.mark.parametrize("joins", ["input", "attention"])
def test_greedy_tokens_are_the_targets_with_an_untrained_head(joins: str) -> None:
    class Recipe(EagleDrafter):
        def bind(self, target: Any, draft: Any) -> EagleDrafter:
            return EagleDrafter(random_head(target.model, joins=joins)).bind(target, draft)

    fates = check_parity(Recipe())
    assert fates["none"] and fates["part"]


def test_a_head_that_knows_is_accepted_whole() -> None:
    target = bigram_target()
    decoder = SpeculativeDecoder.from_models(target, head=knowing_head(target), temperature=0)
    result = decoder.generate(list(PROMPTS[0]), max_new_tokens=30, k=4)
    assert list(result.token_ids) == library_greedy(target, PROMPTS[0], 30)
    assert all(step.accepted == len(step.drafted) for step in result.steps)
    assert result.tokens_per_iteration > 4


@pytest.mark.parametrize("family", ["gpt2", "qwen2", "gemma2", "phi3"])
def test_other_families(family: str) -> None:
    target = toy_model(family, seed=1, vocab_size=16)
    target.generation_config.eos_token_id = None
    decoder = SpeculativeDecoder.from_models(target, head=random_head(target, 2), temperature=0)
    wanted = [library_greedy(target, prompt, 20) for prompt in PROMPTS]
    assert [list(each.token_ids) for each in decoder.generate([list(p) for p in PROMPTS], max_new_tokens=20)] == wanted
    assert [list(decoder.generate(list(p), max_new_tokens=20).token_ids) for p in PROMPTS] == wanted


def watched_laws(target: Any, head: FeatureHead, prompt: list[int], new: int) -> list[tuple[list[int], torch.Tensor]]:
    """(context, q of the first drafted token) of every round of a sampled run."""
    seen: list[tuple[list[int], torch.Tensor]] = []

    class Watched(EagleDrafter):
        def propose(self, contexts: Any, counts: Any) -> Any:
            draft = super().propose(contexts, counts)
            for b, context in enumerate(contexts):
                if draft.counts[b] and draft.probs is not None:
                    seen.append((list(context), draft.probs[b].clone()))
            return draft

    decoder = SpeculativeDecoder.from_models(target, drafter=Watched(head), temperature=1.0, top_p=1.0, seed=5)
    decoder.generate(prompt, max_new_tokens=new, k=3)
    return seen


@torch.no_grad()
def uncached_law(target: Any, head: FeatureHead, context: list[int]) -> torch.Tensor:
    """q of the first token drafted on a context, from one forward of the target over all of it."""
    ids = torch.tensor([context])
    states = target(ids, output_hidden_states=True).hidden_states
    last = head.config.target.layers
    assert last not in head.config.feature_layers, "transformers' last hidden state is behind the norm"
    features = head.features(torch.cat([states[layer] for layer in head.config.feature_layers], -1))[:, :-1]
    embedded = head.embed(ids[:, 1:])
    read, stream = head.enter(embedded, features)
    turn = head.turn(torch.arange(len(context) - 1)[None])
    keys, values = head.attention.keys_and_values(read, turn)
    attended = torch.nn.functional.scaled_dot_product_attention(
        head.attention.queries(read, turn), keys, values, is_causal=True, enable_gqa=True
    )
    hidden = head.leave(head.attention.output(attended), stream)[:, -1]
    full = torch.full((head.config.target.vocab_size,), -torch.inf)
    full[head.draft_ids] = head.logits(hidden)[0]
    return torch.softmax(full, -1)


@pytest.mark.parametrize("outputs", [0, 9])
def test_features_of_rejected_tokens_are_replaced(outputs: int) -> None:
    """After any history of accepted and rejected drafts, q is that of the committed text alone."""
    target = toy_model("llama", seed=0, vocab_size=16, num_hidden_layers=3)
    target.generation_config.eos_token_id = None
    torch.manual_seed(3)
    config = config_for(target, outputs, layers=(1, 2))
    head = FeatureHead(config)
    if outputs:
        head.draft_ids = torch.randperm(16)[:outputs].sort().values
    laws = watched_laws(target, head, [5, 6, 7, 8], 40)
    assert len(laws) > 10
    for context, q in laws:
        torch.testing.assert_close(q[0], uncached_law(target, head, context), rtol=1e-4, atol=1e-5)
        if outputs:
            outside = [token for token in range(16) if token not in head.draft_ids.tolist()]
            assert q[:, outside].abs().max() == 0


def test_silent_rounds_are_read_later() -> None:
    """Rounds without a draft leave their features on the tape."""
    target = toy_model("llama", seed=0, vocab_size=16, num_hidden_layers=3)
    target.generation_config.eos_token_id = None
    torch.manual_seed(3)
    head = FeatureHead(config_for(target, layers=(1, 2)))
    seen = []

    class Rarely(EagleDrafter):
        def propose(self, contexts: Any, counts: Any) -> Any:
            if len(contexts[0]) % 3:
                return super().propose(contexts, [0] * len(counts))
            draft = super().propose(contexts, counts)
            seen.append((list(contexts[0]), draft.probs[0, 0].clone()))
            return draft

    decoder = SpeculativeDecoder.from_models(target, drafter=Rarely(head), temperature=1.0, top_p=1.0, seed=5)
    decoder.generate([5, 6, 7, 8], max_new_tokens=40, k=3)
    assert len(seen) > 5
    for context, q in seen:
        torch.testing.assert_close(q, uncached_law(target, head, context), rtol=1e-4, atol=1e-5)


def test_a_kept_cache_is_continued() -> None:
    target = small_target()
    decoder = SpeculativeDecoder.from_models(target, head=random_head(target), temperature=0)
    first = decoder.generate([5, 6, 7, 8], max_new_tokens=12, return_cache=True)
    prompt = [5, 6, 7, 8, *first.token_ids, 3, 4]
    second = decoder.generate(prompt, max_new_tokens=12, cache=first.cache, return_cache=True)
    assert list(second.token_ids) == library_greedy(target, prompt, 12)
    back = [5, 6, 7, 9, 9]
    third = decoder.generate(back, max_new_tokens=12, cache=second.cache)
    assert list(third.token_ids) == library_greedy(target, back, 12)


def test_streams_and_auto_are_exact() -> None:
    target = bigram_target(1)
    decoder = SpeculativeDecoder.from_models(target, head=knowing_head(target), temperature=0)
    wanted = library_greedy(target, PROMPTS[0], 25)
    for k in (2, "auto"):
        assert list(decoder.generate(list(PROMPTS[0]), max_new_tokens=25, k=k).token_ids) == wanted


def test_sampled_text_keeps_the_targets_distribution() -> None:
    """The first two tokens of many seeds against the target's own probabilities."""
    target = toy_model("llama", seed=0, vocab_size=8)
    target.generation_config.eos_token_id = None
    decoder = SpeculativeDecoder.from_models(target, head=random_head(target, 1, outputs=5), temperature=1.0, top_p=1.0)
    results = decoder.generate([[5, 6, 7]] * 3000, max_new_tokens=3, k=2, seed=1, batch_size=500)
    third = torch.bincount(torch.tensor([each.token_ids[1] for each in results]), minlength=8) / 3000
    with torch.no_grad():
        p = torch.softmax(target(torch.tensor([[5, 6, 7]])).logits[0, -1], -1)
        ids = torch.tensor([[5, 6, 7, x] for x in range(8)])
        second = (p[:, None] * torch.softmax(target(ids).logits[:, -1], -1)).sum(0)
    assert (third - second).abs().sum() / 2 < 0.04


def test_a_head_is_refused_where_it_does_not_belong(tmp_path: Any) -> None:
    target, other = small_target(0), small_target(1)
    from decoder.heads.fingerprint import sketch

    head = random_head(target)
    head.target_sketch = sketch(target)
    save_head(head, tmp_path / "own")
    SpeculativeDecoder.from_models(target, head=tmp_path / "own")
    with pytest.raises(ValueError, match="other weights"):
        SpeculativeDecoder.from_models(other, head=tmp_path / "own")
    with pytest.raises(ValueError, match="vocab_size=16"):
        SpeculativeDecoder.from_models(toy_model("llama", seed=0, vocab_size=24), head=tmp_path / "own")
    with pytest.raises(ValueError, match="no packaged head"):
        SpeculativeDecoder.from_models(target, drafter="eagle")
    with pytest.raises(ValueError, match=r"head\.json"):
        SpeculativeDecoder.from_models(target, head=tmp_path)
    with pytest.raises(ValueError, match="drafter='eagle'"):
        SpeculativeDecoder.from_models(target, head=head, drafter="ngram")
