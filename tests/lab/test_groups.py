"""Summaries by group of prompts, from samples with known answers."""

from __future__ import annotations

from decoder.measure.timing import Counts, Sample
from lab.groups import fold


def sample(method: str, prompt: int, wall_s: float, repeat: int = 0, emitted: int | None = None) -> Sample:
    counts = None if emitted is None else Counts(emitted_after_prefill=emitted, iterations=4)
    return Sample(method, prompt, repeat, wall_s, (1, 2, 3, 4), counts)


def keyed(samples: list[Sample], group: str = "qa"):
    return {("greedy", each.repeat, group, each.prompt, each.method): each for each in samples}


def test_speedups_over_both_baselines_in_the_order_of_the_methods() -> None:
    samples = keyed([sample("ngram", 0, 1.0, emitted=6), sample("hf", 0, 3.0), sample("baseline", 0, 2.0, emitted=4)])
    folded = fold(samples, ["greedy", "sampled"], ["hf", "baseline", "ngram"])
    assert [each.name for each in folded["greedy"]["qa"]] == ["hf", "baseline", "ngram"]
    assert "sampled" not in folded
    ngram = folded["greedy"]["qa"][2]
    assert {name: found.ratio for name, found in ngram.speedups.items()} == {"hf": 3.0, "baseline": 2.0}
    assert ngram.tokens_per_iteration == 1.5


def test_a_drafter_that_keeps_silent_shows_it() -> None:
    quiet = Counts(drafted=3, emitted_after_prefill=6, iterations=5, drafting=1)
    own = [Sample("ngram", prompt, 0, 1.0, (1, 2, 3, 4), quiet) for prompt in (0, 1)]
    samples = [sample("hf", 0, 3.0), sample("hf", 1, 1.0), sample("baseline", 0, 2.0), sample("baseline", 1, 2.0), *own]
    (summary,) = [each for each in fold(keyed(samples), ["greedy"], [])["greedy"]["qa"] if each.name == "ngram"]
    assert (summary.drafting_share, summary.runs) == (0.2, 2)


def test_a_prompt_that_some_method_has_not_run_does_not_count() -> None:
    samples = keyed([sample("hf", 0, 2.0), sample("ngram", 0, 1.0), sample("hf", 1, 50.0), sample("ngram", 0, 9.0, 1)])
    (hf, ngram) = fold(samples, ["greedy"], ["hf", "ngram"])["greedy"]["qa"]
    assert (hf.seconds, ngram.seconds) == (2.0, 1.0)


def test_all_groups_together_pool_their_seconds() -> None:
    one = keyed([sample("hf", 0, 3.0), sample("ngram", 0, 1.0)], "qa")
    two = keyed([sample("hf", 0, 5.0), sample("ngram", 0, 3.0), sample("hf", 1, 90.0)], "rag")
    groups = fold(one | two, ["greedy"], ["hf", "ngram"])["greedy"]
    assert list(groups) == ["qa", "rag", "all"]
    (hf, ngram) = groups["all"]
    assert (hf.prompts, hf.seconds, ngram.seconds) == (2, 8.0, 4.0)
    assert ngram.speedups["hf"].ratio == 2.0


def test_a_group_that_some_method_has_not_reached_is_left_out() -> None:
    begun = keyed([sample("hf", 0, 1.0)], "rag")
    done = keyed([sample("hf", 0, 3.0), sample("ngram", 0, 1.0)], "qa")
    assert list(fold(done | begun, ["greedy"], ["hf", "ngram"])["greedy"]) == ["qa"]
