"""The script that measures compile=True, on the bundled draft: a row for each block size, nothing padded."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from decoder.models import compiled

ROOT = Path(__file__).parents[2]


def test_a_row_for_each_size(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("measure_compile", ROOT / "scripts" / "measure_compile.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # the script sets it; put back afterwards
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    command = ["--model", "tiny-draft", "--sizes", "1", "3", "--context", "8", "--repeats", "2"]
    try:
        assert script.main([*command, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [row["m"] for row in found["rows"]] == [1, 3]
        assert all(row["first_use_s"] * 1000 > row["compiled_ms"] > 0 for row in found["rows"])
        assert found["environment"]["target"]["dtype"] == "float32"
        assert script.main(["--model", "/no/such/folder"]) == 2
        assert "could not be loaded" in capsys.readouterr().err
    finally:
        torch.compiler.reset()
