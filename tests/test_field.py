"""From the field: what users of other implementations have reported, each as a test.

Covered elsewhere: EOS and stop strings token by token, turns and caches, processors, streamers, the context limit
(test_api.py), stateful models (models/test_loading.py), sliding windows (models/test_parity.py).
"""

from __future__ import annotations

import collections

import pytest
import torch

from decoder import Draft, Drafter, SpeculativeDecoder
from decoder.models.hf import CausalModel
from decoder.models.toy import noisy_copy, toy_model

PROMPT = [7, 33, 12, 50, 9]


class FixedLaw(torch.nn.Module):
    """A head whose law is the same after every token."""

    def __init__(self, probs: list[float]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(len(probs), 1))
        self.logits = torch.tensor(probs).log()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(*hidden.shape[:-1], -1).clone()


def fixed(probs: list[float]):
    model = toy_model("llama", vocab_size=len(probs), bos_token_id=0, eos_token_id=None, pad_token_id=None)
    model.lm_head = FixedLaw(probs)
    return model


@pytest.mark.parametrize("how", ["model", "greedy-model", "verifier-token", "verifier-match", "constant"])
def test_a_greedy_draft_is_not_treated_as_if_it_had_sampled(how: str) -> None:
    """p = [.6, .4], q = [.8, .2]. Taking q for the law of an argmax draft would give [.75, .25] or so.

    9,000 tokens: a share off by 0.02 lies 3.9 standard errors away; a false alarm at 3.5 comes once in 2,000 runs, and
    the seed is fixed.
    """
    from decoder.drafters import ModelDrafter

    target, draft = fixed([0.6, 0.4]), fixed([0.8, 0.2])

    class Constant(Drafter):
        name = "constant"

        def propose(self, contexts, counts):
            width = max(counts)
            return Draft(torch.zeros(len(contexts), width, dtype=torch.long), list(counts))

    drafter, verifier = None, "auto"
    if how == "greedy-model":
        drafter = ModelDrafter(CausalModel(draft, "draft"), sample=False)
    elif how == "constant":
        drafter = Constant()
    elif how.startswith("verifier"):
        verifier = how.partition("-")[2]
    spec = SpeculativeDecoder.from_models(target, draft, top_p=1.0, drafter=drafter, verifier=verifier, seed=5)
    results = spec.generate([torch.tensor([0])] * 90, k=3, max_new_tokens=100, batch_size=90)
    ids = [token for result in results for token in result.token_ids]
    share = ids.count(0) / len(ids)
    assert abs(share - 0.6) < 3.5 * (0.6 * 0.4 / len(ids)) ** 0.5
    pairs = collections.Counter(
        (first, second) for r in results for first, second in zip(r.token_ids[::2], r.token_ids[1::2], strict=True)
    )
    total = sum(pairs.values())
    for (first, second), count in pairs.items():
        chance = (0.6, 0.4)[first] * (0.6, 0.4)[second]
        assert abs(count / total - chance) < 4 * (chance * (1 - chance) / total) ** 0.5, (
            "tokens of a block hang together"
        )


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.8, "top_p": 1.0},
        {"temperature": 1.7, "top_p": 1.0, "top_k": 8},
        {"temperature": 0.4, "top_p": 0.7},
    ],
)
@pytest.mark.parametrize("verifier", ["token", "block"])
def test_the_drafts_temperature_is_applied_exactly_once(options, verifier: str) -> None:
    model = toy_model("llama", seed=5)
    spec = SpeculativeDecoder.from_models(model, model, verifier=verifier, seed=1, **options)
    result = spec.generate(torch.tensor(PROMPT), k=4, max_new_tokens=60, eos_token_id=None)
    assert result.acceptance_rate == 1.0, "draft and target are the same law"


def test_acceptance_is_the_overlap_of_the_laws() -> None:
    """Token verification accepts with probability sum min(p, q) = 0.8, independently; 6,000 tested positions."""
    spec = SpeculativeDecoder.from_models(fixed([0.6, 0.4]), fixed([0.8, 0.2]), top_p=1.0, verifier="token", seed=2)
    results = spec.generate([torch.tensor([0])] * 60, k=3, max_new_tokens=100, batch_size=60)
    tested = sum(step.tested for r in results for step in r.steps)
    accepted = sum(r.num_accepted_tokens for r in results)
    assert tested > 4000
    assert abs(accepted / tested - 0.8) < 3.5 * (0.8 * 0.2 / tested) ** 0.5


# ---- vocabularies ----


def resized(model, rows: int, seed: int = 0):
    """The same model with `rows` rows in embedding and head; new head rows are made the likeliest of all."""
    import copy

    twin = copy.deepcopy(model)
    old_head, old_in = twin.lm_head.weight.data, twin.get_input_embeddings().weight.data
    width, kept = old_head.shape[1], min(rows, old_head.shape[0])
    head, embedding = torch.nn.Linear(width, rows, bias=True), torch.nn.Embedding(rows, width)
    head.weight.data.normal_(generator=torch.Generator().manual_seed(seed))
    head.bias.data.zero_()
    head.weight.data[:kept] = old_head[:kept]
    head.bias.data[kept:] = 50.0  # padding rows that would win every time
    embedding.weight.data[:kept] = old_in[:kept]
    twin.lm_head = head
    twin.set_input_embeddings(embedding)
    twin.config.vocab_size = rows
    return twin


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("heads", [(8, 0), (0, 8), (8, 16), (16, 8), (-8, 0), (0, -8), (-8, 8), (8, -8)])
def test_no_id_beyond_the_tokenizer_is_emitted_whatever_the_heads(tokenizer, heads, temperature: float) -> None:
    """Padding rows of the head (151,936 and 152,064 rows for one tokenizer) are the likeliest tokens here."""
    size = len(tokenizer)
    base = toy_model("llama", seed=3, vocab_size=size)
    target, draft = resized(base, size + heads[0]), resized(noisy_copy(base, 0.05), size + heads[1])
    spec = SpeculativeDecoder.from_models(
        target, draft, tokenizer=tokenizer, temperature=temperature, top_p=1.0, seed=1
    )
    allowed = min(size, size + heads[0])
    prompts = [torch.tensor([5, 9, 40]), torch.tensor([33])]
    results = spec.generate(prompts, k=4, max_new_tokens=24, eos_token_id=None)
    assert all(token < allowed for result in results for token in result.token_ids)
    assert sum(result.num_accepted_tokens for result in results) > 0
    if temperature == 0:
        with torch.no_grad():
            ids = torch.tensor([list(results[0].prompt_token_ids)])
            for token in results[0].token_ids:
                assert token == int(target(ids).logits[0, -1, :allowed].argmax())
                ids = torch.cat([ids, torch.tensor([[token]])], dim=1)


def test_ids_missing_inside_the_tokenizers_range_are_never_emitted(tokenizer) -> None:
    class Gappy:
        """The tokenizer without ids 10 ... 40."""

        eos_token_id, bos_token_id, pad_token_id = None, None, None

        def get_vocab(self):
            return {token: i for token, i in tokenizer.get_vocab().items() if not 10 <= i <= 40}

        def decode(self, ids, **kwargs):
            return tokenizer.decode(ids, **kwargs)

    model = toy_model("llama", seed=3, vocab_size=len(tokenizer))
    spec = SpeculativeDecoder.from_models(model, noisy_copy(model, 0.05), tokenizer=Gappy(), temperature=1.5, top_p=1.0)
    results = spec.generate([torch.tensor([5])] * 8, k=3, max_new_tokens=40, eos_token_id=None)
    ids = {token for result in results for token in result.token_ids}
    assert len(ids) > 60 and not ids & set(range(10, 41))


def test_a_prompt_with_ids_beyond_the_tokenizer_does_not_break_the_lookup(tokenizer) -> None:
    """The embedding has rows for them, the law has not: prompt lookup would propose an id without a probability."""
    size = len(tokenizer)
    target = resized(toy_model("llama", seed=3, vocab_size=size), size + 8)
    for temperature in (0.0, 1.0):
        spec = SpeculativeDecoder.from_models(
            target, tokenizer=tokenizer, drafter="ngram", temperature=temperature, seed=1
        )
        odd = torch.tensor([5, size + 3, size + 4, 5, size + 3, size + 4, 5])
        with_draft = spec.generate(odd, k=5, max_new_tokens=20, eos_token_id=None)
        assert all(token < size for token in with_draft.token_ids)
        if temperature == 0:
            plain = spec.generate_baseline(odd, max_new_tokens=20, eos_token_id=None)
            assert with_draft.token_ids == plain.token_ids


BY_ID = [{"repetition_penalty": 1.7}, {"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 2}]


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("options", BY_ID, ids=str)
def test_processors_find_ids_beyond_the_tokenizer_impossible(tokenizer, options, k: int) -> None:
    """They look up the score of each id of the prompt, and the law has none for these."""
    size = len(tokenizer)
    target = resized(toy_model("llama", seed=3, vocab_size=size), size + 8)
    spec = SpeculativeDecoder.from_models(target, tokenizer=tokenizer, drafter="ngram", temperature=0)
    odd = torch.tensor([5, size + 3, size + 4, 5, size + 3, size + 4, 5])
    found = spec.generate(odd, k=k, max_new_tokens=20, eos_token_id=None, **options)
    assert max(found.token_ids) < size
    assert found.token_ids == spec.generate_baseline(odd, max_new_tokens=20, eos_token_id=None, **options).token_ids


@pytest.mark.parametrize("drafter", ["ngram", "model"])
def test_pad_equal_to_eos_and_none(tokenizer, drafter: str, greedy) -> None:
    model = toy_model("llama", seed=3, vocab_size=len(tokenizer))
    ids = tokenizer("the cat")["input_ids"]
    wanted = greedy(model, ids, 20, eos_token_id=None)
    eos = wanted[6]
    end = wanted.index(eos) + 1
    kept = tokenizer.pad_token_id, tokenizer.eos_token_id
    for pad in (eos, None):
        tokenizer.pad_token_id, tokenizer.eos_token_id = pad, eos
        model.generation_config.eos_token_id, model.generation_config.pad_token_id = eos, pad
        try:
            spec = SpeculativeDecoder.from_models(
                model, noisy_copy(model, 0.05), tokenizer=tokenizer, drafter=drafter, temperature=0
            )
            batch = spec.generate(["the cat", "a little river"], k=4, max_new_tokens=20)
            assert list(batch[0].token_ids) == wanted[:end]
            assert batch[0].finish_reason == "eos"
        finally:
            tokenizer.pad_token_id, tokenizer.eos_token_id = kept


@pytest.mark.parametrize("drafter", ["model", "ngram"])
@pytest.mark.parametrize("family", ["mistral", "gemma3_text", "phi3", "qwen2"])
def test_far_past_a_sliding_window(family: str, drafter: str, greedy) -> None:
    changes = {"sliding_window": 8}
    if family == "gemma3_text":
        changes |= {"layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": False}
    if family == "qwen2":
        changes |= {"use_sliding_window": True, "max_window_layers": 1}
    model = toy_model(family, seed=5, **changes)
    unwindowed = toy_model(family, seed=5, **changes)
    for config in (unwindowed.config, getattr(unwindowed, "model", unwindowed).config):
        config.sliding_window = 100
    for layer in unwindowed.model.layers:
        if getattr(layer.self_attn, "sliding_window", None):
            layer.self_attn.sliding_window = 100
    wanted = greedy(model, PROMPT * 5, 60, eos_token_id=None)
    assert wanted != greedy(unwindowed, PROMPT * 5, 60, eos_token_id=None), "the window makes no difference: no test"
    spec = SpeculativeDecoder.from_models(model, noisy_copy(model, 0.05), drafter=drafter, temperature=0)
    short = greedy(model, [3], 60, eos_token_id=None)
    assert list(spec.generate(torch.tensor(PROMPT * 5), k=6, max_new_tokens=60, eos_token_id=None).token_ids) == wanted
    both = spec.generate([torch.tensor(PROMPT * 5), torch.tensor([3])], k=6, max_new_tokens=60, eos_token_id=None)
    assert [list(result.token_ids) for result in both] == [wanted, short]


@pytest.mark.parametrize("verifier", ["token", "block", "match"])
def test_a_float32_target_with_a_bfloat16_draft_keeps_its_law(verifier: str) -> None:
    """The law of two tokens against the target's own, exactly computed: 4,000 draws, chi-square at about 1 in 1,000."""
    target = toy_model("llama", seed=5, vocab_size=8, bos_token_id=0, eos_token_id=None, pad_token_id=None)
    draft = noisy_copy(target, 0.1).to(torch.bfloat16)
    spec = SpeculativeDecoder.from_models(target, draft, top_p=1.0, verifier=verifier, seed=7)
    results = spec.generate([torch.tensor([3, 5])] * 4000, k=2, max_new_tokens=3, batch_size=1000)
    counts = collections.Counter((r.token_ids[1], r.token_ids[2]) for r in results)
    law: collections.Counter = collections.Counter()
    with torch.no_grad():
        first = target(torch.tensor([[3, 5]])).logits[0, -1].softmax(-1)
        for a in range(8):
            second = target(torch.tensor([[3, 5, a]])).logits[0, -1].softmax(-1)
            third = target(torch.tensor([[3, 5, a, b] for b in range(8)])).logits[:, -1].softmax(-1)
            for b in range(8):
                for c in range(8):
                    law[b, c] += float(first[a] * second[b] * third[b, c])
    chi, pooled_seen, pooled_due, cells = 0.0, 0, 0.0, 0
    for pair, chance in law.items():
        due = 4000 * chance
        if due < 5:
            pooled_seen, pooled_due = pooled_seen + counts[pair], pooled_due + due
            continue
        chi, cells = chi + (counts[pair] - due) ** 2 / due, cells + 1
    if pooled_due > 0:
        chi, cells = chi + (pooled_seen - pooled_due) ** 2 / pooled_due, cells + 1
    freedom = cells - 1
    assert chi < freedom + 3.1 * (2 * freedom) ** 0.5 + 6, f"chi-square {chi:.1f} at {freedom} degrees of freedom"
