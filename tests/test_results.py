"""Results are folds over steps: every number is checked against counting by hand, and the HTML is safe."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser

import pytest

from decoder.clock import Seconds
from decoder.results import GenerationResult, RowRound, row_rounds
from decoder.types import RowStep, Step


def a_round(index: int, drafted: tuple[int, ...], accepted: int, emitted: tuple[int, ...]) -> RowRound:
    return RowRound(index, drafted, accepted, emitted, wall_s=1.0, draft_s=0.25, target_s=0.5)


STEPS = (
    a_round(0, (), 0, (10,)),
    a_round(1, (11, 12, 13), 3, (11, 12, 13, 14)),  # full acceptance: a bonus token
    a_round(2, (1, 2, 3), 0, (15,)),  # rejected at once
    a_round(3, (16, 17, 9), 2, (16, 17, 18)),
    a_round(4, (), 0, (19,)),  # nothing drafted
    a_round(5, (20, 21, 22), 2, (20, 21)),  # EOS inside the block: what was drafted beyond is no part of the text
)


def result(steps=STEPS, tokenizer=None, **changes) -> GenerationResult:
    ids = tuple(token for step in steps for token in step.emitted)
    values = {
        "text": "",
        "full_text": "",
        "token_ids": ids,
        "prompt_token_ids": (5, 6),
        "finish_reason": "eos",
        "wall_s": 6.5,
        "steps": steps,
        "lossless": True,
        "tokenizer": tokenizer,
    }
    return GenerationResult(**(values | changes))


def test_counts() -> None:
    found = result()
    assert found.num_iterations == 5
    assert found.num_draft_tokens == 12
    assert found.num_accepted_tokens == 7
    assert found.acceptance_rate == pytest.approx(7 / 12)
    assert found.alpha == pytest.approx(7 / (3 + 1 + 3 + 2)), "testing stops at a rejection and where the text ends"
    assert found.tokens_per_iteration == pytest.approx(11 / 5)
    assert found.acceptance_per_position == pytest.approx((3 / 5, 3 / 5, 1 / 5))


@pytest.mark.parametrize("emitted", [(11,), (11, 12), (11, 12, 13), (11, 12, 13, 14)])
def test_tokens_drafted_past_the_end_of_the_text_are_not_accepted(emitted: tuple[int, ...]) -> None:
    """The verifier kept all three; the text took as many as stand before its end."""
    prefill = Step(0, (RowStep(0, (), 0, (10,)),), 1.0, Seconds(0.5))
    last = Step(1, (RowStep(0, (11, 12, 13), 3, emitted, "eos"),), 1.0, Seconds(0.5))
    found = result(row_rounds([prefill, last], 0))
    kept = min(3, len(emitted))
    assert found.num_accepted_tokens == found.fates.count("accepted") == kept
    assert found.acceptance_rate == pytest.approx(kept / 3)
    assert found.alpha == 1.0, "nothing was rejected where the text is"
    assert found.acceptance_per_position == tuple(float(i < kept) for i in range(3))
    assert found.to_dict()["steps"][1]["accepted"] == kept


def test_times_sum_to_wall() -> None:
    found = result()
    assert found.prefill_s == pytest.approx(0.75)
    assert found.draft_s == pytest.approx(1.25)
    assert found.target_s == pytest.approx(2.5)
    assert found.prefill_s + found.draft_s + found.target_s + found.overhead_s == pytest.approx(found.wall_s)
    assert found.tokens_per_second == pytest.approx(12 / 6.5)


def test_fates_name_every_token() -> None:
    assert result().fates == (
        *("plain",),
        *("accepted", "accepted", "accepted", "bonus"),
        *("recovered",),
        *("accepted", "accepted", "recovered"),
        *("plain",),
        *("accepted", "accepted"),
    )


def test_it_unpacks_as_text_and_seconds_and_prints_as_its_text() -> None:
    text, seconds = result(text="hello")
    assert (text, seconds) == ("hello", 6.5)
    assert str(result(text="hello")) == "hello"


def test_rates_without_rounds_are_nan_and_null_in_json() -> None:
    found = result(STEPS[:1])
    assert math.isnan(found.acceptance_rate) and math.isnan(found.alpha) and math.isnan(found.tokens_per_iteration)
    again = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert again["acceptance_rate"] is None
    assert again["acceptance_per_position"] == []


def test_to_dict_is_json_and_complete() -> None:
    again = json.loads(json.dumps(result(text="x").to_dict(), allow_nan=False))
    assert again["num_accepted_tokens"] == 7
    assert again["steps"][1]["drafted"] == [11, 12, 13]
    assert "cache" not in again
    assert set(GenerationResult.METRICS) <= again.keys()


def test_a_result_is_frozen() -> None:
    with pytest.raises(AttributeError):
        result().text = "other"


def test_a_row_gets_the_rounds_in_which_it_was_live() -> None:
    def step(index: int, *rows: int) -> Step:
        parts = tuple(RowStep(row, (), 0, (index,)) for row in rows)
        return Step(index, parts, 1.0, Seconds(0.5))

    steps = [step(0, 0, 1), step(1, 0, 1), step(2, 1)]
    assert [found.index for found in row_rounds(steps, 0)] == [0, 1]
    assert [found.emitted for found in row_rounds(steps, 1)] == [(0,), (1,), (2,)]


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.found.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def emit(tokenizer, text: str) -> GenerationResult:
    ids = tokenizer(text)["input_ids"]
    steps = tuple(a_round(n, (), 0, (token,)) for n, token in enumerate(ids))
    return result(steps, tokenizer, prompt_token_ids=(), text=text, full_text=text)


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a & b < c", "</span><b>"]
)
def test_html_shows_what_the_model_said_and_runs_none_of_it(tokenizer, text: str) -> None:
    tags = Tags()
    tags.feed(emit(tokenizer, text)._repr_html_())
    assert tags.found <= {"div", "p", "span", "table", "tr", "td", "br"}
    assert tags.attributes <= {"style", "title"}
    assert text in tags.text


def test_html_holds_no_control_characters(tokenizer) -> None:
    shown = emit(tokenizer, "a\x1b[31mred\x07\x00b")._repr_html_()
    assert not any(ord(letter) < 32 and letter not in "\n\t" for letter in shown)
    tags = Tags()
    tags.feed(shown)
    assert "a[31mredb" in tags.text


def test_html_without_a_tokenizer_still_shows_the_numbers() -> None:
    shown = result()._repr_html_()
    assert "acceptance_rate" in shown and "0.5833" in shown
