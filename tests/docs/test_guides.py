"""The Python blocks of the guides on drafters and extending run in order; the example drafter is short and runs."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "custom_drafter.py"


@pytest.mark.parametrize("name", ["drafters.md", "extending.md", "usage.md"])
def test_blocks_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / name).read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, name, "exec"), names)
    if name == "extending.md":
        printed = capsys.readouterr().out
        assert "stutter: lossless" in printed and "boastful" in printed and "not lossless" in printed


def test_the_example_runs_and_its_drafter_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "tokens per forward" in capsys.readouterr().out
    classes = [node for node in ast.parse(EXAMPLE.read_text()).body if isinstance(node, ast.ClassDef)]
    assert len(classes) == 1 and (classes[0].end_lineno or 0) - classes[0].lineno < 40


def test_the_examples_drafter_is_lossless() -> None:
    from decoder.testing import check_lossless

    drafter = runpy.run_path(str(EXAMPLE))["PairDrafter"]
    check_lossless(drafter(), ks=(1, 2))


def test_every_drafter_has_a_row_in_the_table() -> None:
    from decoder.drafters import DRAFTERS

    table = (ROOT / "docs" / "drafters.md").read_text(encoding="utf-8")
    assert not [name for name in DRAFTERS if f'| `"{name}"` |' not in table]
