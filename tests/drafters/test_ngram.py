"""Prompt lookup: the index against a scan of the text, silence, and exactness."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from drafter_parity import check_parity

from decoder.drafters import NgramDrafter
from decoder.drafters.ngram import NgramIndex
from decoder.drafters.patience import strength
from decoder.testing import check_lossless


def scan(text: list[int], min_n: int, max_n: int, choose: str) -> tuple[int, int] | None:
    """(n, index to copy from) by looking at the whole text again; None without a match."""
    for n in range(max_n, min_n - 1, -1):
        suffix = text[-n:]
        ends = [end for end in range(n, len(text)) if text[end - n : end] == suffix]
        if len(text) <= n or not ends:
            continue
        if choose == "recent":
            return n, ends[-1]
        times = Counter(text[end] for end in ends)
        most = max(times.values())
        return n, max(end for end in ends if times[text[end]] == most)
    return None


@pytest.mark.parametrize("choose", ["recent", "frequent"])
def test_index_finds_what_a_scan_of_the_text_finds(choose):
    rng = random.Random(7)
    matches = Counter()
    for _ in range(60):
        vocab, min_n = rng.choice([2, 3, 6]), rng.choice([1, 1, 2])
        index, text = NgramIndex(min_n, 3, choose), []
        for _ in range(30):
            text += [rng.randrange(vocab) for _ in range(rng.choice([1, 1, 2, 5]))]
            index.extend(text)
            tokens, _ = index.continuation(text, 4)
            found, expected = index.match(text), scan(text, min_n, 3, choose)
            matches[found[0] if found else 0] += 1
            if expected is None:
                assert tokens == [] and found is None
                continue
            length, at = expected
            period = text[at:]
            assert found is not None and (found[0], found[1].follow) == (length, at)
            ends = [end for end in range(length, len(text)) if text[end - length : end] == text[-length:]]
            assert found[1].total == len(ends)
            if choose == "frequent":
                assert found[1].times == sum(text[end] == text[at] for end in ends)
            assert tokens == (period * 4)[:4]
    assert all(matches[n] for n in (0, 1, 2, 3)), matches


def test_the_end_of_the_text_does_not_match_itself():
    index = NgramIndex(1, 3, "recent")
    index.extend([1, 2, 3])
    assert index.continuation([1, 2, 3], 4) == ([], 0)
    index.extend([1, 2, 3, 1, 2])
    assert index.continuation([1, 2, 3, 1, 2], 4) == ([3, 1, 2, 3], strength(2))


def test_evidence_grows_with_the_agreement_beyond_max_n_and_falls_where_occurrences_disagree():
    copied = [*range(10, 30), 0, *range(10, 30)]
    seen = []
    for length in range(1, 12):
        text = copied[: 21 + length]
        index = NgramIndex(1, 2, "frequent")
        index.extend(text)
        tokens, kind = index.continuation(text, 3)
        assert tokens == copied[length : length + 3]
        seen.append(kind)
    assert seen == [strength(n) for n in range(1, 12)]
    assert seen[-1] > seen[0]
    divided = [1, 5, 1, 6, 1, 7, 1]
    index = NgramIndex(1, 2, "frequent")
    index.extend(divided)
    assert index.continuation(divided, 1) == ([7], 0)


def test_a_long_match_is_copied_further_than_a_short_one():
    text = list(range(40))
    lengths = []
    for n in (1, 2, 3, 8):
        again = [*text, 99, *text[10 : 10 + n]]
        run = run_of(NgramDrafter(), again)
        lengths.append(run.propose([again], [16]).counts[0])
    assert lengths == sorted(lengths) and lengths[0] < 4 and lengths[-1] == 16
    unshortened = run_of(NgramDrafter(min_chance=0), [*text, 99, 10])
    assert unshortened.propose([[*text, 99, 10]], [16]).counts == [16]


def test_recent_and_frequent_choose_differently():
    text = [1, 5, 1, 5, 1, 6, 1]
    for choose, first in (("recent", 6), ("frequent", 5)):
        index = NgramIndex(1, 1, choose)
        index.extend(text)
        assert index.continuation(text, 1)[0] == [first]


def run_of(drafter, *prompts):
    return drafter.start(prompts, None, None, 1000)


def test_limits_on_n_and_k():
    text = [1, 2, 3, 9, 1, 2, 3]
    assert run_of(NgramDrafter(), text).propose([text], [6]).counts == [6]
    assert run_of(NgramDrafter(max_k=2), text).propose([text], [6]).counts == [2]
    assert run_of(NgramDrafter(min_n=4, max_n=5), text).propose([text], [6]).counts == [0]
    assert run_of(NgramDrafter(), text).propose([text], [0]).counts == [0]


@pytest.mark.parametrize(
    "options, names",
    [
        ({"min_n": 0}, "min_n"),
        ({"min_n": 5}, "min_n=5, max_n=4"),
        ({"max_n": 2.0}, "max_n"),
        ({"choose": "first"}, "choose"),
        ({"max_k": 0}, "max_k"),
        ({"min_gain": -1}, "min_gain"),
        ({"min_chance": 1.5}, "min_chance"),
    ],
)
def test_bad_options_are_named(options, names):
    with pytest.raises((ValueError, TypeError), match=names):
        NgramDrafter(**options)


def test_falls_silent_when_nothing_agrees_and_speaks_when_it_would():
    """The text takes another way at every match, then settles into a loop."""
    run, text, spoke = run_of(NgramDrafter(max_n=1), [0]), [0], []
    for token in [n for i in range(1, 30) for n in (i, 0)] + [1, 2] * 20:
        spoke.append(run.propose([text], [4]).counts[0])
        text.append(token)
    first = spoke[: 2 * 29]
    assert sum(map(bool, first)) <= 6  # a few failures, then silence
    assert spoke[-10:] == [4] * 10


def test_without_a_floor_it_never_falls_silent():
    run, text, spoke = run_of(NgramDrafter(max_n=1, min_gain=0), [0]), [0], 0
    for i in range(1, 30):
        text += [i, 0]
        spoke += bool(run.propose([text], [4]).counts[0])
    assert spoke == 29


@pytest.mark.parametrize("options", [{}, {"choose": "frequent"}, {"min_gain": 0, "max_n": 2}])
def test_greedy_equals_generate(options):
    seen = check_parity(NgramDrafter(**options))
    assert all(seen[fate] for fate in ("all", "part", "none")), seen


@pytest.mark.parametrize("choose", ["recent", "frequent"])
def test_lossless(choose):
    check_lossless(NgramDrafter(choose=choose))
    check_lossless(NgramDrafter(choose=choose, min_gain=0, min_chance=0))
