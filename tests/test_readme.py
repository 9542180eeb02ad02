"""README: its Python runs, its links lead somewhere, and each of its figures comes out of a committed file."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from decoder import SpeculativeDecoder

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROWS = [line for line in README.splitlines() if re.match(r"\| \[", line)]

# A row of the table: (its work, folder, path within summary.json, transformers' own speculation, fixed k, k="auto")
Source = tuple[str, str, list[str], str | None, str | None, str | None]
SOURCES: list[Source] = [
    (
        "bundled pair, greedy",
        "01-pairs",
        ["tiny-greedy", "methods"],
        "hf-assisted",
        "speculative model k=6",
        "speculative model k=auto",
    ),
    (
        "bundled pair, temperature 0.8",
        "01-pairs",
        ["tiny-T0.8", "methods"],
        "hf-assisted",
        "speculative model k=3",
        "speculative model k=auto",
    ),
    (
        "SmolLM2-135M, lookup, seven kinds of prompts",
        "11-drafters",
        ["smollm2", "modes", "greedy", "all"],
        "hf-lookup",
        None,
        "suffix",
    ),
    (
        "SmolLM2-135M, lookup, summaries and retrieval",
        "10-compare",
        ["smollm2-ngram-copying", "methods"],
        "hf-lookup",
        "speculative ngram k=10",
        "speculative ngram k=auto",
    ),
    (
        "SmolLM2-135M on disk, its 4-bit copy drafts",
        "16-offload",
        ["greedy", "methods"],
        None,
        "speculative model k=8",
        None,
    ),
    (
        "bundled pair, sampled, lookup",
        "11-drafters",
        ["tiny-sampled-lookups", "modes", "sampled", "all"],
        "hf-lookup",
        None,
        "ngram",
    ),
]


def test_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["result"].text
    assert len(names["several"]) == 2
    assert names["out"].shape[1] > names["ids"].shape[1]
    assert capsys.readouterr().out


def test_links_exist() -> None:
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", README)
    missing = [target for target in targets if "://" not in target and not (ROOT / target).exists()]
    assert not missing


def ratio(methods: list[dict[str, Any]], name: str | None, *, interval: bool) -> str:
    """A method's speed over `generate`, as the table writes it."""
    if name is None:
        return "-"
    value, lower, upper = next(each for each in methods if each["name"] == name)["vs_hf"]
    return f"{value:.2f} ({lower:.2f}-{upper:.2f})" if interval else f"{value:.2f}"


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source[0])
def test_every_row_of_the_table_comes_out_of_a_summary(source: Source) -> None:
    work, folder, path, rival, fixed, auto = source
    methods: Any = json.loads((ROOT / "experiments" / folder / "summary.json").read_text(encoding="utf-8"))
    for name in path:
        methods = methods[name]
    cells = [
        f"[{work}](experiments/{folder}/)",
        ratio(methods, rival, interval=False),
        ratio(methods, "baseline", interval=False),
        ratio(methods, fixed, interval=True),
        ratio(methods, auto, interval=True),
    ]
    assert f"| {' | '.join(cells)} |" in ROWS


def test_the_table_is_short_and_no_figure_stands_outside_it() -> None:
    assert len(SOURCES) == len(ROWS) <= 6
    prose = re.sub(r"```.*?```|`[^`]*`", "", README, flags=re.DOTALL)
    prose = "\n".join(line for line in prose.splitlines() if not line.startswith("|"))
    setup = (ROOT / "setup.cfg").read_text()
    oldest = {name: re.search(rf"{name}>=([\d.]+)", setup) for name in ("torch", "transformers")}
    known = {match[1] for match in oldest.values() if match} | {"0.9", "1.0"}  # versions and defaults: held elsewhere
    assert set(re.findall(r"\d+\.\d+", prose)) <= known


def test_code_comes_early_and_the_whole_is_short() -> None:
    assert len(README.partition("```python")[0].split()) <= 100
    assert len(README.split()) <= 800


def test_the_defaults_are_those_of_the_constructor() -> None:
    defaults = inspect.signature(SpeculativeDecoder).parameters
    stated = re.search(r"`temperature` is ([\d.]+) and `top_p` is ([\d.]+)", README)
    assert stated is not None
    assert float(stated[1]) == defaults["temperature"].default
    assert float(stated[2]) == defaults["top_p"].default
    assert f"is {inspect.signature(SpeculativeDecoder.generate).parameters['k'].default};" in README


def test_the_algorithm_is_as_long_as_stated() -> None:
    """The files named in reading order, each once, have as many lines together as README says, or a tenth fewer."""
    section = README.partition("## Reading the code")[2]
    stated = re.search(r"The algorithm is ([\d,]+) lines in (\d+) files", section)
    assert stated is not None
    listed = [name for line in re.findall(r"(?m)^\d\. (.*):", section) for name in re.findall(r"`([\w/]+\.py)`", line)]
    assert len(listed) == len(set(listed)) == int(stated[2])
    lines = sum(len((ROOT / "decoder" / name).read_text().splitlines()) for name in listed)
    most = int(stated[1].replace(",", ""))
    assert 0.9 * most <= lines <= most, f"{lines} lines"


def test_as_many_architectures_are_tested_as_stated() -> None:
    stated = re.search(r"on (\d+) architectures", README)
    tree = ast.parse((ROOT / "tests" / "models" / "test_parity.py").read_text())
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    families = next(node for node in assigned if getattr(node.targets[0], "id", "") == "FAMILIES").value
    assert stated is not None and isinstance(families, ast.Dict)
    kinds = {value.elts[0].value for value in families.values}  # type: ignore[attr-defined]
    assert len(kinds) == int(stated[1])
