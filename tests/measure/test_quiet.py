"""transformers is silent within the block and says again afterwards what it said before, also after an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from transformers.utils import logging

from decoder.measure import quiet


@pytest.fixture(autouse=True)
def talkative() -> Iterator[None]:
    verbosity = logging.get_verbosity()
    logging.set_verbosity_warning()
    logging.enable_progress_bar()
    yield
    logging.set_verbosity(verbosity)


def test_within_the_block_only_errors_are_shown() -> None:
    with quiet():
        assert logging.get_verbosity() == logging.ERROR and not logging.is_progress_bar_enabled()
        with quiet():
            pass
        assert not logging.is_progress_bar_enabled()


def test_afterwards_it_is_as_before_an_error_or_not() -> None:
    with pytest.raises(RuntimeError), quiet():
        raise RuntimeError
    assert logging.get_verbosity() == logging.WARNING and logging.is_progress_bar_enabled()
