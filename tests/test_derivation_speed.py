"""Claims of docs/notes/derivation.md about speed: the formula against the seconds of real result objects."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from decoder.controllers.ledger import ALLOWANCE_ROUNDS, EPSILON, Ledger
from decoder.results import GenerationResult, RowRound


def geometric_speedup(alpha: float, c: float, k: int, verify: float = 1.0) -> float:
    """S(k) = (1 - alpha^(k+1)) / ((1 - alpha) (k c + t_v(k+1) / t_v(1)))."""
    return (1 - alpha ** (k + 1)) / ((1 - alpha) * (k * c + verify))


def finished(rounds: Sequence[tuple[int, int]], draft_s: float, target_s: Callable[[int], float]) -> GenerationResult:
    """A result whose rounds drafted and accepted so many tokens and whose models took exactly these seconds."""
    steps = [
        RowRound(
            index,
            (1,) * drafted,
            accepted,
            (1,) * (accepted + 1),
            drafted * draft_s + target_s(drafted + 1),
            drafted * draft_s,
            target_s(drafted + 1),
        )
        for index, (drafted, accepted) in enumerate(rounds, 1)
    ]
    steps.insert(0, RowRound(0, (), 0, (1,), 0.0, 0.0, 0.0))
    ids = tuple(token for step in steps[1:] for token in step.emitted)
    return GenerationResult("", "", ids, (), "length", sum(step.wall_s for step in steps), tuple(steps), True)


def test_speedup_is_tokens_per_round_over_round_cost() -> None:
    """Tokens per second of a speculative run over those of a plain one, read off the real results."""

    def target_s(m: int) -> float:
        return 0.040 + 0.003 * m

    k, draft_s = 3, 0.007
    speculative = finished([(k, 3), (k, 0), (k, 2), (k, 1), (k, 3)], draft_s, target_s)
    plain = finished([(0, 0)] * 14, draft_s, target_s)
    measured = speculative.tokens_per_second / plain.tokens_per_second
    c, verify = draft_s / target_s(1), target_s(k + 1) / target_s(1)
    assert measured == pytest.approx((1 + k * speculative.acceptance_rate) / (k * c + verify), abs=1e-12)


def test_speedup_approaches_the_geometric_formula() -> None:
    """A long run of independent verdicts; the standard error of the ratio is below 0.4 %, the margin five of them."""
    alpha, k, c, verify = 0.7, 4, 0.15, 1.3
    passes = np.random.default_rng(0).random((50_000, k)) < alpha
    accepted = passes.cumprod(axis=1).sum(axis=1)
    run = finished([(k, int(n)) for n in accepted], c, lambda m: 1.0 if m == 1 else verify)
    assert run.tokens_per_second == pytest.approx(geometric_speedup(alpha, c, k, verify), rel=0.02)
    assert run.tokens_per_second != pytest.approx((1 + k * alpha) / (k * c + verify), rel=0.02)


def test_with_flat_verification_some_k_pays_exactly_when_alpha_exceeds_c() -> None:
    for alpha, c in itertools.product(np.arange(0.05, 1.0, 0.1), np.arange(0.0, 1.0, 0.08)):
        best = max(geometric_speedup(alpha, c, k) for k in range(1, 40))
        assert (best > 1 + 1e-12) == (alpha > c)


def test_speedup_never_exceeds_the_inverse_of_what_is_rejected() -> None:
    """Even a free draft gives at most 1 / (1 - alpha), and a verification twice as dear halves that."""
    for alpha, k in itertools.product((0.1, 0.6, 0.95), range(1, 13)):
        assert geometric_speedup(alpha, 0.0, k) < 1 / (1 - alpha)
        assert geometric_speedup(alpha, 0.0, k, 2.0) == pytest.approx(geometric_speedup(alpha, 0.0, k) / 2)
    assert geometric_speedup(0.6, 0.0, 40) == pytest.approx(1 / 0.4, rel=1e-6)


@pytest.mark.parametrize("turns_bad_at", [0, 200])
@pytest.mark.parametrize(("draft_s", "verify"), [(0.1, 1.0), (0.8, 1.0), (0.5, 3.0), (5.0, 1.2)])
def test_the_ledger_bounds_the_loss_of_a_hopeless_draft(turns_bad_at: int, draft_s: float, verify: float) -> None:
    """Every round asks to draft; once the draft has turned bad a round emits one token, as plain decoding does."""
    ledger, plain_s, k = Ledger(), 1.0, 4
    round_s = k * draft_s + verify
    drafted_rounds = 0
    for index in range(600):
        if ledger.affords(round_s, plain_s):
            drafted_rounds += 1
            ledger.record({0: 1 if index >= turns_bad_at else k + 1}, round_s, plain_s)
        else:
            ledger.record({0: 1}, plain_s, plain_s)
        assert ledger.spent_s <= (1 + EPSILON) * ledger.credit_s + ALLOWANCE_ROUNDS * plain_s + 1e-9
    affordable = round_s <= (ALLOWANCE_ROUNDS + 1 + EPSILON) * plain_s
    assert (drafted_rounds > 0) == affordable
    assert drafted_rounds < 600 or ledger.spent_s < ledger.credit_s  # it stops, unless earlier gains still pay for it
