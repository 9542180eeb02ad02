"""`import decoder` loads the product's core; what a call may ask for is loaded when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import decoder.drafters
from decoder.drafters import DRAFTERS
from decoder.types import Drafter

LINES = 7_000  # of this package, by `import decoder`
ABOVE = "testing measure report training cli arguments".split()
LATER = [*ABOVE, *(f"models.{name}" for name in "compiled packed quantize sharing probe toy".split()), "heads"]

PROGRAM = """
import sys
import decoder
for name, module in list(sys.modules.items()):
    if name == "decoder" or name.startswith("decoder."):
        print(name, sum(1 for _ in open(module.__file__)))
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, int]:
    """Lines of each module that a fresh interpreter loads."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return {name: int(lines) for name, lines in map(str.split, done.stdout.splitlines())}


def test_import_loads_few_lines(loaded: dict[str, int]) -> None:
    assert "decoder.loop" in loaded
    assert sum(loaded.values()) <= LINES


def test_features_and_drafters_wait(loaded: dict[str, int]) -> None:
    later = [f"decoder.{name}" for name in LATER] + [f"decoder.drafters.{name}" for name in DRAFTERS if name != "none"]
    assert not [name for name in loaded if name in later or name.startswith(tuple(f"{each}." for each in later))]


def test_every_drafter_is_found_by_its_name_and_by_its_class() -> None:
    for name, kind in DRAFTERS.items():
        assert issubclass(kind, Drafter) and kind.name == name
        assert getattr(decoder.drafters, kind.__name__) is kind
    assert all(getattr(decoder.drafters, name) is not None for name in decoder.drafters.__all__)
    assert "oracle" not in DRAFTERS
    with pytest.raises(KeyError):
        DRAFTERS["oracle"]
    with pytest.raises(ImportError):
        from decoder.drafters import Oracle  # type: ignore[attr-defined]  # noqa: F401
