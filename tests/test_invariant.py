"""`invariant=True`: one shape for every forward after the prefill, so that bfloat16 gives the same bits for every k."""

from __future__ import annotations

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.models.fixed import FixedWidthSession
from decoder.models.hf import CausalModel
from decoder.models.toy import noisy_copy, toy_model

PROMPT = [7, 33, 12, 50, 9, 41]
FAMILIES = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "gpt2": {"tie_word_embeddings": False},
}


def build(family: str, attention: str):
    wide = {"n_embd": 128} if family == "gpt2" else {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
    model = toy_model(family, seed=5, attn_implementation=attention, **wide, **FAMILIES[family]).to(torch.bfloat16)
    model.generation_config.eos_token_id = None
    return model


def logits_by_block(model, tokens: list[int], width: int, fixed: int) -> torch.Tensor:
    """Logits [n, V] after each token beyond the prompt, fed `width` tokens at a time."""
    target, limit = CausalModel(model, "target"), len(tokens) + 1
    session = FixedWidthSession.open(target, 1, limit, None, fixed) if fixed else target.open(1, limit)
    found = []
    with torch.inference_mode():
        session.feed(torch.tensor([tokens[: len(PROMPT)]]), [0])
        session.commit([len(PROMPT)])
        for start in range(len(PROMPT), len(tokens), width):
            block = tokens[start : start + width]
            found.append(session.feed(torch.tensor([block]), [start])[0])
            session.commit([start + len(block)])
    return torch.cat(found)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_equal_to_the_bit_whatever_the_block(family: str, attention: str) -> None:
    model = build(family, attention)
    tokens = [*PROMPT, *torch.randint(3, 60, (45,), generator=torch.Generator().manual_seed(2)).tolist()]
    one = logits_by_block(model, tokens, 1, 9)
    for width in (2, 5, 9):
        assert torch.equal(one, logits_by_block(model, tokens, width, 9)), f"blocks of {width}"
    free = logits_by_block(model, tokens, 1, 0)
    torch.testing.assert_close(one.float(), free.float(), atol=0.3, rtol=0.1)


def test_without_it_bits_do_differ() -> None:
    """Otherwise the option would be vacuous here: a block of tokens and one token at a time round differently."""
    tokens = [*PROMPT, *torch.randint(3, 60, (45,), generator=torch.Generator().manual_seed(2)).tolist()]
    equal: list[int] = []
    for dtype in (torch.float32, torch.bfloat16):
        for family in FAMILIES:
            model = build(family, "sdpa").to(dtype)
            one, five = (logits_by_block(model, tokens, width, 0) for width in (1, 5))
            torch.testing.assert_close(one.float(), five.float(), atol=0.3, rtol=0.1)
            equal.append(int((one == five).all(-1).sum()))
    assert min(equal) < 45, f"rows equal to the bit, of 45: {equal}"


@pytest.mark.parametrize("drafter", ["model", "ngram"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_texts_are_identical_for_every_k_and_drafter(attention: str, drafter: str) -> None:
    target = build("llama", attention)
    spec = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.03), drafter=drafter, temperature=0)
    options = {"max_new_tokens": 40, "eos_token_id": None, "invariant": True}
    for seed in range(2):
        prompt = torch.randint(3, 60, (5,), generator=torch.Generator().manual_seed(seed))
        plain = spec.generate_baseline(prompt, **options)
        for k in (1, 3, 8):
            assert spec.generate(prompt, k=k, **options).token_ids == plain.token_ids


def test_in_float32_it_equals_generate_up_to_the_context_limit(greedy) -> None:
    target = toy_model("gpt2", seed=5, n_positions=32, tie_word_embeddings=False)
    target.generation_config.eos_token_id = None
    spec = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.05), temperature=0)
    wanted = greedy(target, PROMPT, 26)
    prompts = [torch.tensor(PROMPT), torch.tensor([3])]
    for k in (0, 5, 8):
        results = spec.generate(prompts, k=k, max_length=32, invariant=True)
        assert list(results[0].token_ids) == wanted
        assert list(results[1].token_ids) == greedy(target, [3], 31)


def test_turns_may_mix_both_ways() -> None:
    target = toy_model("llama", seed=5)
    spec = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.05), temperature=0)
    first = spec.generate(torch.tensor(PROMPT), k=3, max_new_tokens=10, invariant=True, return_cache=True)
    prompt = torch.tensor([*PROMPT, *first.token_ids, 8])
    wanted = spec.generate(prompt, k=3, max_new_tokens=10).token_ids
    for flag in (False, True, False):
        got = spec.generate(prompt, k=3, max_new_tokens=10, invariant=flag, cache=first.cache)
        assert got.token_ids == wanted


def test_what_has_no_room_is_refused() -> None:
    spec = SpeculativeDecoder.from_models(toy_model("llama"), temperature=0)
    for k in (9, "auto"):
        with pytest.raises(ValueError, match=r"invariant=True serves draft lengths up to 8, not k="):
            spec.generate(torch.tensor(PROMPT), k=k, invariant=True)
    with pytest.raises(TypeError, match="invariant='yes' must be True or False"):
        spec.generate(torch.tensor(PROMPT), invariant="yes")
