"""The law of whole sequences on random Hugging Face models with real caches, by counting.

Four tokens after each of two prompts of different length, three choices a token (top-k = 3), EOS among them: up to 81
sequences a prompt. The expected law comes from uncached forwards and transformers' own warpers. Counts are compared by
chi-square (cells expected below 5 are pooled).

What it would find, with N rows a prompt and 80 degrees of freedom at most:
    false alarms   0.001 a test, and seeds are fixed, so a result repeats
    power          95 % for every law with chi-square distance sum (p' - p)^2 / p >= 80 / N
                   quick tests, N = 4096: any total variation of 0.070 or more; slow tests, N = 16384: 0.035
(2 TV <= sqrt(chi-square distance), so a law that is off by that much in total variation is off by as much there.)
`test_power_is_as_stated` computes these figures. Smaller faults of the rules themselves are the business of
`test_enumeration.py`, which has no sampling error; here the caches, masks, positions and batches of real models take
part.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
import torch
from scipy import stats

from decoder import SpeculativeDecoder
from decoder.models.toy import noisy_copy, toy_model
from decoder.testing.law import exact_law, library_law
from decoder.types import SamplingParams

FALSE_ALARM, CELLS = 1e-3, 81
PROMPTS = ((5, 9, 11, 5, 9), (7, 12))
PARAMS = SamplingParams(temperature=1.3, top_k=3, top_p=1.0)
NEW = 4
QUICK, LONG = 4096, 16384


@cache
def models(family: str):
    target = toy_model(family, seed=4)
    return target, noisy_copy(target, 0.1)


def next_law(model):
    """The warped next-token law by an uncached forward over the whole prefix."""

    @cache
    def of(prefix: tuple[int, ...]) -> torch.Tensor:
        with torch.inference_mode():
            logits = model(torch.tensor([prefix]), use_cache=False).logits[0, -1]
        return library_law(logits, prefix, PARAMS)

    return lambda prefix: of(tuple(prefix))


@cache
def expected_laws(family: str):
    """The exact law for each prompt; EOS is the second likeliest first token, so that rows end early."""
    law = next_law(models(family)[0])
    eos = int(law(PROMPTS[0]).argsort(descending=True)[1])
    return eos, [exact_law(law, prompt, NEW, frozenset({eos})) for prompt in PROMPTS]


def decoder_for(family: str, **options) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_models(
        *models(family), temperature=PARAMS.temperature, top_k=PARAMS.top_k, top_p=1.0, **options
    )


def generate(spec: SpeculativeDecoder, rows: int, eos: int | None, new: int = NEW, **options):
    """Results of rows / 2 copies of each prompt, in one ragged batch after the other."""
    prompts = [list(PROMPTS[n % 2]) for n in range(rows)]
    return spec.generate(prompts, max_new_tokens=new, eos_token_id=eos, batch_size=512, **options)


def p_value(counts: Counter, law: dict[tuple[int, ...], float]) -> float:
    assert not set(counts) - set(law), f"sequences that cannot be: {set(counts) - set(law)}"
    total = sum(counts.values())
    large = [key for key in law if law[key] * total >= 5]
    observed, expected = [counts[key] for key in large], [law[key] * total for key in large]
    if len(large) < len(law):
        observed.append(total - sum(observed))
        expected.append(total * sum(law[key] for key in law if key not in set(large)))
    scale = sum(observed) / sum(expected)  # the law sums to 1 up to rounding
    return float(stats.chisquare(observed, [cell * scale for cell in expected]).pvalue)


def check_law(family: str, rows: int = QUICK, *, seed: int = 0, **options) -> None:
    """Sequences of both prompts have the target's law."""
    eos, laws = expected_laws(family)
    spec = decoder_for(family, sampling=options.pop("sampling", "rejection"))
    results = generate(spec, 2 * rows, eos, seed=seed, **options)
    for n, law in enumerate(laws):
        found = p_value(Counter(result.token_ids for result in results[n::2]), law)
        assert found > FALSE_ALARM, f"chi-square p = {found:.2g} for prompt {PROMPTS[n]}"


CONFIGURATIONS = [
    ("llama", {"k": 3, "verifier": "block"}),
    ("llama", {"k": 2, "verifier": "token"}),
    ("llama", {"k": 3, "drafter": "ngram"}),
    ("gpt2", {"k": 3, "verifier": "block"}),
    ("llama", {"k": 3, "sampling": "gumbel"}),
]
NAMES = ["-".join([family, *map(str, options.values())]) for family, options in CONFIGURATIONS]


@pytest.mark.parametrize(("family", "options"), CONFIGURATIONS, ids=NAMES)
def test_sequences_have_the_targets_law(family: str, options: dict) -> None:
    check_law(family, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "options"), CONFIGURATIONS, ids=NAMES)
def test_sequences_have_the_targets_law_closely(family: str, options: dict) -> None:
    check_law(family, LONG, seed=1, **options)


def test_plain_decoding_has_the_law_too() -> None:
    check_law("llama", k=0)


def test_the_test_can_fail() -> None:
    """The draft's own text does not pass for the target's."""
    eos, laws = expected_laws("llama")
    spec = SpeculativeDecoder.from_models(models("llama")[1], temperature=PARAMS.temperature, top_k=3, top_p=1.0)
    results = generate(spec, 2 * QUICK, eos, seed=0, k=0)
    counts = Counter(result.token_ids for result in results[::2])
    likely = Counter({key: n for key, n in counts.items() if key in laws[0]})
    assert p_value(likely, laws[0]) < 1e-9


def test_power_is_as_stated() -> None:
    critical = stats.chi2.isf(FALSE_ALARM, CELLS - 1)
    assert stats.ncx2.sf(critical, CELLS - 1, 80.0) >= 0.95
    for rows, variation in ((QUICK, 0.070), (LONG, 0.035)):
        assert 0.5 * (80.0 / rows) ** 0.5 <= variation


def check_acceptance(family: str = "llama", rows: int = 600, new: int = 6) -> None:
    """Token verification accepts a tested position with probability sum_x min(p(x), q(x)), given its prefix.

    accepted - sum of those probabilities is a sum of martingale differences with variance o (1 - o) each; it must lie
    within 3.3 standard deviations (false alarm 0.001). With about 3000 tested positions, acceptance off by 0.03 is
    found with power 0.5 or more, and a draft that reads one stale cache entry is off by far more.
    """
    laws = [next_law(model) for model in models(family)]
    surplus = variance = 0.0
    tested = 0
    for result in generate(decoder_for(family, verifier="token"), rows, None, new, k=3, seed=3):
        prefix = list(result.prompt_token_ids)
        for step in result.steps:
            for i in range(step.tested):
                p, q = (law([*prefix, *step.drafted[:i]]) for law in laws)
                overlap = float(torch.minimum(p, q).sum())
                surplus += (i < step.accepted) - overlap
                variance += overlap * (1 - overlap)
                tested += 1
            prefix += step.emitted
    assert tested > 2 * rows
    deviation = surplus / variance**0.5
    assert abs(deviation) < stats.norm.isf(FALSE_ALARM / 2), (
        f"{tested} tested positions: acceptance is off by {surplus / tested:+.4f}, {deviation:+.1f} standard deviations"
    )


def test_observed_acceptance_is_the_overlap() -> None:
    check_acceptance()


def check_equal_models_accept_everything(**options) -> None:
    """draft = target: whatever the warping, p = q, and every drafted token must be kept (in float64).

    Needs what no test of the law can see: the draft warped exactly once, its processors fed the drafted prefix, and its
    cache true after every round.
    """
    target = toy_model("llama", seed=4).double()
    spec = SpeculativeDecoder.from_models(target, target, verifier=options.pop("verifier", "token"))
    for result in spec.generate(
        [list(p) for p in 3 * PROMPTS], max_new_tokens=40, eos_token_id=None, seed=2, **options
    ):
        assert result.num_accepted_tokens == result.num_draft_tokens > 0


@pytest.mark.parametrize("verifier", ["token", "block"])
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.8, "top_p": 1.0},
        {"temperature": 0.8, "top_p": 0.7, "top_k": 9, "min_p": 0.01},
        {"temperature": 0.7, "repetition_penalty": 2.5},
        {"temperature": 1.5, "repetition_penalty": 1.6, "no_repeat_ngram_size": 2},
        {"temperature": 0.0},
    ],
    ids=["T=0.8", "all warpers", "penalty", "processors", "greedy"],
)
def test_equal_models_accept_everything(options: dict, verifier: str) -> None:
    check_equal_models_accept_everything(k=4, verifier=verifier, **options)
