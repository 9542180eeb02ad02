"""`check_lossless`: is this drafter exact? For people who write one.

    from decoder.testing import check_lossless

    def test_my_drafter():
        print(check_lossless(MyDrafter()))                                        # needs no model
        print(check_lossless(lambda target: ModelDrafter(target.near(1, 0.5))))   # drafts with a model

The drafter runs in the real loop, with the real verifiers, over tiny context-dependent table models. All outcomes of
all random choices are walked, and the law of the whole generated sequences is compared with the target's own, which
transformers' processors and warpers define. Greedy decoding must give the target's argmax, token for token.

What it cannot see: a drafter that is exact but drafts badly (look at `acceptance_rate`), and one that goes wrong only
with more than a few tokens of vocabulary; run `generate` against `generate_baseline` at temperature 0 for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from decoder.loop import Row, run
from decoder.models.toy import TableModel
from decoder.testing.enumeration import Case, assert_exact
from decoder.testing.replay import ReplayRows
from decoder.types import Drafter, Limits, SamplingParams

Recipe = Drafter | Callable[[TableModel], Drafter]
_WARPED = SamplingParams(temperature=0.7, top_p=0.9)
_CUT = SamplingParams(temperature=1.3, top_k=2, top_p=1.0)


@dataclass(frozen=True)
class Checked:
    """One configuration that was exact."""

    name: str
    total_variation: float


@dataclass(frozen=True)
class LosslessReport:
    """Everything `check_lossless` tried; all of it was exact."""

    drafter: str
    cases: tuple[Checked, ...]
    greedy_tokens: int

    def __str__(self) -> str:
        lines = [f"{self.drafter}: lossless in {len(self.cases)} configurations"]
        lines += [f"  {case.name:<44} total variation {case.total_variation:.1e}" for case in self.cases]
        return "\n".join([*lines, f"  greedy: {self.greedy_tokens} tokens equal to the target's argmax"])


def build(recipe: Recipe, target: TableModel) -> Drafter:
    """The drafter for this target: the one given, or what the given callable makes of the target."""
    if isinstance(recipe, Drafter):
        return recipe
    if not callable(recipe):
        raise TypeError(f"drafter={recipe!r} must be a Drafter or a callable that makes one from a TableModel.")
    made = recipe(target)
    if not isinstance(made, Drafter):
        raise TypeError(f"drafter={recipe!r} returned {made!r} for a TableModel; it must return a Drafter.")
    return made


def _cases(recipe: Recipe, ks: Sequence[int], verifiers: Sequence[str], batch_rows: int) -> Iterator[tuple[str, Case]]:
    """(name, case), from the plain to the involved."""
    three, two = TableModel.random(3, 0), TableModel.random(2, 1)
    for k in ks:
        for verifier in verifiers:
            # Match draws a token at every position whatever was drafted, so its tree is walked over two tokens.
            target = two if verifier == "match" else three
            case = Case(target, build(recipe, target), verifier, k=k, batch_rows=batch_rows)
            name = f"{verifier}, k={k}"
            yield f"{name}, ragged pair", case.with_(prompts=((0, 1), (1, 0, 1, 1, 0)), new_tokens=4)
            yield f"{name}, temperature and top-p", case.with_(params=_WARPED, new_tokens=k + 2)
            if target is three:
                yield f"{name}, top-k, EOS", case.with_(params=_CUT, new_tokens=k + 2, eos=frozenset({2}))
                ended = case.with_(prompts=((0, 1), (1, 0, 1, 1, 0)), new_tokens=3, eos=frozenset({2}))
                yield f"{name}, ragged pair, EOS", ended  # rows end apart: what is kept per row must follow `select`
    target = three
    case = Case(target, build(recipe, target), k=min(2, max(ks)), batch_rows=batch_rows)
    penalty = RepetitionPenaltyLogitsProcessor(penalty=1.7)
    yield "auto, repetition penalty", case.with_(processors=(penalty,), new_tokens=3)
    yield "auto, one row at a time", case.with_(new_tokens=3, batch_rows=1, eos=frozenset({2}))


def argmax_walk(target: TableModel, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """What greedy decoding of a table must give."""
    tokens = [0, *prompt]
    for _ in range(new_tokens):
        tokens.append(int(target.table[tokens[-2], tokens[-1]].argmax()))
    return tokens[1 + len(prompt) :]


def check_greedy(recipe: Recipe, ks: Sequence[int], new_tokens: int = 24) -> int:
    """Greedy decoding of a ragged batch whose rows end at different times; returns the tokens compared.

    Raises:
        AssertionError: naming k, the prompt, and the first token that differs.
    """
    compared = 0
    prompts = ((0, 1, 2, 3, 4), (3,), (1, 1, 2), (4, 0, 4, 0))
    for seed in range(3):
        target = TableModel.random(5, seed)
        drafter = build(recipe, target)
        for k in ks:
            case = Case(target, drafter, params=SamplingParams(0.0), k=k)
            rows = [
                Row(n, list(prompt), len(prompt), Limits(new_tokens - 5 * n, 1 << 30))
                for n, prompt in enumerate(prompts)
            ]
            for _ in run(rows, case.parts(len(rows), ReplayRows([()] * len(rows)))):
                pass
            for row, prompt in zip(rows, prompts, strict=True):
                wanted = argmax_walk(target, prompt, row.limits.max_new_tokens)
                found = row.tokens[row.prompt_length :]
                differ = next(
                    (i for i, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), None
                )
                assert found == wanted, (
                    f"{drafter.name}: greedy decoding differs at k={k} after prompt {list(prompt)}: "
                    f"{len(found)} tokens for {len(wanted)}, new token {differ} differs: {found} instead of {wanted}"
                )
                compared += len(wanted)
    return compared


def check_lossless(
    drafter: Recipe,
    *,
    ks: Sequence[int] = (1, 2, 3),
    verifiers: Sequence[str] = ("auto", "token", "match"),
    tolerance: float = 1e-6,
    batch_rows: int = 2000,
) -> LosslessReport:
    """Prove a drafter exact on table models, or say where it is not. Takes a few seconds.

    drafter: a `Drafter`, or a callable that takes the target (a `TableModel`) and returns one.
    ks: drafted tokens a round.   verifiers: names of `decoder.verify.VERIFIERS`.
    tolerance: largest total variation allowed; the tables are float64, so only the drafter's own rounding shows.
    batch_rows: outcomes that share a run; give 1 for a drafter whose rows learn from each other.

    Raises:
        AssertionError: the drafter is not exact; the message has the total variation and the worst sequence.
        TypeError: `drafter` is neither a drafter nor makes one.
    """
    checked = []
    name = build(drafter, TableModel.random(3, 0)).name
    with torch.inference_mode():
        for label, case in _cases(drafter, ks, verifiers, batch_rows):
            checked.append(Checked(label, assert_exact(case, tolerance, f"{name} ({label})")))
        tokens = check_greedy(drafter, (*ks, 8))
    return LosslessReport(name, tuple(checked), tokens)
