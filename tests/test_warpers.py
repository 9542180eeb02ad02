"""`warped_probs` equals the softmax of transformers' own warpers, on ordinary scores and on every edge."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from decoder.testing.law import library_warpers
from decoder.types import SamplingParams
from decoder.warpers import _SELECT, Warper, warped_probs

DTYPES = pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=("float32", "float64"))


def oracle(scores: Tensor, params: SamplingParams) -> Tensor:
    ids = torch.zeros(scores.shape[0], 1, dtype=torch.long)
    for warper in library_warpers(params):
        scores = warper(ids, scores)
    return torch.softmax(scores, dim=-1)


def stable_oracle(scores: Tensor, params: SamplingParams) -> Tensor:
    """The library's rule with a stable sort. Its own is not: among equal scores at the edge it keeps arbitrary ones."""
    plain_sort = torch.sort
    with patch.object(torch, "sort", lambda x, **options: plain_sort(x, stable=True, **options)):
        return oracle(scores, params)


def agree(scores: Tensor, params: SamplingParams, oracle: Callable[[Tensor, SamplingParams], Tensor] = oracle) -> None:
    found, expected = warped_probs(scores, params), oracle(scores, params)
    assert found.dtype == scores.dtype
    assert torch.equal(found > 0, expected > 0), f"{params} keeps other tokens than the library"
    tolerance = 1e-6 if scores.dtype == torch.float32 else 1e-14
    torch.testing.assert_close(found, expected, rtol=20 * tolerance, atol=tolerance)
    torch.testing.assert_close(found.sum(-1), torch.ones_like(found[:, 0]), rtol=0, atol=1e-5)


def scores_of(kind: str, vocab: int, dtype: torch.dtype) -> Tensor:
    """[5, vocab]"""
    generator = torch.Generator().manual_seed(vocab)
    normal = torch.randn(5, vocab, generator=generator, dtype=torch.float64)
    made = {
        "normal": 2 * normal,
        "flat": 0.01 * normal,
        "tied": (2 * normal).round(),
        "one-hot": torch.where(normal == normal.amax(-1, keepdim=True), 60.0, 0.0),
        "holes": (2 * normal).masked_fill((normal < 0) & (normal < normal.amax(-1, keepdim=True)), -torch.inf),
        "single": normal.masked_fill(normal < normal.amax(-1, keepdim=True), -torch.inf),
    }
    return made[kind].to(dtype)


PARAMS = [
    SamplingParams(top_p=1.0),
    SamplingParams(temperature=0.3, top_p=1.0),
    SamplingParams(temperature=3.0, top_p=1.0),
    SamplingParams(top_k=1, top_p=1.0),
    SamplingParams(top_k=5, top_p=1.0),
    SamplingParams(top_k=100_000, top_p=1.0),
    SamplingParams(top_p=1e-6),
    SamplingParams(top_p=0.5),
    SamplingParams(top_p=0.9),
    SamplingParams(top_p=0.999),
    SamplingParams(min_p=0.05, top_p=1.0),
    SamplingParams(min_p=1.0, top_p=1.0),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.9, min_p=0.02),
    SamplingParams(temperature=1.7, top_k=3, top_p=0.8),
    SamplingParams(top_p=0.9, min_p=0.1),
]


@DTYPES
@pytest.mark.parametrize("vocab", (1, 2, 17, _SELECT, _SELECT + 1, 700))
@pytest.mark.parametrize("kind", ("normal", "flat", "holes", "single"))
def test_same_law_as_the_library(kind: str, vocab: int, dtype: torch.dtype) -> None:
    """ "flat" over 700 entries spreads its nucleus beyond the selection of 128: the whole row is sorted then."""
    scores = scores_of(kind, vocab, dtype)
    for params in PARAMS:
        agree(scores, params)


@DTYPES
@pytest.mark.parametrize("vocab", (2, 17, 700))
def test_one_likely_token(vocab: int, dtype: torch.dtype) -> None:
    for params in PARAMS:
        if params.top_p < 0.999:  # at 1 - e-26 of mass, 0.999 is decided by the sum's last digit
            agree(scores_of("one-hot", vocab, dtype), params)


@DTYPES
@pytest.mark.parametrize("vocab", (17, 700))
def test_ties(vocab: int, dtype: torch.dtype) -> None:
    """top-k keeps all that tie with the k-th; top-p keeps those that a stable sort keeps, as many as the library."""
    scores = scores_of("tied", vocab, dtype)
    for params in PARAMS:
        agree(scores, params, stable_oracle)
        kept = [(law > 0).sum(-1).tolist() for law in (warped_probs(scores, params), oracle(scores, params))]
        assert kept[0] == kept[1]
    equal = torch.zeros(2, vocab, dtype=dtype)
    kept = warped_probs(equal, SamplingParams(top_k=3, top_p=1.0)) > 0
    assert kept.sum(-1).tolist() == [vocab, vocab]


@DTYPES
def test_equal_scores_under_top_p_keep_the_librarys_tokens(dtype: torch.dtype) -> None:
    """8 equal scores, top_p = 0.3: three tokens, and the same three (binary fractions: no rounding in the sums)."""
    scores = torch.zeros(1, 8, dtype=dtype)
    agree(scores, SamplingParams(top_p=0.3))
    assert int((warped_probs(scores, SamplingParams(top_p=0.3)) > 0).sum()) == 3


@pytest.mark.parametrize("top_p", (0.2, 0.45, 0.7, 0.95))
def test_ties_across_the_selections_edge(top_p: float) -> None:
    """More equal scores than the selection holds."""
    scores = torch.zeros(3, 512, dtype=torch.float64)
    scores[1, 100:] = -1.0
    scores[2, ::2] = 1.0
    agree(scores, SamplingParams(top_p=top_p), stable_oracle)


def test_rows_that_need_the_whole_sort_do_not_change_their_neighbours() -> None:
    sharp, flat = scores_of("normal", 700, torch.float64), scores_of("flat", 700, torch.float64)
    together = warped_probs(torch.cat([sharp, flat]), SamplingParams(top_p=0.9))
    torch.testing.assert_close(together[:5], warped_probs(sharp, SamplingParams(top_p=0.9)), rtol=0, atol=1e-15)


def test_leading_dimensions_are_kept() -> None:
    scores = torch.randn(2, 3, 40, dtype=torch.float64)
    params = SamplingParams(0.8, 0.9, 12, 0.01)
    found = warped_probs(scores, params)
    assert found.shape == scores.shape
    torch.testing.assert_close(found[1, 2], warped_probs(scores[1, 2:3], params)[0])


def test_input_is_not_changed() -> None:
    scores = torch.randn(2, 300)
    before = scores.clone()
    warped_probs(scores, SamplingParams(0.8, 0.9, 12, 0.01))
    assert torch.equal(scores, before)


class TestWarper:
    def test_widens_half_precision_before_anything_else(self) -> None:
        logits = torch.randn(1, 2, 50).bfloat16()
        warper = Warper(SamplingParams(temperature=0.7, top_p=1.0))
        scores = warper.scores(logits, [[1]])
        assert scores.dtype == torch.float32 and torch.equal(scores, logits.float())
        assert warper.scores(logits.double(), [[1]]).dtype == torch.float64

    def test_processors_see_the_committed_and_the_drafted_prefix(self) -> None:
        seen: list[list[int]] = []

        def spy(ids: Tensor, scores: Tensor) -> Tensor:
            assert ids.shape[0] == scores.shape[0] == 1
            seen.append(ids[0].tolist())
            return scores

        Warper(SamplingParams(top_p=1.0), [spy]).scores(
            torch.randn(2, 3, 5), [[4, 4], [1]], torch.tensor([[2, 3], [0, 1]])
        )
        assert seen == [[4, 4], [4, 4, 2], [4, 4, 2, 3], [1], [1, 0], [1, 0, 1]]

    def test_processors_run_before_the_warpers(self) -> None:
        penalty = RepetitionPenaltyLogitsProcessor(penalty=1.5)
        params = SamplingParams(temperature=0.5, top_k=3, top_p=1.0)
        logits = torch.randn(1, 1, 9, dtype=torch.float64)
        warper = Warper(params, [penalty])
        found = warper.probs(warper.scores(logits, [[2, 5]]))
        expected = oracle(penalty(torch.tensor([[2, 5]]), logits[0].clone()), params)
        torch.testing.assert_close(found[0], expected, rtol=1e-12, atol=1e-14)

    def test_processed_scores_do_not_write_into_the_logits(self) -> None:
        logits = torch.randn(1, 2, 9)
        before = logits.clone()
        Warper(SamplingParams(top_p=1.0), [RepetitionPenaltyLogitsProcessor(penalty=2.0)]).scores(
            logits, [[2, 5]], torch.tensor([[3]])
        )
        assert torch.equal(logits, before)


@DTYPES
@pytest.mark.parametrize("temperature", (1e-7, 1e-30, 1e-40, 5e-324))
def test_a_temperature_near_zero_is_greedy_and_never_nan(temperature: float, dtype: torch.dtype) -> None:
    """Scores divided by it would overflow, and infinity minus infinity is no probability."""
    scores = scores_of("normal", 50, dtype)
    for params in (
        SamplingParams(temperature=temperature, top_p=1.0),
        SamplingParams(temperature, top_k=3, top_p=0.9, min_p=0.1),
    ):
        found = warped_probs(scores, params)
        assert torch.equal(found, torch.nn.functional.one_hot(scores.argmax(-1), 50).to(dtype))
