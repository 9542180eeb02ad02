"""The account a drafter keeps of its own proposals."""

from __future__ import annotations

import random

import pytest

from decoder.drafters.patience import Patience, strength


def failing(patience: Patience, text: list[int], kind: int, most: int = 40) -> int:
    """Proposals that fail until it is silent."""
    for count in range(most):
        if not patience.offer(len(text), [7, 7], kind):
            return count
        text.append(0)
        patience.review(text)
    return most


def test_a_silent_proposal_is_judged_by_the_text_that_came():
    patience = Patience(0.25)
    text = [0]
    assert 2 <= failing(patience, text, 1) <= 6
    text.append(7)
    patience.review(text)  # one of two tokens is there: too early to tell
    assert patience.offer(len(text), [7], 1) == []
    text.append(7)
    patience.review(text)
    assert patience.offer(len(text), [7], 1) == [7]


def test_kinds_are_judged_apart():
    patience, text = Patience(0.25), [0]
    assert failing(patience, text, 1) < 40
    text.append(0)
    patience.review(text)
    assert patience.offer(len(text), [7], 2) == [7]


def test_even_the_best_evidence_is_not_trusted_for_ever():
    assert 5 < failing(Patience(0.25), [0], 5) < 25


def test_a_proposal_that_was_not_used_is_judged_all_the_same():
    """In a cascade another drafter may have served: three of its tokens settle this proposal of two."""
    patience = Patience(0.25)
    before = patience.chances(1, 2)
    patience.offer(1, [4, 5], 1)
    patience.review([0, 4, 5, 6])
    after = patience.chances(1, 2)
    assert after[0] == pytest.approx(before[0] + 0.15 * (1 - before[0]))
    assert after[1] > before[1]


def test_chances_approach_what_really_holds():
    """First token with chance 0.6, each further one with chance 0.8."""
    rng = random.Random(3)
    patience, text, seen = Patience(0.25), [0], []
    for _ in range(4000):
        held = 0
        if rng.random() < 0.6:
            held = 1
            while held < 6 and rng.random() < 0.8:
                held += 1
        patience.offer(len(text), [7] * 6, 2)
        text += [7] * held + [0] * (6 - held)
        patience.review(text)
        seen.append(patience.chances(2, 3))
    means = [sum(column) / len(seen) for column in zip(*seen, strict=True)]
    assert means[0] == pytest.approx(0.6, abs=0.03)
    assert means[1] == pytest.approx(0.6 * 0.8, abs=0.05)


def test_a_proposal_is_cut_where_it_will_hardly_hold_but_never_to_nothing():
    tokens = list(range(16))
    assert len(Patience(0.25, 0.1).offer(1, tokens, strength(1))) == 3  # 0.3, 0.18, 0.108
    assert len(Patience(0.25, 0.1).offer(1, tokens, strength(8))) == 16
    assert len(Patience(0.0, 0.9).offer(1, tokens, 0)) == 1
    assert Patience(0.25, 0.0).offer(1, tokens, 0) == tokens


def test_strength_rises_with_the_match_and_falls_to_nothing_where_followers_differ():
    assert [strength(n) for n in (1, 2, 3, 4, 5, 7, 8, 99)] == [1, 2, 3, 3, 4, 4, 5, 5]
    assert strength(6, 0.5) == strength(6) and strength(6, 0.49) == 0
