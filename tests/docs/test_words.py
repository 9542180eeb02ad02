"""The documents speak plain English: words that this project once had for itself do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),  # docs/notes may say law: they tell papers
    *sorted((ROOT / "experiments").rglob("*.md")),
]
WORDS = {  # what is found -> what to write
    r"\blaws?\b": "distribution, p or q",
    r"\byardsticks?\b": "baseline",
    r"\bthe library('s)?\b": "transformers, or which library",
    r"\b(tokens?|forwards?|ms|us|bytes) an? (round|token|iteration|forward|layer|group)\b": "per",
    r"\b(once|twice) a (run|round)\b": "per",
}
CODE = re.compile(r"```.*?```|`[^`\n]*`|^ {4,}\S.*$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_plain_words(page: Path) -> None:
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    found = {
        match[0]: better for pattern, better in WORDS.items() for match in re.finditer(pattern, text, re.IGNORECASE)
    }
    assert not found
