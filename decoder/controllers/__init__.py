"""L1: controllers choose the draft length of the next round from what past rounds showed."""

from decoder.controllers.auto import AutoLength
from decoder.controllers.choice import Experiences, Length, check_length
from decoder.controllers.experience import Experience
from decoder.controllers.fixed import FixedLength

__all__ = ["AutoLength", "Experience", "Experiences", "FixedLength", "Length", "check_length"]
