"""The suffix automaton against a scan of the text, its cost at length, the memory, and exactness."""

from __future__ import annotations

import copy
import pickle
import random
import threading

import numpy as np
import pytest
from drafter_parity import PROMPTS, check_parity, library_greedy, small_target

from decoder import SpeculativeDecoder
from decoder.drafters import SuffixDrafter, SuffixMemory
from decoder.drafters.automaton import Cursor, SuffixAutomaton
from decoder.testing import check_lossless


def followers(texts: list[list[int]], suffix: list[int]) -> list[int]:
    """What followed each occurrence of `suffix`, in order; by scanning."""
    n = len(suffix)
    return [text[at + n] for text in texts for at in range(len(text) - n) if text[at : at + n] == suffix]


def occurs(texts: list[list[int]], piece: list[int]) -> bool:
    return any(text[at : at + len(piece)] == piece for text in texts for at in range(len(text) - len(piece) + 1))


def test_match_and_frequencies_equal_those_of_a_scan():
    rng = random.Random(0)
    longest = 0
    for _ in range(80):
        vocab, text, automaton = rng.choice([2, 3, 5]), [], SuffixAutomaton()
        for _ in range(rng.randint(1, 40)):
            text.append(rng.randrange(vocab))
            automaton.extend(text[-1])
            state = max(automaton.link[automaton.last], 0)
            wanted = max(n for n in range(len(text)) if n == 0 or followers([text], text[-n:]))
            assert automaton.length[state] == wanted
            longest = max(longest, wanted)
            if wanted:
                after = followers([text], text[-wanted:])
                assert automaton.total[state] == len(after)
                assert automaton.best_count[state] == after.count(automaton.best[state])
                assert automaton.best_count[state] == max(map(after.count, after))
    assert longest > 5


def test_cursor_follows_other_texts_while_they_grow():
    rng = random.Random(1)
    for _ in range(80):
        automaton, texts, query = SuffixAutomaton(), [], []
        early = Cursor(automaton)
        for _ in range(4):
            automaton.restart()
            texts.append([])
            for _ in range(rng.randint(1, 15)):
                texts[-1].append(rng.randrange(3))
                automaton.extend(texts[-1][-1])
                if rng.random() < 0.5:
                    query.append(rng.randrange(3))
                    early.advance(query[-1])
        late = Cursor(automaton)
        for token in query:
            late.advance(token)
        wanted = max(n for n in range(len(query) + 1) if occurs(texts, query[len(query) - n :]))
        assert late.matched == wanted
        assert early.matched <= wanted and occurs(texts, query[len(query) - early.matched :])
        after = followers(texts, query[len(query) - wanted :]) if wanted else []
        if after:
            assert automaton.total[late.state] == len(after)
            assert automaton.best_count[late.state] == max(map(after.count, after))


def steps_for(tokens: list[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for token in tokens:
        automaton.extend(token)
    return automaton


@pytest.mark.parametrize("kind", ["phrases", "one token", "period", "random"])
def test_cost_per_token_is_constant_at_100_000_tokens(kind):
    """States visited, not seconds: a token costs as much at the end of a long text as at its beginning."""
    rng, n = random.Random(3), 100_000
    if kind == "phrases":
        words = [rng.randrange(2000) for _ in range(500)]
        text = [token for _ in range(n // 20) for at in [rng.randrange(480)] for token in words[at : at + 20]]
    else:
        text = {
            "one token": lambda: [7] * n,
            "period": lambda: [3, 1, 4, 1, 5] * (n // 5),
            "random": lambda: [rng.randrange(50_000) for _ in range(n)],
        }[kind]()
    automaton = steps_for(text[: n // 2])
    half = automaton.visits
    for token in text[n // 2 :]:
        automaton.extend(token)
    assert automaton.visits <= 20 * n
    assert automaton.visits - half <= 1.3 * half  # the second half costs no more than the first
    assert len(automaton.length) <= 2 * n


def test_looking_up_walks_only_the_draft():
    automaton = steps_for([1, 2, 3, 4] * 2000)
    before = automaton.visits
    state = automaton.link[automaton.last]
    assert automaton.continuation(state, 6, 0.1) == [1, 2, 3, 4, 1, 2]
    assert automaton.visits == before


def proposal(drafter, text, k=8):
    draft = drafter.start([text], None, None, 1000).propose([text], [k])
    return draft.tokens[0, : draft.counts[0]].tolist()


def test_longest_match_then_frequency():
    text = [1, 2, 3, 9, 2, 4, 9, 2, 4, 9, 1, 2]
    assert proposal(SuffixDrafter(growth=4), text, 1) == [3]  # after 1 2; after 2 alone, 4 is more frequent
    assert proposal(SuffixDrafter(growth=4), text[1:], 1) == [4]  # no 1 before: the match is 2 alone
    assert proposal(SuffixDrafter(growth=4), [9, *text[4:-2], 2], 1) == [4]


def test_draft_grows_with_the_match_and_stops_where_the_text_is_unsure():
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    free = {"min_chance": 0, "min_gain": 0}
    for matched in (1, 2, 4):
        assert len(proposal(SuffixDrafter(growth=1, **free), [*text, *text[:matched]])) == matched
        assert len(proposal(SuffixDrafter(growth=2, **free), [*text, *text[:matched]])) == min(8, 2 * matched)
    unsure = [1, 2, 5, 1, 2, 6, 1, 2, 7, 1, 2]
    assert proposal(SuffixDrafter(min_prob=0.5, **free), unsure) == []
    assert proposal(SuffixDrafter(min_prob=0.3, growth=1, **free), unsure) == [7, 1]
    assert proposal(SuffixDrafter(min_match=3, **free), unsure) == []
    assert proposal(SuffixDrafter(min_prob=0.3), unsure) == []  # three ways to go on: too little to pay
    short, long = (proposal(SuffixDrafter(growth=9), [*text, *text[:matched]]) for matched in (1, 4))
    assert len(short) < len(long)


@pytest.mark.parametrize(
    "options, names",
    [({"min_match": 0}, "min_match"), ({"growth": -1}, "growth"), ({"min_prob": 2}, "min_prob"), ({"memory": 3}, "")],
)
def test_bad_options_are_named(options, names):
    with pytest.raises((ValueError, TypeError), match=names):
        SuffixDrafter(**options)


def test_greedy_equals_generate():
    seen = check_parity(SuffixDrafter(growth=3))
    assert all(seen[fate] for fate in ("all", "part", "none")), seen


def test_greedy_equals_generate_with_a_memory_that_knows_the_text():
    drafter = SuffixDrafter(memory=True)
    target = small_target(4)
    decoder = SpeculativeDecoder.from_models(target, drafter=drafter, temperature=0)
    wanted = [library_greedy(target, prompt, 40) for prompt in PROMPTS]
    first = decoder.generate([list(prompt) for prompt in PROMPTS], max_new_tokens=40, k=8)
    assert len(drafter.memory.texts()) == len(PROMPTS)
    second = decoder.generate([list(prompt) for prompt in PROMPTS], max_new_tokens=40, k=8)
    for results in (first, second):
        assert [list(result.token_ids) for result in results] == wanted
    assert sum(len(result.steps) for result in second) < sum(len(result.steps) for result in first)


def test_lossless():
    check_lossless(SuffixDrafter(growth=3, min_prob=0))


def test_lossless_with_a_memory():
    memory = SuffixMemory(1000)
    memory.add([[0, 1, 2, 0, 1, 1, 0, 2, 2, 1], [1, 1, 1, 0, 1, 0, 0]])
    check_lossless(SuffixDrafter(memory=memory, min_prob=0, growth=3))


# ---- memory ----


def test_memory_is_bounded_and_keeps_the_newest():
    memory = SuffixMemory(100)
    for number in range(50):
        memory.add([[number] * 7])
        assert len(memory) <= 100
    assert [number] * 7 in memory.texts()
    assert len(memory) >= 50
    memory.add([list(range(1000))])
    assert len(memory) <= 100 and memory.texts()[-1] == list(range(950, 1000))


def test_rows_of_one_run_do_not_see_each_other():
    drafter = SuffixDrafter(memory=True)
    run = drafter.start([[1, 2], [3, 4]], None, None, 100)
    run.finish([[1, 2, 8, 9], [3, 4]], [0])
    assert drafter.memory.texts() == []
    run.select([1])
    run.finish([[3, 4, 5]], [0])
    assert drafter.memory.texts() == [[1, 2, 8, 9], [3, 4, 5]]


def test_a_stale_place_in_a_forgotten_half_is_given_up():
    memory = SuffixMemory(40)
    memory.add([[1, 2, 3, 4, 5, 6]])
    drafter = SuffixDrafter(memory=memory, growth=4)
    text = [1, 2, 3]
    run = drafter.start([text], None, None, 100)
    assert run.propose([text], [2]).tokens.tolist() == [[4, 5]]
    for number in range(20):
        memory.add([[50 + number] * 10])
    assert run.propose([[*text, 4]], [2]).counts == [0]
    memory.add([[3, 4, 7, 8]])
    assert run.propose([[*text, 4]], [2]).counts == [0]  # its cursors know the new text only from here on
    fresh = drafter.start([[*text, 4]], None, None, 100)
    assert fresh.propose([[*text, 4]], [2]).tokens.tolist() == [[7, 8]]


def test_memory_survives_a_file(tmp_path):
    memory = SuffixMemory(500)
    rng = random.Random(5)
    memory.add([[rng.randrange(30) for _ in range(40)] for _ in range(6)])
    memory.save(tmp_path / "memory.npz")
    loaded = SuffixMemory.load(tmp_path / "memory.npz")
    assert loaded.texts() == memory.texts() and loaded.max_tokens == 500
    text = memory.texts()[2][:9]
    assert proposal(SuffixDrafter(memory=loaded), text) == proposal(SuffixDrafter(memory=memory), text) != []
    empty = SuffixMemory(10)
    empty.save(tmp_path / "empty.npz")
    assert SuffixMemory.load(tmp_path / "empty.npz").texts() == []


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("code from the file was run",))


def test_a_file_cannot_run_code_and_damage_is_refused(tmp_path):
    path = tmp_path / "memory.npz"
    good = {"format": 1, "max_tokens": 10, "tokens": np.arange(4), "lengths": np.array([4])}
    for change in (
        {"tokens": np.array([Trap()], dtype=object)},
        {"tokens": np.arange(3)},
        {"tokens": np.array([0.5, 1, 2, 3])},
        {"tokens": np.array([-1, 1, 2, 3])},
        {"lengths": np.array([-1, 5])},
        {"format": 2},
    ):
        np.savez(path, **{**good, **change})
        with pytest.raises(ValueError, match=r"save\(\)"):
            SuffixMemory.load(path)
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=r"save\(\)"):
        SuffixMemory.load(path)
    with pytest.raises(FileNotFoundError):
        SuffixMemory.load(tmp_path / "absent.npz")


def test_a_copy_is_independent():
    memory = SuffixMemory(100)
    memory.add([[1, 2, 3]])
    twin = copy.deepcopy(memory)
    twin.add([[4]])
    assert memory.texts() == [[1, 2, 3]] and twin.texts() == [[1, 2, 3], [4]]


def test_runs_in_threads_share_a_memory_and_stay_exact():
    target = small_target(6)
    decoder = SpeculativeDecoder.from_models(target, drafter=SuffixDrafter(memory=SuffixMemory(120)), temperature=0)
    wanted = {n: library_greedy(target, prompt, 24) for n, prompt in enumerate(PROMPTS)}
    found: list[tuple[int, list[int]]] = []

    def work(n: int) -> None:
        for _ in range(3):
            found.append((n, list(decoder.generate(PROMPTS[n], max_new_tokens=24, k=4).token_ids)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 * len(PROMPTS)
    assert all(tokens == wanted[n] for n, tokens in found)


def test_an_id_outside_the_vocabulary_is_never_proposed():
    """A memory of another tokenizer may hold one; it must not reach the target."""
    target = small_target(0)
    memory = SuffixMemory(100)
    memory.add([[token, 900 + token] for token in range(16)])  # whatever comes, one of these follows
    decoder = SpeculativeDecoder.from_models(target, drafter=SuffixDrafter(memory=memory, growth=4, min_gain=0))
    greedy = decoder.generate([5, 6], max_new_tokens=20, temperature=0)
    assert list(greedy.token_ids) == library_greedy(target, [5, 6], 20)
    assert len(decoder.generate([5, 6], max_new_tokens=20, temperature=1.0, seed=1).token_ids) == 20
