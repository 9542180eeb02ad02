"""Controllers choose the draft length of the next round from what past rounds showed.

Those of k="auto" are loaded when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from decoder.controllers.choice import Experiences, Length, check_length
from decoder.controllers.fixed import FixedLength

if TYPE_CHECKING:
    from decoder.controllers.auto import AutoLength
    from decoder.controllers.experience import LONGEST, Experience
    from decoder.controllers.warmed import Warmed

_LATER = {"AutoLength": "auto", "LONGEST": "experience", "Experience": "experience", "Warmed": "warmed"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"decoder.controllers.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["LONGEST", "AutoLength", "Experience", "Experiences", "FixedLength", "Length", "Warmed", "check_length"]
