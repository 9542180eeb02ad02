"""Prompt files: text lines, records with `prompt` or `turns`, categories, and an even selection."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from decoder.measure.prompts import OWN_PROMPTS, read_prompts


def test_lines(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\n two\nthree\nfour\n")
    assert read_prompts(path) == ["one", " two", "three", "four"]
    assert read_prompts(path, 2) == ["one", "three"]  # evenly, not the first ones
    assert read_prompts(path, 9) == ["one", " two", "three", "four"]


def test_records(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    records = [
        {"category": "rag", "turns": ["first", "second"]},
        {"category": "qa", "prompt": "plain"},
        {"category": "rag", "prompt": "last"},
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    assert read_prompts(path)[:2] == [[{"role": "user", "content": "first"}], "plain"]
    assert read_prompts(path, categories=["rag"]) == [[{"role": "user", "content": "first"}], "last"]
    with pytest.raises(ValueError, match="no prompts of categories"):
        read_prompts(path, categories=["poetry"])
    path.write_text(json.dumps({"text": "x"}))
    with pytest.raises(ValueError, match="line 1: a record needs 'prompt' or 'turns'"):
        read_prompts(path)


def test_our_own_are_several_and_different() -> None:
    assert len(set(OWN_PROMPTS)) == len(OWN_PROMPTS) == 8
