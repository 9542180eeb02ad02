"""Imports point down only; the loop and the verifiers know nothing of text, caches or the library."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "decoder"
LABORATORY = PACKAGE.parent / "scripts" / "lab"

# First match wins; a module may import its own layer and those below.
LAYERS = [
    (0, ["checks", "laps", "sampling", "trees", "types"]),
    (1, ["clock", "files", "randomness", "warpers", "verify", "controllers", "models.cache"]),
    (2, ["models", "heads", "text", "results", "grammar"]),
    (3, ["loop", "proposals", "readout", "drafters"]),
    (4, ["outputs", "asked"]),
    (5, ["generation"]),
    (6, ["streaming"]),
    (7, ["api"]),
    (8, ["report", "testing"]),
    (9, ["measure", "training"]),
    (10, ["cli", "arguments", "__main__"]),
    (11, ["__init__"]),
]
LATE = {("api", "measure")}  # imported inside two-line methods: what measures a decoder stands above it
OUTSIDE = ("scripts", "lab", "tiny_pair", "tests", "examples")  # the laboratory knows the product, not the reverse
FORBIDDEN = {
    "loop": ["transformers", "decoder.models", "decoder.drafters", "decoder.clock", "decoder.text", "tokenizers"],
    "verify": ["transformers", "decoder.models", "decoder.clock", "time"],
    "types": ["transformers", "decoder"],
}


ALLOWED = {
    "loop": ("decoder.types.",),
    "verify": ("decoder.types.",),
    "types": ("decoder.laps.", "decoder.sampling.", "decoder.trees."),
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return name.removesuffix(".__init__") if name != "__init__" else name


def exists(name: str) -> bool:
    path = PACKAGE / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def layer(name: str) -> int:
    for level, prefixes in LAYERS:
        for prefix in sorted(prefixes, key=len, reverse=True):
            if name == prefix or name.startswith(prefix + "."):
                return level
    raise AssertionError(f"decoder.{name} has no layer; add it to LAYERS")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: use absolute imports"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_imports_point_down(path: Path) -> None:
    own = layer(dotted(path))
    for name in imports(path):
        if not name.startswith("decoder."):
            continue
        target = name.removeprefix("decoder.")
        module = next((c for c in (target, target.rpartition(".")[0]) if c and exists(c)), None)
        if module is not None and (dotted(path), module.partition(".")[0]) not in LATE:
            assert layer(module) <= own, f"decoder.{dotted(path)} (L{own}) imports {name} (L{layer(module)})"


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_the_laboratory_is_not_imported(path: Path) -> None:
    assert not [name for name in imports(path) if name.partition(".")[0] in OUTSIDE]


@pytest.mark.parametrize("name", sorted(FORBIDDEN))
def test_the_core_stays_ignorant(name: str) -> None:
    paths = [path for path in modules() if dotted(path) == name or dotted(path).startswith(name + ".")]
    assert paths
    for path in paths:
        for imported in imports(path):
            for bad in FORBIDDEN[name]:
                allowed = (imported + ".").startswith(ALLOWED[name])
                assert allowed or not (imported + ".").startswith(bad + "."), f"{path.name} imports {imported}"


def test_sizes() -> None:
    """Files under about 300 lines and functions under about 40: small enough to read in an afternoon."""
    for path in [*modules(), *sorted(LABORATORY.rglob("*.py"))]:
        text = path.read_text()
        assert len(text.splitlines()) <= 320, f"{path.name} has {len(text.splitlines())} lines; split it"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
                length = (node.end_lineno or 0) - body[0].lineno + 1
                assert length <= 45, f"{path.name}:{node.name} has {length} lines"


def test_every_module_says_what_it_is() -> None:
    for path in [*modules(), *sorted(LABORATORY.rglob("*.py"))]:
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path.name} has no docstring"


def test_a_layer_violation_is_found(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("from decoder.api import SpeculativeDecoder\n")
    assert "decoder.api" in imports(bad) and layer("api") > layer("loop")
