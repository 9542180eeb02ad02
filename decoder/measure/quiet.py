"""transformers without its progress bars and warnings, while something else is to be seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block transformers shows errors only, and no bars; afterwards what it showed before."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
