"""What k may be, and whose experience a call uses."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from decoder import SpeculativeDecoder
from decoder.asked.request import Request
from decoder.controllers import AutoLength, Experiences, FixedLength, check_length
from decoder.models.toy import toy_model
from decoder.types import Drafter


@pytest.mark.parametrize("k", [0, 1, 16, "auto"])
def test_accepted_lengths_come_back_as_they_are(k: Any) -> None:
    assert check_length(k) == k


@pytest.mark.parametrize(
    ("k", "kind"),
    [(-1, ValueError), ("Auto", ValueError), ("4", ValueError), (True, TypeError), (2.0, TypeError), (None, TypeError)],
)
def test_anything_else_is_refused_with_the_remedy(k: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="k=") as caught:
        check_length(k)
    assert repr(k) in str(caught.value) and '"auto"' in str(caught.value) and "0 for plain" in str(caught.value)


def test_a_number_is_fixed_and_auto_is_not() -> None:
    model = toy_model("llama")
    spec = SpeculativeDecoder.from_models(model)
    for k, kind in (("auto", AutoLength), (3, FixedLength), (0, FixedLength)):
        assert type(spec.run_for(Request.of([5, 6], {}, k, "generate", spec)).controller) is kind
    assert FixedLength(3).next_length() == 3
    assert isinstance(Experiences().controller("ngram"), AutoLength)


def test_experience_is_kept_by_name_and_by_object() -> None:
    experiences, one, two = Experiences(), Drafter(), Drafter()
    assert experiences.of("ngram") is experiences.of("ngram") is not experiences.of("model")
    assert experiences.of(one) is experiences.of(one) is not experiences.of(two)


def test_experience_of_an_object_ends_with_it() -> None:
    experiences = Experiences()
    for _ in range(50):
        experiences.of(Drafter())
    gc.collect()
    experiences.of(Drafter())
    assert len(experiences._objects) <= 2
