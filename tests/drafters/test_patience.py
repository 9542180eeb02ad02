"""The account a drafter keeps of its own proposals."""

from __future__ import annotations

from decoder.drafters.patience import Patience


def test_a_silent_proposal_is_judged_by_the_text_that_came():
    patience = Patience(0.25)
    text = [0]
    for _ in range(3):
        assert patience.offer(len(text), [7, 7], 1) == [7, 7]
        text.append(0)
        patience.review(text)
    assert patience.offer(len(text), [7, 7], 1) == []
    text.append(7)
    patience.review(text)  # one of two tokens is there: too early to tell
    assert patience.offer(len(text), [7], 1) == []
    text.append(7)
    patience.review(text)
    assert patience.offer(len(text), [7], 1) == [7]


def test_kinds_are_judged_apart():
    patience = Patience(1.0)
    text = [0]
    for _ in range(4):
        patience.offer(len(text), [7], 1)
        text.append(0)
        patience.review(text)
    assert patience.offer(len(text), [7], 1) == []
    text.append(0)
    patience.review(text)
    assert patience.offer(len(text), [7], 2) == [7]


def test_a_proposal_that_was_not_used_is_judged_all_the_same():
    """In a cascade another drafter may have served: three of its tokens settle this proposal of two."""
    patience = Patience(0.25)
    before = patience.worth(1)
    patience.offer(1, [4, 5], 1)
    patience.review([0, 4, 5, 6])
    assert patience.worth(1) == before + 0.25 * (2 - before)
