"""README's Python blocks run top to bottom, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["result"].text  # type: ignore[attr-defined]
    assert len(names["several"]) == 2  # type: ignore[arg-type]
    assert names["out"].shape[1] > names["ids"].shape[1]  # type: ignore[attr-defined]
    assert capsys.readouterr().out


def test_links_exist() -> None:
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", README)
    missing = [target for target in targets if "://" not in target and not (ROOT / target).exists()]
    assert not missing
