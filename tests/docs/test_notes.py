"""Documents may name tests, files and other documents; what they name exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted((ROOT / "docs").rglob("*.md"))
NOTES = ROOT / "docs" / "notes"
TEST_NAME = re.compile(r"\b(tests/[\w/]+\.py)::(\w+)")
CODE_PATH = re.compile(r"`((?:decoder|tests|scripts|examples)/[\w/.-]*)`")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")


def named(pattern: re.Pattern[str]) -> list[tuple[Path, re.Match[str]]]:
    return [(path, match) for path in DOCUMENTS for match in pattern.finditer(path.read_text())]


def where(item: tuple[Path, re.Match[str]]) -> str:
    return f"{item[0].relative_to(ROOT)}:{item[1].group(0)}"


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("item", named(TEST_NAME), ids=where)
def test_every_test_that_a_document_names_exists(item: tuple[Path, re.Match[str]]) -> None:
    file, function = item[1].groups()
    assert (ROOT / file).is_file(), f"{file} does not exist"
    assert function.startswith("test_") and function in functions(ROOT / file)


@pytest.mark.parametrize("item", named(CODE_PATH), ids=where)
def test_every_file_that_a_document_names_exists(item: tuple[Path, re.Match[str]]) -> None:
    assert (ROOT / item[1].group(1)).exists()


@pytest.mark.parametrize("item", named(LINK), ids=where)
def test_every_link_between_documents_leads_somewhere(item: tuple[Path, re.Match[str]]) -> None:
    assert (item[0].parent / item[1].group(1)).exists()


def test_every_claim_of_the_derivation_is_checked_and_every_check_is_named() -> None:
    """The tests of the derivation and the names in it are the same set."""
    found = {match.groups() for match in TEST_NAME.finditer((NOTES / "derivation.md").read_text())}
    files = ("tests/test_derivation.py", "tests/test_derivation_speed.py")
    written = {(file, name) for file in files for name in functions(ROOT / file) if name.startswith("test_")}
    assert found == written


def test_notes_fit_on_a_page_and_are_indexed() -> None:
    index = (NOTES / "README.md").read_text()
    for path in NOTES.glob("*.md"):
        if path.name not in ("README.md", "derivation.md"):
            assert len(path.read_text().splitlines()) <= 60, f"{path.name} is longer than a page"
        assert path.name == "README.md" or f"({path.name})" in index
