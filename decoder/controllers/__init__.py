"""L1: controllers choose the draft length of the next round from what past rounds showed."""

from decoder.controllers.auto import AutoLength
from decoder.controllers.choice import Experiences, Length, check_length
from decoder.controllers.experience import LONGEST, Experience
from decoder.controllers.fixed import FixedLength
from decoder.controllers.warmed import Warmed

__all__ = ["LONGEST", "AutoLength", "Experience", "Experiences", "FixedLength", "Length", "Warmed", "check_length"]
