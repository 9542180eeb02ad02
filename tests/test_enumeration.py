"""The law of the real loop, to the last digit: every outcome of every random choice is walked and weighed.

The oracle enumerates sequences from the definition, with transformers' own processors and warpers in float64
(`decoder.testing.law`); nothing of the package's sampling takes part in it. Tables are context-dependent, so a slip of
one position changes the law.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

from decoder.drafters import ModelDrafter, NgramDrafter, NoDrafter
from decoder.models.toy import TableModel
from decoder.testing import Case, assert_exact, check_lossless, enumerate_law, law_error
from decoder.types import Draft, Drafter, RandomSource, SamplingParams, Warp


class Wavering(Drafter):
    """Exact though it looks dishonest: how many tokens, from which law, and whether drawn at all depend on the past."""

    name = "wavering"

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab

    def start(self, contexts: Sequence[Sequence[int]], warp: Warp, random: RandomSource, limit: int) -> Wavering:
        run = Wavering(self.vocab)
        run.random = random
        return run

    def propose(self, contexts: Sequence[Sequence[int]], counts: Sequence[int]) -> Draft:
        marks = [sum((i + 2) * (token + 1) for i, token in enumerate(context)) for context in contexts]
        counts = [min(k, mark % 3) for k, mark in zip(counts, marks, strict=True)]
        width = max(counts)
        ramp = torch.arange(1.0, self.vocab + 1, dtype=torch.float64)
        laws = (
            torch.stack([torch.stack([ramp.roll(mark + i) ** 2 for i in range(width)]) for mark in marks])
            if width
            else None
        )
        if laws is None:
            return Draft(torch.zeros(len(contexts), 0, dtype=torch.long), counts)
        for row, mark in enumerate(marks):
            if mark % 2:  # this row is deterministic, and says so
                laws[row] = torch.nn.functional.one_hot(torch.full((width,), mark % self.vocab), self.vocab)
        laws = laws / laws.sum(-1, keepdim=True)
        tokens = self.random.draw(laws, [len(context) for context in contexts], counts)
        return Draft(tokens, counts, laws)


PENALTY = (RepetitionPenaltyLogitsProcessor(penalty=1.8), NoRepeatNGramLogitsProcessor(2))
WARPS = {
    "plain": (SamplingParams(top_p=1.0), ()),
    "temperature": (SamplingParams(temperature=0.6, top_p=1.0), ()),
    "top-k": (SamplingParams(top_k=2, top_p=1.0), ()),
    "top-p": (SamplingParams(top_p=0.75), ()),
    "min-p": (SamplingParams(min_p=0.4, top_p=1.0), ()),
    "all four": (SamplingParams(temperature=1.4, top_k=2, top_p=0.95, min_p=0.1), ()),
    "processors": (SamplingParams(temperature=0.9, top_p=1.0), PENALTY),
}
SAMPLED = ("good", "poor", "wavering")
DRAFTERS = (*SAMPLED, "greedy", "ngram", "none")
VERIFIERS = ("token", "block", "match", "auto")
ONE, PAIR = ((0, 1),), ((0, 1), (1, 0, 1, 1, 0))


def drafter_for(name: str, target: TableModel) -> Drafter:
    vocab, dtype = target.vocab_size, target.table.dtype
    made = {
        "good": lambda: ModelDrafter(target.near(1, 0.3)),
        "poor": lambda: ModelDrafter(TableModel.random(vocab, 9, 1.5, dtype)),
        "greedy": lambda: ModelDrafter(target.near(1, 0.3), sample=False),
        "wavering": lambda: Wavering(vocab),
        "ngram": NgramDrafter,
        "none": NoDrafter,
    }
    return made[name]()


def case_of(verifier: str, drafter: str, warp: str = "plain", k: int = 2, dtype: torch.dtype = torch.float64) -> Case:
    """A configuration with a small tree: match draws at every position, so sampled drafts meet it over two tokens."""
    params, processors = WARPS[warp]
    bushy = verifier == "match" and drafter in SAMPLED and k > 1
    if bushy:
        processors = processors[:1]  # over two tokens a ban of repeated pairs soon bans everything
    target = TableModel.random(2 if bushy else 3, 0, dtype=dtype)
    return Case(
        target,
        drafter_for(drafter, target),
        verifier,
        params,
        processors,
        k,
        new_tokens=(3 if processors else 4) + (k > 2),
        eos=frozenset() if bushy else frozenset({2}),
        prompts=ONE,
    )


@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_law(verifier: str, drafter: str, warp: str) -> None:
    """Every verifier with every drafter and every warper, EOS included."""
    for k in (1, 2):
        assert_exact(case_of(verifier, drafter, warp, k), 1e-12)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_law_in_float32(verifier: str, drafter: str) -> None:
    for warp in ("plain", "all four"):
        assert_exact(case_of(verifier, drafter, warp, dtype=torch.float32), 1e-6)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_law_at_three_drafted_tokens(verifier: str, drafter: str) -> None:
    if verifier == "match" and drafter in SAMPLED:
        pytest.skip("a tree of a hundred thousand leaves: test_law_of_everything walks it")
    assert_exact(case_of(verifier, drafter, "top-k", 3), 1e-12)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_rows_of_a_ragged_batch_keep_their_laws(verifier: str, drafter: str) -> None:
    """Two prompts of different length, thousands of leaves of both in one batch, ending at different rounds."""
    assert_exact(case_of(verifier, drafter).with_(prompts=PAIR), 1e-12)


@pytest.mark.parametrize("batch_rows", (1, 2))
@pytest.mark.parametrize("drafter", ("good", "greedy", "wavering", "ngram"))
@pytest.mark.parametrize("verifier", ("token", "auto"))
def test_one_row_and_two_rows_at_a_time(verifier: str, drafter: str, batch_rows: int) -> None:
    prompts = PAIR if batch_rows == 2 else ONE
    assert_exact(case_of(verifier, drafter).with_(prompts=prompts, batch_rows=batch_rows, new_tokens=3), 1e-12)


@pytest.mark.parametrize("verifier", ("token", "block", "auto"))
def test_without_eos_every_row_runs_to_its_length(verifier: str) -> None:
    assert_exact(case_of(verifier, "good").with_(eos=frozenset()), 1e-12)


def check_block_on_many_tables(tolerance: float = 1e-12) -> None:
    """Good drafts: the token residual is off by little on some tables, and on others not at all."""
    for seed in range(10):
        target = TableModel.random(3, seed)
        case = Case(target, ModelDrafter(target.near(seed + 50, 0.4)), "block", k=2, new_tokens=4)
        assert_exact(case, tolerance, f"table {seed}")


def test_block_on_many_tables() -> None:
    check_block_on_many_tables()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=("float32", "float64"))
@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_law_of_everything(verifier: str, drafter: str, warp: str, dtype: torch.dtype) -> None:
    """The whole product in both dtypes; at k = 3 in float64, of the widest trees (match, sampled) one."""
    single = dtype == torch.float32
    wide = verifier == "match" and drafter in SAMPLED and (drafter, warp) != ("good", "plain")
    for k in (1, 2) if single or wide else (1, 2, 3):
        assert_exact(case_of(verifier, drafter, warp, k, dtype), 1e-6 if single else 1e-12)


def test_a_draft_that_reads_the_prompt_late_and_one_that_stops_when_unsure() -> None:
    """The recipes that k="auto" uses: feeding the prompt with the first proposal, stopping below a confidence."""
    case = case_of("block", "good")
    assert_exact(case.with_(drafter=case.drafter.deferred(), prompts=PAIR), 1e-12)
    for threshold in (0.45, 0.6):
        for verifier in ("token", "auto"):
            stopping = case.drafter.stopping_below(threshold)
            assert_exact(case.with_(drafter=stopping, verifier=verifier, prompts=PAIR), 1e-12)


def test_draft_equal_to_target() -> None:
    """q = p leaves no residual mass anywhere."""
    for verifier in ("token", "block"):
        case = case_of(verifier, "good")
        assert_exact(case.with_(drafter=ModelDrafter(case.target)), 1e-12)


def test_laws_that_cannot_propose_what_the_target_emits() -> None:
    """A draft whose support misses tokens of the target, and the other way round."""
    target = TableModel.random(3, 0)
    blind, wide = target.table.clone(), target.table.clone()
    blind[..., 1] = -torch.inf  # the draft never says 1
    wide[..., 0] = -torch.inf  # the target never says 0
    for verifier in ("token", "block"):
        case = Case(target, ModelDrafter(TableModel(blind)), verifier, eos=frozenset({2}))
        assert_exact(case, 1e-12)
        assert_exact(case.with_(target=TableModel(wide), drafter=ModelDrafter(target)), 1e-12)


def test_greedy_draft_under_a_sampling_target_keeps_the_targets_law() -> None:
    """p = [.6, .4], q = [.8, .2] drafted by argmax must stay [.6, .4]."""
    target = TableModel(torch.tensor([0.6, 0.4], dtype=torch.float64).log().expand(2, 2, 2).clone())
    draft = TableModel(torch.tensor([0.8, 0.2], dtype=torch.float64).log().expand(2, 2, 2).clone())
    for verifier in VERIFIERS:
        case = Case(target, ModelDrafter(draft, sample=False), verifier, new_tokens=3, k=2)
        law = enumerate_law(case).laws[0]
        first_after_prefill = sum(mass for tokens, mass in law.items() if tokens[1] == 0)
        assert abs(first_after_prefill - 0.6) < 1e-12


class Dishonest(ModelDrafter):
    """Draws from q and reports its square root: what `check_lossless` is there to catch."""

    def start(self, contexts, warp, random, limit):
        run = super().start(contexts, warp, random, limit)
        run.__class__ = Dishonest
        return run

    def propose(self, contexts, counts):
        draft = super().propose(contexts, counts)
        if draft.probs is None:
            return draft
        soft = draft.probs.sqrt()
        return Draft(draft.tokens, draft.counts, soft / soft.sum(-1, keepdim=True), draft.finite)


class Remembering(NgramDrafter):
    """Proposals depend on how often it was asked, in any row: no function of a row's past."""

    calls = 0

    def start(self, contexts, warp, random, limit):
        Remembering.calls += 1
        run = super().start(contexts, warp, random, limit)
        run.__class__ = Remembering
        return run

    def propose(self, contexts, counts):
        return super().propose(contexts, [k if Remembering.calls % 2 else 0 for k in counts])


class TestCheckLossless:
    def test_accepts_exact_drafters(self) -> None:
        report = check_lossless(NgramDrafter(), ks=(1, 2))
        assert len(report.cases) >= 10 and report.greedy_tokens > 300
        assert max(case.total_variation for case in report.cases) < 1e-12
        assert "lossless" in str(report) and "greedy" in str(report)
        check_lossless(lambda target: ModelDrafter(target.near(1, 0.5)), ks=(2,), verifiers=("auto", "token"))

    def test_rejects_a_dishonest_law_naming_the_distance_and_the_sequence(self) -> None:
        with pytest.raises(AssertionError, match=r"not lossless, total variation 0\.\d+ .*the tokens \[.*instead of"):
            check_lossless(lambda target: Dishonest(target.near(1, 0.5)), ks=(1,), verifiers=("token",))

    def test_rejects_a_drafter_that_is_no_function_of_the_past(self) -> None:
        with pytest.raises(AssertionError, match="past"):
            check_lossless(Remembering(), ks=(2,), verifiers=("auto",))

    def test_names_a_wrong_argument(self) -> None:
        with pytest.raises(TypeError, match="must be a Drafter or a callable"):
            check_lossless(3)
        with pytest.raises(TypeError, match="must return a Drafter"):
            check_lossless(lambda target: None)


def test_the_method_sees_a_fault_of_a_thousandth() -> None:
    """The yardstick itself: a target law moved by 0.001 at one position shows as that much total variation."""
    case = case_of("block", "good")
    moved = case.target.table.clone()
    moved[0, 1, 0] += 0.005
    distance = law_error(case)
    assert distance < 1e-12
    found = enumerate_law(case.with_(target=TableModel(moved))).laws[0]
    expected = case.expected(case.prompts[0])
    assert 2e-4 < 0.5 * sum(abs(found.get(s, 0) - expected.get(s, 0)) for s in {*found, *expected}) < 5e-3
