"""A result as terminal text, each token coloured by its fate.

A model can emit anything, escape codes included, so its text reaches the terminal only through `visible`. Fates are
told apart by underline and weight as well as by colour. Knows results and text; measures nothing.
"""

from __future__ import annotations

import os
import unicodedata
from typing import TextIO

from decoder.results import GenerationResult

_RESET = "\x1b[0m"
_SGR = {
    "accepted": "\x1b[32m",  # green
    "recovered": "\x1b[4;31m",  # red, underlined
    "bonus": "\x1b[1;34m",  # blue, bold
    "plain": "",
}
# Directional overrides and isolates can make text read as something that it is not.
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def _is_control(character: str) -> bool:
    if character in "\n\t":
        return False
    return character in _DIRECTIONS or unicodedata.category(character) in ("Cc", "Cs")


def visible(text: str) -> str:
    """The text with control characters written out (ESC as `\\x1b`); newlines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(each.encode("unicode_escape").decode("ascii") if _is_control(each) else each for each in text)


def styled(text: str, fate: str) -> str:
    """One token's text, escaped, in the style of its fate; the style ends with each line, as pagers expect.

    Raises:
        ValueError: a fate that is none of accepted, recovered, bonus, plain.
    """
    if fate not in _SGR:
        raise ValueError(f"fate={fate!r} is unknown; use one of {sorted(_SGR)}.")
    shown, style = visible(text), _SGR[fate]
    if not style:
        return shown
    return "\n".join(f"{style}{line}{_RESET}" if line else "" for line in shown.split("\n"))


def legend() -> str:
    """What the styles mean, in their own style."""
    return "  ".join(styled(fate, fate) for fate in ("accepted", "recovered", "bonus"))


def coloured(result: GenerationResult) -> str:
    """The new text of a result, each token in the style of its fate. Without a tokenizer, the token ids."""
    pieces = result.token_texts or tuple(f"{token} " for token in result.token_ids)
    return "".join(styled(piece, fate) for piece, fate in zip(pieces, result.fates, strict=True))


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour what is written to this stream: a terminal, unless NO_COLOR is set (no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()
