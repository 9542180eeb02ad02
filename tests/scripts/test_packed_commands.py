"""`--packed` in the scripts and commands: it reaches the decoders, and the tables say so."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

import synthetic
from decoder.cli import main as specdec
from decoder.models.packed import BlockedLinear
from lab.setup import set_up

ROOT = Path(__file__).parents[2]
SHAPES = ["--geometry", "small-gpt2:smaller-gpt2", "--acceptance", "0.8", "--packed"]
SHORT = ["--max-new-tokens", "6", "--repeats", "1", "--temperature", "0"]
NOTE = "baseline and speculative run over packed matrices of {} (packed=True); hf* as loaded"


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled by every packed product."""
    found: list[int] = []
    forward = BlockedLinear.forward

    def counted(self: BlockedLinear, inputs: Any) -> Any:
        found.append(inputs.shape[-2])
        return forward(self, inputs)

    monkeypatch.setattr(BlockedLinear, "forward", counted)
    return found


def test_bench(products: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert synthetic.main(["bench", *SHAPES, *SHORT, "--methods", "baseline", "--k", "2", "--predict"]) == 0
    assert NOTE.format("target and draft") in capsys.readouterr().out and products
    products.clear()
    given = synthetic.parser().parse_args(["bench", *SHAPES, *SHORT, "--methods", "hf", "--draft-bits", "8"])
    setup = set_up(given)
    assert NOTE.format("the target") in setup.notes and len(setup.notes) == 3
    assert any(isinstance(module, BlockedLinear) for module in setup.spec.target_model.model.modules())
    for model in (
        setup.spec.target,
        setup.assistant,
        setup.spec.draft_model.model,
    ):  # the library's runs, and the 8 bits
        assert not any(isinstance(module, BlockedLinear) for module in model.modules())
    assert not products


def test_profile(products: list[int], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert synthetic.main(["profile", *SHAPES, *SHORT, "--k", "1", "--out", str(tmp_path / "profile.json")]) == 0
    assert NOTE.format("target and draft") in json.loads((tmp_path / "profile.json").read_text())["notes"]
    assert products


def test_the_command_line(products: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["generate", "Once upon a time", "--max-new-tokens", "8", "--temperature", "0"]
    assert specdec(asked) == 0
    plain = capsys.readouterr().out
    assert not products and specdec([*asked, "--packed"]) == 0
    assert products and capsys.readouterr().out == plain


@pytest.mark.parametrize(
    ("script", "more"),
    [
        ("scripts/measure_auto.py", [*SHAPES, "--k", "1"]),
    ],
)
def test_scripts(script: str, more: list[str], products: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(ROOT / script))["main"]
    assert main([*more, *SHORT]) == 0
    assert products and "packed" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels(dtype: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main = runpy.run_path(str(ROOT / "scripts" / "float32_kernels.py"))["main"]
    small = ["--hidden", "64", "--layers", "1", "--repeats", "1", "--dtype", dtype, "--out", str(tmp_path / "table")]
    assert main(small) == 0
    record = json.loads((tmp_path / "table.json").read_text())
    rows = {row["ms"]: row for row in record["rows"]}
    assert rows["oneDNN packed"]["error"] < 0.02 and f"width 64, {dtype}." in capsys.readouterr().out
