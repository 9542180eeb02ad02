"""Greedy parity with `generate(do_sample=False)` in float32, family by family.

The oracle is transformers' own greedy search over its own cache, one prompt at a time. The cases have teeth, and say
so: the oracle's texts vary, and the partly agreeing draft is rejected at once, accepted in part and accepted in full.
"""

from __future__ import annotations

import pytest
import torch

from decoder import SpeculativeDecoder
from decoder.models.toy import noisy_copy, toy_model

NEW = 20
LONG = [7, 33, 12, 50, 9, 41, 28, 60, 17, 5, 22, 36, 48]  # longer than every window of 8
PROMPTS = [LONG, [11], [4, 19, 44, 8, 15]]
UNTIED = {"tie_word_embeddings": False}  # a tied random model just repeats its input

# name -> (model_type, changes to the tiny configuration)
FAMILIES = {
    "llama": ("llama", {}),
    "mistral-window": ("mistral", {"sliding_window": 8}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "gemma2-window": ("gemma2", {"sliding_window": 8, **UNTIED}),
    "gemma3-window": (
        "gemma3_text",
        {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"], **UNTIED},
    ),
    "gpt2": ("gpt2", UNTIED),
    "gpt_neox": ("gpt_neox", {}),
    "opt": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32, **UNTIED}),
    "phi3": ("phi3", {}),
    "phi3-window": ("phi3", {"sliding_window": 8}),
    "stablelm": ("stablelm", {}),
    "starcoder2-window": ("starcoder2", {"sliding_window": 8, **UNTIED}),
    "olmo2": ("olmo2", {}),
    "cohere": ("cohere", UNTIED),
    "smollm3": ("smollm3", UNTIED),
    "granite": ("granite", UNTIED),
    "falcon-rotary": ("falcon", {"alibi": False, **UNTIED}),
    "falcon-alibi": ("falcon", {"alibi": True, **UNTIED}),
    "bloom": ("bloom", {"n_layer": 2, "n_head": 4, **UNTIED}),
}
EAGER_ONLY = {"gemma2-window", "bloom"}  # transformers has no other attention for them
CASES = [(name, how) for name in FAMILIES for how in ("sdpa", "eager") if not (how == "sdpa" and name in EAGER_ONLY)]


def build(name: str, attention: str):
    family, changes = FAMILIES[name]
    model = toy_model(family, seed=5, attn_implementation=attention, **changes)
    model.generation_config.eos_token_id = None
    return model


def fates(results) -> set[str]:
    return {fate for result in results for fate in result.fates}


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_greedy_equals_generate(name: str, attention: str, greedy) -> None:
    target = build(name, attention)
    wanted = [greedy(target, prompt, NEW) for prompt in PROMPTS]
    assert max(len(set(ids)) for ids in wanted) >= 6, "the oracle repeats itself: nothing could be told apart"

    partly = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.05), temperature=0)
    seen = []
    for k in range(9):
        prompt, ids = PROMPTS[k % 3], wanted[k % 3]
        result = partly.generate(torch.tensor(prompt), k=k, max_new_tokens=NEW, eos_token_id=None)
        assert list(result.token_ids) == ids, f"k={k}"
        seen.append(result)
    assert {"accepted", "recovered", "bonus"} <= fates(seen)
    assert any(step.accepted == 0 and step.drafted for result in seen for step in result.steps)

    batch = partly.generate([torch.tensor(p) for p in PROMPTS], k=3, max_new_tokens=NEW, eos_token_id=None)
    assert [list(result.token_ids) for result in batch] == wanted


@pytest.mark.parametrize("name", ["llama", "mistral-window", "gpt2", "gemma3-window", "falcon-alibi"])
def test_a_perfect_draft_is_always_accepted_and_an_unrelated_one_hardly_ever(name: str, greedy) -> None:
    target = build(name, "eager" if name in EAGER_ONLY else "sdpa")
    family, changes = FAMILIES[name]
    stranger = toy_model(family, seed=77, **changes)
    wanted = [greedy(target, prompt, NEW) for prompt in PROMPTS]
    prompts = [torch.tensor(prompt) for prompt in PROMPTS]
    for draft, low, high in ((target, 1.0, 1.0), (stranger, 0.0, 0.5)):
        decoder = SpeculativeDecoder.from_models(target, draft, temperature=0)
        for results in (
            decoder.generate(prompts, k=5, max_new_tokens=NEW, eos_token_id=None),
            [decoder.generate(prompt, k=8, max_new_tokens=NEW, eos_token_id=None) for prompt in prompts],
        ):
            assert [list(result.token_ids) for result in results] == wanted
            drafted = sum(result.num_draft_tokens for result in results)
            assert low <= sum(result.num_accepted_tokens for result in results) / drafted <= high


def test_rotary_embeddings_that_depend_on_the_length_end_where_they_would_change(greedy) -> None:
    """LongRoPE turns every key anew beyond its original length; cached keys would be wrong: the context ends there."""
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    target = toy_model("phi3", seed=5, rope_parameters=rope, original_max_position_embeddings=32)
    target.generation_config.eos_token_id = None
    decoder = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.05), temperature=0)
    result = decoder.generate(torch.tensor(LONG), k=6, max_new_tokens=60, eos_token_id=None)
    assert list(result.token_ids) == greedy(target, LONG, 32 - len(LONG))
    assert result.finish_reason == "length"


@pytest.mark.parametrize("name", ["llama", "mistral-window", "gpt2", "opt", "gemma3-window"])
def test_a_left_padded_tensor_equals_the_rows_alone(name: str, greedy) -> None:
    target = build(name, "sdpa")
    wanted = [greedy(target, prompt, NEW) for prompt in PROMPTS]
    width = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in PROMPTS])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS])
    decoder = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.05), temperature=0)
    results = decoder.generate(ids, attention_mask=mask, k=4, max_new_tokens=NEW, eos_token_id=None)
    assert [list(result.token_ids) for result in results] == wanted


def test_rows_drop_out_of_a_batch_at_their_own_length(greedy) -> None:
    """EOS ends the rows at different rounds; the others go on as if alone, and the dropped ones cost nothing more."""
    target = build("llama", "sdpa")
    wanted = [greedy(target, prompt, NEW) for prompt in PROMPTS]
    eos = [wanted[0][3], wanted[1][9]]
    cut = []
    for ids in wanted:
        end = next((i for i, token in enumerate(ids) if token in eos), NEW - 1)
        cut.append(ids[: end + 1])
    assert len({len(ids) for ids in cut}) >= 2
    decoder = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.05), temperature=0)
    results = decoder.generate([torch.tensor(p) for p in PROMPTS], k=3, max_new_tokens=NEW, eos_token_id=eos)
    assert [list(result.token_ids) for result in results] == cut
    assert len({result.num_iterations for result in results}) >= 2


def near_tie(model, prompt: list[int], mine: list[int], other: list[int]) -> tuple[float, float]:
    """(gap between the two best float32 logits at the first difference, rounding step of bfloat16 there)."""
    at = next(i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + mine[:at]])).logits[0, -1].float()
    best = logits.topk(2).values
    return float(best[0] - best[1]), float(best[0].abs()) * 2.0**-7


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_in_bfloat16_texts_part_only_at_near_ties(family: str, greedy) -> None:
    """A forward over k + 1 tokens rounds differently from one over a single token; nothing else may differ.

    The allowance is four rounding steps of the best logit: each of the two layers adds a few roundings of its own.
    """
    changes = UNTIED if family == "gpt2" else {}
    exact = toy_model(family, seed=5, **changes)
    target = toy_model(family, seed=5, **changes).to(torch.bfloat16)
    target.generation_config.eos_token_id = None
    exact.load_state_dict(target.float().state_dict())
    target = target.to(torch.bfloat16)
    decoder = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.05), temperature=0)
    same = 0
    for seed in range(6):
        prompt = torch.randint(3, 60, (6,), generator=torch.Generator().manual_seed(seed)).tolist()
        wanted = greedy(target, prompt, NEW)
        for k in (2, 5):
            mine = list(decoder.generate(torch.tensor(prompt), k=k, max_new_tokens=NEW, eos_token_id=None).token_ids)
            if mine == wanted:
                same += 1
                continue
            gap, step = near_tie(exact, prompt, mine, wanted)
            assert gap <= 4 * step, f"prompt {seed}, k={k}: texts part at a gap of {gap}, far above rounding ({step})"
    assert same >= 6, "almost every text differs: this is no rounding"


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("float32", "float16"), ("float64", "float32")])
def test_a_draft_in_another_dtype_changes_nothing(dtypes: tuple[str, str], greedy) -> None:
    first, second = (getattr(torch, name) for name in dtypes)
    target = build("llama", "sdpa").to(first)
    draft = noisy_copy(target, 0.05).to(second)
    decoder = SpeculativeDecoder.from_models(target, draft, temperature=0)
    for prompt in PROMPTS:
        result = decoder.generate(torch.tensor(prompt), k=4, max_new_tokens=NEW, eos_token_id=None)
        assert list(result.token_ids) == greedy(target, prompt, NEW)
        assert result.num_accepted_tokens > 0
    sampled = decoder.generate(torch.tensor(LONG), k=4, temperature=0.8, seed=1, max_new_tokens=NEW, eos_token_id=None)
    assert len(sampled.token_ids) == NEW
