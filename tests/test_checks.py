"""Values a caller gives: taken as they are, or refused with argument, value, range and remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from decoder.checks import at_least, in_range, number, switch

TAKEN: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = [
    (at_least, (3, 3), {}, 3),
    (number, (float("inf"),), {}, float("inf")),
    (in_range, (1, 0, 1), {}, 1.0),
    (in_range, (0.999, 0, 1), {"include_high": False}, 0.999),
    (in_range, (1e9, 0.0, float("inf")), {}, 1e9),
    (switch, (False,), {}, False),
]


@pytest.mark.parametrize(("check", "given", "options", "expected"), TAKEN)
def test_taken(check: Callable[..., Any], given: tuple[Any, ...], options: dict[str, Any], expected: Any) -> None:
    found = check("n", *given, **options)
    assert found == expected and type(found) is type(expected)


REFUSED: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    (at_least, (2, 3, "use 3."), {}, ValueError, "n=2 must be >= 3; use 3."),
    (at_least, (2, 3), {}, ValueError, "n=2 must be an integer >= 3."),
    (at_least, (True, 0, "use 0."), {}, TypeError, "n=True must be an integer >= 0; use 0."),
    (at_least, (3.0, 0), {}, TypeError, "n=3.0 must be an integer >= 0."),
    (at_least, ("x", 0, "use 0."), {"wanted": "an integer"}, TypeError, "n='x' must be an integer; use 0."),
    (number, ("1",), {}, TypeError, "n='1' must be a number, not str."),
    (number, (True,), {}, TypeError, "n=True must be a number, not bool."),
    (in_range, (None, 0, 1, "use 0."), {}, TypeError, "n=None must be a number in [0, 1]; use 0."),
    (in_range, (1.5, 0.0, 1.0), {}, ValueError, "n=1.5 must lie in [0.0, 1.0]."),
    (in_range, (1, 0, 1, "use 0."), {"include_high": False}, ValueError, "n=1 must lie in [0, 1); use 0."),
    (in_range, (0, 0, 1, "use 1."), {"include_low": False}, ValueError, "n=0 must lie in (0, 1]; use 1."),
    (in_range, (float("nan"), 0, 1), {}, ValueError, "n=nan must lie in [0, 1]."),
    (switch, (1, "leave it out."), {}, TypeError, "n=1 must be True or False, or leave it out."),
    (switch, (None,), {}, TypeError, "n=None must be True or False."),
]


@pytest.mark.parametrize(("check", "given", "options", "kind", "message"), REFUSED)
def test_refused(
    check: Callable[..., Any], given: tuple[Any, ...], options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        check("n", *given, **options)
    assert str(caught.value) == message
