"""Checks of what a caller gives. An error names the argument, its value, the range and the remedy.

`remedy` is the end of the message ("use 0 to keep every token."). True and False are no numbers here.
"""

from __future__ import annotations

from typing import TypeGuard


def is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def at_least(name: str, value: object, least: int, remedy: str = "", *, wanted: str | None = None) -> int:
    """An integer >= `least`. `wanted` says what may be given, where that is more than such an integer.

    Raises:
        TypeError: no integer.
        ValueError: too small.
    """
    end = f"; {remedy}" if remedy else "."
    if not is_integer(value):
        raise TypeError(f"{name}={value!r} must be {wanted or f'an integer >= {least}'}{end}")
    if value < least:
        raise ValueError(f"{name}={value} must be {'' if remedy else 'an integer '}>= {least}{end}")
    return value


def number(name: str, value: object) -> float:
    """Any number, infinite ones and NaN included.

    Raises:
        TypeError: no number.
    """
    if not is_number(value):
        raise TypeError(f"{name}={value!r} must be a number, not {type(value).__name__}.")
    return float(value)


def in_range(
    name: str,
    value: object,
    low: float,
    high: float,
    remedy: str = "",
    *,
    include_low: bool = True,
    include_high: bool = True,
) -> float:
    """A number between `low` and `high`; `include_low`, `include_high` say whether the bounds themselves may be given.

    Raises:
        TypeError: no number.
        ValueError: out of range, or NaN.
    """
    allowed = f"{'[' if include_low else '('}{low}, {high}{']' if include_high else ')'}"
    end = f"; {remedy}" if remedy else "."
    if not is_number(value):
        raise TypeError(f"{name}={value!r} must be a number in {allowed}{end}")
    above = low <= value if include_low else low < value
    below = value <= high if include_high else value < high
    if not (above and below):
        raise ValueError(f"{name}={value!r} must lie in {allowed}{end}")
    return float(value)


def switch(name: str, value: object, remedy: str = "") -> bool:
    """True or False.

    Raises:
        TypeError: something else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be True or False{f', or {remedy}' if remedy else '.'}")
    return value
