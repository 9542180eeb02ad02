"""Verifiers called directly, on laws small enough to work out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from decoder.testing import ReplayRows
from decoder.types import Draft, Verdict
from decoder.verify import VERIFIERS, AutoVerifier, BlockVerifier, GreedyVerifier, MatchVerifier, TokenVerifier
from decoder.verify.block import running_ratio
from decoder.verify.chain import draft_law, leading_run, real_positions, residual

SAMPLED = [TokenVerifier, BlockVerifier]


def tensor(*rows: Sequence[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


class FixedUniforms:
    """A source that compares with given uniforms, as the real one does, and draws the likeliest token."""

    coupled = False

    def __init__(self, *uniforms: float) -> None:
        self.uniforms = torch.tensor(uniforms, dtype=torch.float64)

    def accept(self, numerator, denominator, counts):
        return self.uniforms[: numerator.shape[1]] * denominator < numerator

    def draw(self, probs, starts, counts):
        return probs.argmax(-1)


def outcomes(verifier, p: Tensor, draft: Draft) -> list[tuple[float, int, int]]:
    """(probability, accepted, next token) of every outcome for one row and one given draft; p [K+1, V]."""
    found, scripts = [], [()]
    while scripts:
        source = ReplayRows([scripts.pop()])
        verdict: Verdict = verifier(p[None], draft, source, [5])
        found.append((source.weights[0], int(verdict.accepted), int(verdict.next_tokens)))
        scripts += [script for _, script in source.forks]
    return found


def emitted_law(verifier, p: Tensor, q: Tensor) -> dict[tuple[int, ...], float]:
    """Law of the emitted tokens when each drafted token is sampled from q [K, V], whatever came before it."""
    k, vocab = q.shape
    law: dict[tuple[int, ...], float] = {}
    for tokens in torch.cartesian_prod(*[torch.arange(vocab)] * k).reshape(-1, k):
        chance = float(q.gather(1, tokens[:, None]).prod())
        if chance == 0.0:
            continue
        for weight, accepted, following in outcomes(verifier, p, Draft(tokens[None], [k], q[None])):
            key = (*tokens[:accepted].tolist(), following)
            law[key] = law.get(key, 0.0) + chance * weight
    return law


def first_token(law: dict[tuple[int, ...], float], vocab: int) -> list[float]:
    return [sum(mass for tokens, mass in law.items() if tokens[0] == v) for v in range(vocab)]


@pytest.mark.parametrize("verifier", [*SAMPLED, AutoVerifier])
def test_first_token_has_the_targets_law(verifier) -> None:
    p, q = tensor([0.6, 0.4], [0.3, 0.7]), tensor([0.8, 0.2])
    law = emitted_law(verifier(), p, q)
    assert first_token(law, 2) == pytest.approx([0.6, 0.4], abs=1e-14)


@pytest.mark.parametrize("verifier", SAMPLED)
def test_acceptance_is_the_overlap(verifier) -> None:
    """One token: accepted with probability sum min(p, q) = 0.8; the bonus then has the next position's law."""
    p, q = tensor([0.6, 0.4], [0.3, 0.7]), tensor([0.8, 0.2])
    law = emitted_law(verifier(), p, q)
    both = {tokens: mass for tokens, mass in law.items() if len(tokens) == 2}
    assert sum(both.values()) == pytest.approx(0.8, abs=1e-14)
    assert both[(0, 1)] / (both[(0, 0)] + both[(0, 1)]) == pytest.approx(0.7, abs=1e-14)
    assert law[(1,)] == pytest.approx(0.2, abs=1e-14), "after a rejection only the residual's token can follow"


@pytest.mark.parametrize("verifier", [TokenVerifier, BlockVerifier, MatchVerifier, AutoVerifier])
def test_a_greedy_draft_is_not_treated_as_a_sample(verifier) -> None:
    """q = [.8, .2] drafted by argmax: the draft says so by giving no law, and [.6, .4] stays."""
    p = tensor([0.6, 0.4], [0.5, 0.5])
    found = outcomes(verifier(), p, Draft(torch.tensor([[0]]), [1]))
    first = sum(weight for weight, accepted, following in found if accepted == 1 or following == 0)
    assert first == pytest.approx(0.6, abs=1e-14)


@pytest.mark.parametrize("verifier", SAMPLED)
def test_a_token_the_target_cannot_emit_never_passes(verifier) -> None:
    """Even at u = 0, where u q <= p would hold."""
    p, q = tensor([0.0, 1.0], [0.5, 0.5]), tensor([0.9, 0.1])
    verdict = verifier()(p[None], Draft(torch.tensor([[0]]), [1], q[None]), FixedUniforms(0.0), [3])
    assert int(verdict.accepted) == 0 and int(verdict.next_tokens) == 1


@pytest.mark.parametrize("verifier", SAMPLED)
def test_equal_laws_accept_everything(verifier) -> None:
    q = torch.softmax(torch.randn(4, 3, 7, generator=torch.Generator().manual_seed(0)), -1)
    p = torch.cat([q, q[:, :1]], dim=1)
    tokens = torch.randint(7, (4, 3), generator=torch.Generator().manual_seed(1))
    almost_one = 1.0 - 2.0**-53
    verdict = verifier()(p, Draft(tokens, [3] * 4, q), FixedUniforms(*[almost_one] * 3), [0] * 4)
    assert verdict.accepted.tolist() == [3] * 4
    assert verdict.overlap.tolist() == [[1.0] * 3] * 4


@pytest.mark.parametrize("verifier", [TokenVerifier, BlockVerifier, MatchVerifier, AutoVerifier])
def test_padding_is_neither_tested_nor_counted(verifier) -> None:
    """Rows of 0, 1 and 3 proposals; what lies beyond a row's count is rubbish, with q = 0 and p = 1 at it."""
    q = tensor([0.25] * 4).repeat(3, 3, 1)
    q[0] = 0.0
    q[1, 1:] = 0.0
    p = tensor([0.25] * 4).repeat(3, 4, 1)
    p[0, 0] = tensor([0, 0, 1, 0])[0]
    p[1, 1] = tensor([0, 0, 0, 1])[0]
    tokens = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 2, 3]])
    source = FixedUniforms(0.5, 0.5, 0.5)
    if verifier is MatchVerifier:
        source.draw = lambda probs, starts, counts: torch.where(
            probs.amax(-1) < 1, torch.tensor([[1, 2, 3, 0]]), probs.argmax(-1)
        )
    verdict = verifier()(p, Draft(tokens, [0, 1, 3], q), source, [1, 2, 3])
    assert verdict.accepted.tolist() == [0, 1, 3]
    assert verdict.next_tokens.tolist()[:2] == [2, 3], "the bonus of a short row has its own position's law"


@pytest.mark.parametrize("verifier", [TokenVerifier, BlockVerifier, MatchVerifier, AutoVerifier])
@pytest.mark.parametrize("with_law", [False, True])
def test_nothing_drafted_draws_one_token_from_p(verifier, with_law: bool) -> None:
    p = tensor([0.1, 0.2, 0.7])
    empty = Draft(torch.zeros(1, 0, dtype=torch.long), [0], torch.zeros(1, 0, 3).double() if with_law else None)
    found = outcomes(verifier(), p, empty)
    assert sorted(found, key=lambda outcome: outcome[2]) == [
        (pytest.approx(0.1), 0, 0),
        (pytest.approx(0.2), 0, 1),
        (pytest.approx(0.7), 0, 2),
    ]


def test_the_leading_run_counts_not_the_number_of_passes() -> None:
    passed = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    assert leading_run(passed).tolist() == [1, 0, 2, 3]
    p, q = tensor([0.1, 0.9], [0.9, 0.1], [0.5, 0.5]), tensor([0.9, 0.1], [0.9, 0.1])
    verdict = TokenVerifier()(p[None], Draft(torch.tensor([[0, 0]]), [2], q[None]), FixedUniforms(0.5, 0.5), [0])
    assert int(verdict.accepted) == 0, "the second token passes alone, behind a rejected one"


class TestResidual:
    def test_is_the_normalised_positive_part(self) -> None:
        found = residual(tensor([0.5, 0.3, 0.2]), tensor([0.2, 0.6, 0.2]))
        assert found[0].tolist() == pytest.approx([1.0, 0.0, 0.0])
        found = residual(tensor([0.5, 0.3, 0.2]), tensor([0.3, 0.7, 0.0]))
        assert found[0].tolist() == pytest.approx([0.5, 0.0, 0.5])

    def test_scales_the_target_for_block_verification(self) -> None:
        found = residual(tensor([0.5, 0.5]), tensor([0.1, 0.9]), torch.tensor([0.4], dtype=torch.float64))
        assert found[0].tolist() == pytest.approx([1.0, 0.0])

    def test_is_p_where_no_mass_is_left(self) -> None:
        p = tensor([0.25, 0.75], [0.5, 0.5])
        found = residual(p, torch.stack([p[0], tensor([0.9, 0.1])[0]]))
        assert found[0].tolist() == p[0].tolist() and found[1].tolist() == [0.0, 1.0]

    @pytest.mark.parametrize("verifier", SAMPLED)
    def test_a_rejection_that_rounding_made_possible_falls_back_on_p(self, verifier) -> None:
        """p below q by one unit in the last place at every token: no residual mass, and no NaN."""
        q = torch.tensor([[0.5, 0.5]])
        p = torch.nextafter(q, torch.zeros(()))
        source = FixedUniforms(math.nextafter(1.0, 0.0))
        verdict = verifier()(torch.stack([p, p], 1), Draft(torch.tensor([[1]]), [1], q[None]), source, [0])
        assert int(verdict.accepted) == 0 and int(verdict.next_tokens) == 0


class TestBlock:
    def test_running_ratio_is_clamped_step_by_step(self) -> None:
        found = running_ratio(tensor([0.6, 0.2, 0.9]), tensor([0.3, 0.4, 0.3]))
        assert found[0].tolist() == pytest.approx([1.0, 1.0, 0.5, 1.0])

    def test_a_later_position_may_pass_after_a_failed_one(self) -> None:
        p, q = tensor([0.1, 0.9], [0.9, 0.1], [0.5, 0.5]), tensor([0.4, 0.6], [0.2, 0.8])
        draft = Draft(torch.tensor([[0, 0]]), [2], q[None])
        # P = 1, .25, 1: position 1 is tested at s/(s + 1 - P) with s = (.25*.9 - .2)+ = .025, position 2 at P_2 = 1
        assert int(BlockVerifier()(p[None], draft, FixedUniforms(0.9, 0.9), [0]).accepted) == 2
        assert int(TokenVerifier()(p[None], draft, FixedUniforms(0.9, 0.9), [0]).accepted) == 0

    def test_pass_probabilities_are_those_of_the_paper(self) -> None:
        p, q = tensor([0.1, 0.9], [0.5, 0.5], [0.5, 0.5]), tensor([0.4, 0.6], [0.2, 0.8])
        found = outcomes(BlockVerifier(), p, Draft(torch.tensor([[0, 1]]), [2], q[None]))
        ratio_1, ratio_2 = 0.25, 0.25 * 0.5 / 0.8
        surplus = max(ratio_1 * 0.5 - 0.2, 0) + max(ratio_1 * 0.5 - 0.8, 0)
        pass_1 = surplus / (surplus + 1 - ratio_1)
        share = [sum(w for w, accepted, _ in found if accepted == n) for n in range(3)]
        expected = [(1 - pass_1) * (1 - ratio_2), pass_1 * (1 - ratio_2), ratio_2]
        assert share == pytest.approx(expected, abs=1e-14)

    def test_accepts_at_least_as_much_as_token_verification(self) -> None:
        """Expected accepted tokens over random laws: never fewer, sometimes more."""
        generator = torch.Generator().manual_seed(0)
        gains = []
        for _ in range(4):
            p = torch.softmax(torch.randn(3, 3, generator=generator).double(), -1)
            q = torch.softmax(torch.randn(2, 3, generator=generator).double(), -1)
            by = {}
            for verifier in SAMPLED:
                law = emitted_law(verifier(), p, q)
                by[verifier] = sum((len(tokens) - 1) * mass for tokens, mass in law.items())
            gains.append(by[BlockVerifier] - by[TokenVerifier])
        assert min(gains) > -1e-12 and max(gains) > 0.01


class TestMatch:
    def test_keeps_while_the_target_says_the_same(self) -> None:
        scores = torch.nn.functional.one_hot(torch.tensor([[1, 2, 0, 1], [1, 0, 0, 1], [2, 2, 2, 2]]), 3)
        tokens = torch.tensor([[1, 2, 0], [1, 2, 0], [0, 0, 0]])
        verdict = GreedyVerifier()(scores, Draft(tokens, [3, 3, 2]), FixedUniforms(), [0] * 3)
        assert verdict.accepted.tolist() == [3, 1, 0] and verdict.next_tokens.tolist() == [1, 0, 2]

    def test_a_short_row_is_not_matched_beyond_its_count(self) -> None:
        scores = torch.nn.functional.one_hot(torch.tensor([[1, 0, 0]]), 3)
        verdict = GreedyVerifier()(scores, Draft(torch.tensor([[1, 0]]), [1]), FixedUniforms(), [0])
        assert int(verdict.accepted) == 1 and int(verdict.next_tokens) == 0

    def test_overlap_is_the_chance_to_pass(self) -> None:
        p = tensor([0.6, 0.4], [0.5, 0.5])
        verdict = MatchVerifier()(p[None], Draft(torch.tensor([[1]]), [1]), FixedUniforms(), [0])
        assert verdict.overlap.tolist() == [[0.4]]


def test_shared_pieces() -> None:
    assert real_positions([2, 0], 2, torch.device("cpu")).tolist() == [[True, True], [False, False]]
    one_hot = draft_law(Draft(torch.tensor([[2, 0]]), [2]), torch.zeros(1, 3, 3))
    assert one_hot.tolist() == [[[0, 0, 1], [1, 0, 0]]]


def test_every_verifier_says_whether_it_is_lossless_and_goes_by_its_name() -> None:
    for name, make in VERIFIERS.items():
        assert make().name == name and make().lossless is True


@pytest.mark.parametrize("verifier", SAMPLED)
def test_half_precision_draft_laws_are_widened_before_the_test(verifier) -> None:
    """float32 target, bfloat16 draft: the test is made in the target's dtype on the law that was drawn from."""
    q = torch.tensor([[0.8, 0.2]]).bfloat16()
    p = torch.tensor([[0.6, 0.4], [0.5, 0.5]])
    verdict = verifier()(p[None], Draft(torch.tensor([[0]]), [1], q[None]), FixedUniforms(0.7), [0])
    assert verdict.overlap.dtype == torch.float32
    assert float(verdict.overlap) == pytest.approx(0.6 / float(q[0, 0]), rel=1e-6)
