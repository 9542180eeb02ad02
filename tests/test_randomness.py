"""The sources of chance themselves: their laws, their independence, their reproducibility, and their edges.

Counts are compared with chi-square at a false-alarm rate of 1e-4 a test on fixed seeds, so a pass or failure repeats.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from decoder.randomness import (
    SOURCES,
    GumbelRows,
    RandomRows,
    RowStream,
    _scramble,
    counter_uniforms,
    fresh_seed,
    invert_cdf,
)

FALSE_ALARM = 1e-4
P = torch.tensor([0.05, 0.0, 0.5, 0.25, 0.2], dtype=torch.float64)
BOTH = pytest.mark.parametrize("source", [RandomRows, GumbelRows])


def chi_square(counts: np.ndarray, law: np.ndarray) -> float:
    """p-value; cells of zero probability must be empty."""
    assert counts[law == 0].sum() == 0
    return float(stats.chisquare(counts[law > 0], counts.sum() * law[law > 0]).pvalue)


def check_accepts_are_independent() -> None:
    """Two positions at 1/2 each: the four outcomes have 1/4 each. One uniform for the block would leave two."""
    n = 4000
    passed = RandomRows(3, range(n)).accept(torch.full((n, 2), 0.5), torch.ones(n, 2), [2] * n).long()
    counts = np.bincount((2 * passed[:, 0] + passed[:, 1]).numpy(), minlength=4)
    assert chi_square(counts, np.full(4, 0.25)) > FALSE_ALARM


def check_zero_never_passes() -> None:
    """At u = 0 a token with p = 0 must fail: the comparison is strict."""
    source = RandomRows(0, [0])
    source._streams = [type("Zeros", (), {"take": staticmethod(lambda n: torch.zeros(n, dtype=torch.float64))})()]
    passed = source.accept(torch.tensor([[0.0, 1e-30, 0.5]]), torch.tensor([[0.4, 0.9, 0.0]]), [3])
    assert passed.tolist() == [[False, True, True]]


class TestInversion:
    def test_takes_the_interval_that_holds_the_uniform(self) -> None:
        u = torch.tensor(
            [0.0, 0.0499, 0.0501, 0.5499, 0.5501, 0.7999, 0.8001, np.nextafter(1.0, 0.0)], dtype=torch.float64
        )
        assert invert_cdf(P.expand(len(u), -1), u).tolist() == [0, 0, 2, 2, 3, 3, 4, 4]

    def test_never_returns_a_token_of_probability_zero(self) -> None:
        edges = torch.tensor([0.0, np.nextafter(1.0, 0.0)], dtype=torch.float64)
        for law in ([0, 0, 1, 0, 0], [0, 0.5, 0.5, 0, 0], [0, 1e-300, 0, 1, 0]):
            probs = torch.tensor(law, dtype=torch.float64)
            found = invert_cdf(probs.expand(2, -1), edges)
            assert bool((probs[found] > 0).all()), (law, found)

    def test_does_not_need_a_sum_of_exactly_one(self) -> None:
        u = torch.linspace(0, 1 - 1e-9, 1001, dtype=torch.float64)
        assert torch.equal(invert_cdf((0.9 * P).expand(1001, -1), u), invert_cdf(P.expand(1001, -1), u))

    def test_float32_laws_over_a_large_vocabulary(self) -> None:
        probs = torch.full((1, 50_000), 1 / 50_000)
        found = invert_cdf(probs.expand(3, -1), torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
        assert found.tolist() == pytest.approx([12_500, 25_000, 37_500], abs=1)


class TestRandomRows:
    def test_accepts_at_different_positions_are_independent(self) -> None:
        check_accepts_are_independent()

    def test_acceptance_is_strict(self) -> None:
        check_zero_never_passes()

    def test_acceptance_has_the_ratio_asked_for(self) -> None:
        n = 4000
        passed = RandomRows(1, range(n)).accept(torch.full((n, 1), 0.3), torch.full((n, 1), 0.4), [1] * n)
        assert abs(float(passed.double().mean()) - 0.75) < stats.norm.isf(FALSE_ALARM / 2) * (0.75 * 0.25 / n) ** 0.5
        assert bool(RandomRows(1, [0]).accept(torch.ones(1, 9), torch.ones(1, 9), [9]).all())

    def test_unused_positions_consume_nothing(self) -> None:
        probs = P.expand(1, 3, -1)
        short, whole = RandomRows(7, [0]), RandomRows(7, [0])
        first = short.draw(probs, [0], [1])[0, 0]
        second = short.draw(probs, [1], [2])[0, :2]
        assert torch.equal(torch.cat([first[None], second]), whole.draw(probs, [0], [3])[0])

    def test_stream_is_the_same_in_blocks_of_any_size(self) -> None:
        whole = RowStream(5, 2).take(1000)
        stream, sizes = RowStream(5, 2), [1, 200, 56, 255, 3, 256, 229]
        assert torch.equal(torch.cat([stream.take(n) for n in sizes]), whole)


@BOTH
class TestBothSources:
    def test_draws_have_the_law(self, source) -> None:
        n = 4000
        tokens = source(11, range(n)).draw(P.expand(n, 1, -1), [4] * n, [1] * n).flatten()
        assert chi_square(np.bincount(tokens.numpy(), minlength=5), P.numpy()) > FALSE_ALARM

    def test_draws_along_a_row_are_independent(self, source) -> None:
        n = 20_001
        tokens = source(12, [3]).draw(P.expand(1, n, -1), [0], [n])[0].numpy()
        pairs = np.bincount(5 * tokens[:-1:2] + tokens[1::2], minlength=25)
        assert chi_square(pairs, np.outer(P, P).flatten()) > FALSE_ALARM

    def test_rows_and_seeds_are_independent(self, source) -> None:
        n = 3000
        left = source(1, range(n)).draw(P.expand(n, 1, -1), [0] * n, [1] * n).flatten().numpy()
        next_row = source(1, range(1, n + 1)).draw(P.expand(n, 1, -1), [0] * n, [1] * n).flatten().numpy()
        next_seed = source(2, range(n)).draw(P.expand(n, 1, -1), [0] * n, [1] * n).flatten().numpy()
        assert (left[1:] == next_row[:-1]).all(), "the same row of the same seed, wherever it stands in the batch"
        law = np.outer(P, P).flatten()
        assert chi_square(np.bincount(5 * left + next_seed, minlength=25), law) > FALSE_ALARM
        assert chi_square(np.bincount(5 * left[:-1] + left[1:], minlength=25), law) > FALSE_ALARM

    def test_a_row_does_not_depend_on_its_neighbours(self, source) -> None:
        probs = P.expand(3, 4, -1)
        alone, among = source(9, [1]), source(9, [0, 1, 2])
        assert torch.equal(alone.draw(probs[:1], [5], [4])[0], among.draw(probs, [2, 5, 9], [1, 4, 3])[1])
        among.select([1])
        assert torch.equal(alone.draw(probs[:1], [9], [4]), among.draw(probs[:1], [9], [4]))

    def test_repeats_with_the_seed(self, source) -> None:
        probs = P.expand(2, 3, -1)
        assert torch.equal(source(4, [0, 1]).draw(probs, [0, 0], [3, 3]), source(4, [0, 1]).draw(probs, [0, 0], [3, 3]))

    def test_never_draws_a_token_of_probability_zero(self, source) -> None:
        law = torch.zeros(1, 400, 1000)
        law[..., 700], law[..., 701] = 1e-30, 1.0
        assert set(source(0, [0]).draw(law, [0], [400]).flatten().tolist()) <= {700, 701}


class TestGumbelRows:
    def test_hash_is_splitmix64(self) -> None:
        """The published first outputs of splitmix64 from seed 0."""
        expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
        found = counter_uniforms(torch.tensor([0]), 3)[0]
        assert found.tolist() == [((word >> 12) + 0.5) * 2.0**-52 for word in expected]
        assert _scramble(0x9E3779B97F4A7C15) == expected[0]

    def test_uniforms_are_uniform_and_never_an_edge(self) -> None:
        keys = torch.arange(40) * 7919 - 100_000
        u = counter_uniforms(keys, 1000)
        assert float(u.min()) > 0.0 and float(u.max()) < 1.0
        assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > FALSE_ALARM
        assert abs(np.corrcoef(u[:-1].flatten(), u[1:].flatten())[0, 1]) < 0.02

    def test_is_the_argmax_of_log_p_plus_gumbel_noise(self) -> None:
        source = GumbelRows(5, [0])
        law = torch.softmax(torch.randn(1, 6, 40, generator=torch.Generator().manual_seed(0)).double(), -1)
        flat = torch.ones_like(law) / 40
        tokens = source.draw(law, [10], [6])
        # Rebuild the noise from draws of two-token laws: token a beats b iff G_a - G_b > log p_b - log p_a.
        for position in range(6):
            winner = int(tokens[0, position])
            for other in range(40):
                pair = torch.zeros_like(flat[:, :1])
                pair[0, 0, winner], pair[0, 0, other] = law[0, position, winner], law[0, position, other]
                assert int(source.draw(pair, [10 + position], [1])) == winner

    def test_is_a_function_of_the_position_alone(self) -> None:
        law = P.expand(1, 1, -1)
        source = GumbelRows(21, [2])
        forwards = [int(source.draw(law, [n], [1])) for n in range(50)]
        backwards = [int(source.draw(law, [n], [1])) for n in reversed(range(50))]
        at_once = source.draw(law.expand(1, 50, -1), [0], [50])[0].tolist()
        assert forwards == backwards[::-1] == at_once and len(set(forwards)) > 2

    def test_draft_and_target_agree_as_far_as_their_laws_do(self) -> None:
        """P(both i) = 1 / sum_j max(p_j / p_i, q_j / q_i): token i wins both races. Certain where p = q."""
        n = 20_000
        other = torch.tensor([0.15, 0.05, 0.4, 0.2, 0.2], dtype=torch.float64)
        source = GumbelRows(8, range(n))
        ours = source.draw(P.expand(n, 1, -1), [0] * n, [1] * n)
        theirs = source.draw(other.expand(n, 1, -1), [0] * n, [1] * n)
        likely = [i for i in range(5) if P[i] > 0]
        chance = sum(1 / float(torch.maximum(P / P[i], other / other[i]).sum()) for i in likely)
        spread = stats.norm.isf(FALSE_ALARM / 2) * (chance * (1 - chance) / n) ** 0.5
        assert abs(float((ours == theirs).double().mean()) - chance) < spread
        assert torch.equal(ours, source.draw(P.expand(n, 1, -1), [0] * n, [1] * n))

    def test_refuses_to_accept_by_chance(self) -> None:
        with pytest.raises(TypeError, match="sampling='gumbel' verifies by match"):
            GumbelRows(0, [0]).accept(torch.ones(1, 1), torch.ones(1, 1), [1])


def test_fresh_seeds_follow_torchs_global_generator() -> None:
    torch.manual_seed(1)
    first = [fresh_seed(), fresh_seed()]
    torch.manual_seed(1)
    assert [fresh_seed(), fresh_seed()] == first and first[0] != first[1]


def test_sources_are_named() -> None:
    assert {name: source.coupled for name, source in SOURCES.items()} == {"rejection": False, "gumbel": True}
