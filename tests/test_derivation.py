"""Claims of docs/notes/derivation.md about laws and token counts, checked over all outcomes of the real verifiers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from decoder import SpeculativeDecoder
from decoder.models.toy import noisy_copy, toy_model
from decoder.types import Verifier
from decoder.verify import BlockVerifier, MatchVerifier, TokenVerifier
from decoder.verify import block as block_module
from enumerated_rounds import (
    PAIRS,
    StopAtFirstFailure,
    V,
    Walk,
    distance_from_target,
    enumerate_round,
    mix,
    pair,
    product,
    random_law,
    running_minimum,
    token_survival,
)

# ---- losslessness ----


@pytest.mark.parametrize(("seed", "share"), PAIRS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_token_verification_keeps_the_targets_law(seed: int, share: float, k: int) -> None:
    p, q = pair(seed, share, k)
    assert distance_from_target(enumerate_round(TokenVerifier(), p, q, k).emitted, p, k) < 1e-12


@pytest.mark.parametrize(("seed", "share"), PAIRS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_block_verification_keeps_the_targets_law(seed: int, share: float, k: int) -> None:
    p, q = pair(seed, share, k)
    assert distance_from_target(enumerate_round(BlockVerifier(), p, q, k).emitted, p, k) < 1e-12


@pytest.mark.parametrize("k", [1, 2])
def test_match_keeps_the_targets_law_and_accepts_with_p(k: int) -> None:
    """A deterministic draft is the case q = one-hot: its first token stays with chance p(x) = sum min(p, q)."""
    p, q = pair(5, 1.0, k)
    outcome = enumerate_round(MatchVerifier(), p, q, k, sampled=False)
    assert distance_from_target(outcome.emitted, p, k) < 1e-12
    assert outcome.survival()[0] == pytest.approx(p[()][q[()].argmax()], abs=1e-12)


def test_acceptance_by_p_alone_would_change_the_law() -> None:
    """The walk can tell: with q left out of the ratio, and nothing else changed, the texts drift."""

    class ByTargetAlone(Walk):
        def accept(self, numerator: Tensor, denominator: Tensor, counts: Sequence[int]) -> Tensor:
            return super().accept(numerator, torch.ones_like(denominator), counts)

    p, q = pair(0, 1.0, 2)
    assert distance_from_target(enumerate_round(TokenVerifier(), p, q, 2, ByTargetAlone).emitted, p, 2) > 0.01


# ---- alpha ----


@pytest.mark.parametrize(("seed", "share"), PAIRS)
def test_alpha_is_one_minus_total_variation(seed: int, share: float) -> None:
    p, q = pair(seed, share, 1)
    alpha = float(np.minimum(p[()], q[()]).sum())
    assert alpha == pytest.approx(1 - np.abs(p[()] - q[()]).sum() / 2, abs=1e-12)
    for verifier in (TokenVerifier(), BlockVerifier()):
        assert enumerate_round(verifier, p, q, 1).accepted[1] == pytest.approx(alpha, abs=1e-12)


def test_alpha_moves_by_at_most_the_distance_of_two_drafts() -> None:
    """|alpha(q) - alpha(q')| <= TV(q, q'): what quantising a draft can cost."""
    tightest = 0.0
    for seed in range(30):
        p, q = pair(seed, 1.0, 1)
        other = mix(q, random_law(1, seed + 500), 0.2)
        apart = np.abs(q[()] - other[()]).sum() / 2
        alphas = [enumerate_round(TokenVerifier(), p, law, 1).accepted[1] for law in (q, other)]
        assert abs(alphas[0] - alphas[1]) <= apart + 1e-12
        tightest = max(tightest, abs(alphas[0] - alphas[1]) / apart)
    assert tightest > 0.99  # the bound is reached


# ---- tokens per round ----


@pytest.mark.parametrize(("seed", "share"), PAIRS)
@pytest.mark.parametrize("k", [1, 3])
def test_expected_tokens_are_one_plus_the_survival_sum(seed: int, share: float, k: int) -> None:
    p, q = pair(seed, share, k)
    outcome = enumerate_round(TokenVerifier(), p, q, k)
    assert outcome.survival() == pytest.approx(token_survival(p, q, k), abs=1e-12)
    expected = sum(weight * len(text) for text, weight in outcome.emitted.items())
    assert expected == pytest.approx(1 + sum(token_survival(p, q, k)), abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_independent_positions_give_the_geometric_sum(k: int) -> None:
    one_p, one_q = random_law(0, 11)[()], random_law(0, 12)[()]
    p, q = ({prefix: law for prefix in random_law(k, 0)} for law in (one_p, one_q))
    alpha = float(np.minimum(one_p, one_q).sum())
    outcome = enumerate_round(TokenVerifier(), p, q, k)
    assert 1 + outcome.mean_accepted == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha), abs=1e-12)


@pytest.mark.parametrize("verifier", [TokenVerifier(), BlockVerifier()])
def test_reported_overlaps_estimate_the_survival_without_bias(verifier: Verifier) -> None:
    """The mean of prod_{j <= i} min(1, p/q) at the drafted tokens is token verification's A_i, at every depth."""
    p, q = pair(3, 1.0, 3)
    assert enumerate_round(verifier, p, q, 3).overlaps == pytest.approx(token_survival(p, q, 3), abs=1e-12)


@pytest.mark.parametrize("k", [1, 4])
def test_tokens_per_round_are_one_plus_drafts_times_acceptance_rate(k: int) -> None:
    """Exact for a finished run without EOS, whatever p and q; with k drafts in every round it reads 1 + k x rate."""
    target = toy_model("llama", 0, eos_token_id=None)
    spec = SpeculativeDecoder.from_models(target, noisy_copy(target, 0.2), seed=4)
    result = spec.generate(torch.tensor([5, 6, 7]), max_new_tokens=40, k=k)
    assert 0 < result.acceptance_rate < 1
    drafts_per_round = result.num_draft_tokens / result.num_iterations
    assert result.tokens_per_iteration == pytest.approx(1 + drafts_per_round * result.acceptance_rate, abs=1e-12)
    full = [step for step in result.steps[1:] if len(step.drafted) == k]
    rate = sum(step.accepted for step in full) / (k * len(full))
    assert sum(len(step.emitted) for step in full) / len(full) == pytest.approx(1 + k * rate, abs=1e-12)


def test_one_plus_k_alpha_overstates_by_the_missing_powers() -> None:
    """Put the per-position alpha for the pooled rate and the formula is too high by sum (alpha - alpha^i)."""
    for alpha, k in itertools.product((0.1, 0.5, 0.9), (1, 2, 5, 8)):
        exact = (1 - alpha ** (k + 1)) / (1 - alpha)
        excess = sum(alpha - alpha**i for i in range(1, k + 1))
        assert 1 + k * alpha == pytest.approx(exact + excess, abs=1e-12)
        assert (excess > 1e-12) == (k > 1)


# ---- block verification ----


@pytest.mark.parametrize(("seed", "share"), PAIRS)
def test_block_survives_to_depth_i_with_its_running_ratio(seed: int, share: float, k: int = 3) -> None:
    """P(tau >= i | x_1 ... x_i) = P_i: the recurrence behind the choice of h_i."""
    p, q = pair(seed, share, k)
    expected = [
        sum(product(q, text) * running_minimum(p, q, text) for text in itertools.product(range(V), repeat=i))
        for i in range(1, k + 1)
    ]
    assert enumerate_round(BlockVerifier(), p, q, k).survival() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("k", [2, 3])
def test_block_never_accepts_fewer_tokens(k: int) -> None:
    """At every depth, and strictly more for some pair of laws."""
    gains = []
    for seed, share in PAIRS[:4]:
        p, q = pair(seed, share, k)
        block = enumerate_round(BlockVerifier(), p, q, k).survival()
        gains.append(block - token_survival(p, q, k))
    assert min(gain.min() for gain in gains) > -1e-12
    assert max(gain.sum() for gain in gains) > 0.01


def test_block_accepts_the_published_example() -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3), k = 2: 10/9 accepted tokens by token, 11/9 by block (arXiv 2403.10444)."""
    p = {prefix: np.array([1 / 3, 2 / 3, 0.0]) for prefix in random_law(2, 0)}
    q = {prefix: np.array([2 / 3, 1 / 3, 0.0]) for prefix in random_law(2, 0)}
    assert enumerate_round(TokenVerifier(), p, q, 2).mean_accepted == pytest.approx(10 / 9, abs=1e-12)
    assert enumerate_round(BlockVerifier(), p, q, 2).mean_accepted == pytest.approx(11 / 9, abs=1e-12)


def test_block_with_a_break_changes_the_law() -> None:
    p, q = pair(1, 1.0, 3)
    assert distance_from_target(enumerate_round(BlockVerifier(), p, q, 3, StopAtFirstFailure).emitted, p, 3) > 1e-3


def test_block_with_the_token_residual_changes_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    true_residual = block_module.residual
    monkeypatch.setattr(block_module, "residual", lambda p, q, scale=None: true_residual(p, q))
    p, q = pair(1, 1.0, 3)
    assert distance_from_target(enumerate_round(BlockVerifier(), p, q, 3).emitted, p, 3) > 1e-3
