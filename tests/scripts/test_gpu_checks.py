"""The visit to a GPU, rehearsed: every part runs tiny on the CPU, failures and lack of time are told."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from decoder.models import compiled

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_checks", ROOT / "scripts" / "gpu_checks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_checks"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_dry_run(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")  # traces in static shapes, generates no code
    assert script.main(["--dry-run", "--no-tests", "--out", str(tmp_path)]) == 0
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert outcome["failed"] == []
    assert outcome["skipped"] == []
    eager = json.loads((tmp_path / "eager.json").read_text())
    names = ["hf", "hf-assisted", "baseline", "speculative model k=4", "speculative model k=auto"]
    assert [each["name"] for each in eager["methods"]] == names
    assert eager["acceptance_dialled"] == 0.75
    assert len({tuple(s["token_ids"]) for s in eager["samples"] if s["prompt"] == 0}) == 1
    found = json.loads((tmp_path / "compiled.json").read_text())
    names = ["hf", "baseline compiled", "speculative model k=4 compiled", "speculative model k=auto compiled"]
    assert [each["name"] for each in found["methods"]] == names
    texts = {(s["prompt"], tuple(s["token_ids"])) for s in [*eager["samples"], *found["samples"]]}
    assert len(texts) == 2, "greedy texts of two prompts, eager and compiled"
    assert "bandwidth limit of plain decoding" in (tmp_path / "eager.md").read_text()
    record = json.loads((tmp_path / "bandwidth.json").read_text())
    assert record["plain_limit_tokens_per_s"] == pytest.approx(
        record["copy_bandwidth_bytes_per_s"] / record["target_weight_bytes"]
    )


def test_a_failing_part_does_not_end_the_visit(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(script, "limit_note", fail)
    monkeypatch.setattr(script, "timed", lambda visit, pair, spec, name, *_: visit.write(f"{name}.txt", "ran"))
    assert script.main(["--dry-run", "--no-tests", "--out", str(tmp_path)]) == 1
    assert json.loads((tmp_path / "outcome.json").read_text())["failed"] == ["bandwidth: RuntimeError: out of memory"]
    assert (tmp_path / "eager.txt").read_text() == "ran\n"


def test_no_time_left(script: ModuleType, tmp_path: Path) -> None:
    assert script.main(["--dry-run", "--no-tests", "--minutes", "0", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "outcome.json").read_text())["skipped"] == ["models"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_without_a_gpu_it_says_so(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--out", str(tmp_path)]) == 2
    assert "--dry-run" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
