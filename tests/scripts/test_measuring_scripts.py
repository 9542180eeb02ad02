"""The measuring scripts run, small, on the bundled pair; what they measure here means nothing."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

from decoder.models.packed import why_not
from decoder.models.tiny import tiny_paths

ROOT = Path(__file__).parents[2]


def run(script: str, *arguments: str) -> int:
    main = runpy.run_path(str(ROOT / script))["main"]
    before = sys.argv
    sys.argv = [script, *arguments]
    try:
        return int(main(list(arguments)) or 0)
    finally:
        sys.argv = before


def test_offload(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = str(tiny_paths().target)
    small = ("--limit", "1", "--max-new-tokens", "6", "--repeats", "1", "--k", "2")
    assert run("scripts/measure_offload.py", "--target", folder, *small, "--out", str(tmp_path / "table")) == 0
    printed = capsys.readouterr().out
    assert "int4 copy in memory" in printed and "speculative" in printed
    assert (tmp_path / "table.json").exists()


def test_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("scripts/experiment.py", "--list") == 0
    assert "quantised" in capsys.readouterr().out


def test_an_experiment_says_what_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("scripts/experiment.py", "04", "--out", str(tmp_path)) == 2
    assert "--texts" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("scripts/experiment.py", "03a", "--model", "gpt2", "--out", str(tmp_path))
    assert "option of experiment 04" in capsys.readouterr().err


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "scripts").glob("*.py")))
def test_every_script_has_a_parser_and_help(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = runpy.run_path(str(ROOT / "scripts" / script))
    with pytest.raises(SystemExit) as left:
        names["parser"]().parse_args(["--help"])
    assert left.value.code == 0 and len(capsys.readouterr().out.splitlines()) > 5
    assert callable(names["main"])


def bitwise(out: Path, only: str, *more: str) -> tuple[str, ...]:
    prompts = out.parent / "prompts.txt"
    prompts.write_text("Once upon a time\nThe fox\nA little river ran\n")
    folder = str(tiny_paths().target)
    small = ("--target", folder, "--prompts", str(prompts), "--max-new-tokens", "6", "--only", only)
    return ("scripts/bitwise.py", *small, "--ours", "ngram:2", "--invariant", "suffix:3", "--json", str(out), *more)


def test_bitwise_in_pieces(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A second piece adds to the file, what is there is not run again, and another setting is refused."""
    out = tmp_path / "bits.json"
    assert run(*bitwise(out, "0:1")) == 0
    assert run(*bitwise(out, "0:2")) == 0
    printed = capsys.readouterr().out
    assert printed.count("prompt 0:") == 1 and printed.count("prompt 1:") == 1
    record = json.loads(out.read_text())
    names = "library lookup, library assisted, ours/library, ours ngram:2, invariant/ours, invariant suffix:3"
    assert {line["comparison"] for line in record["summary"]} == set(names.split(", "))
    assert all(line["prompts"] == 2 for line in record["summary"])
    invariant = next(line for line in record["summary"] if line["comparison"] == "invariant suffix:3")
    assert invariant["identical"] == 2
    assert "Once" not in out.read_text(), "texts are not written"
    with pytest.raises(SystemExit, match=r"made with another \['attention'\]"):
        run(*bitwise(out, "2:3", "--attention", "eager"))


def test_bitwise_kernels(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("scripts/bitwise_kernels.py", "--dtypes", "bfloat16", "--json", str(tmp_path / "kernels.json")) == 0
    counts = json.loads((tmp_path / "kernels.json").read_text())["counts"]["bfloat16"]
    assert len(counts) in (8, 10) and all(0 <= count <= 64 for count in counts.values())
    assert ("packed, another row" in counts) == (why_not(torch.bfloat16) is None)
    assert "eager, another row" in capsys.readouterr().out


def test_mlx_comparison_without_mlx(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "mlx_lm", None)
    assert run("scripts/mlx_comparison.py", "--limit", "1") == 2
    assert "mlx-lm is not installed; pip install 'mlx[cpu]' mlx-lm" in capsys.readouterr().err


def test_mlx_comparison_with_mlx(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("mlx_lm")
    small = ("--limit", "1", "--max-new-tokens", "8", "--repeats", "1", "--k", "2", "--out", str(tmp_path / "mlx"))
    assert run("scripts/mlx_comparison.py", *small) == 0
    printed = capsys.readouterr().out
    assert "mlx speculative over mlx plain" in printed and "speculative model k=2" in printed
    record = json.loads((tmp_path / "mlx.json").read_text())
    agreed = {each["name"]: each["agreement"].get("baseline") for each in record["methods"]}
    assert agreed["mlx"]["equal"] == agreed["mlx speculative"]["equal"] == 1
    assert not any(sample["token_ids"] for sample in record["samples"])


def test_lookups(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text, out = tmp_path / "book.txt", tmp_path / "pace.json"
    text.write_text("Once upon a time a hen went home, and the fox went home. " * 40)
    small = ("--texts", str(text), "--out", str(out))
    assert run("scripts/measure_lookups.py", *small, "--tokens", "200") == 0
    assert "suffix" in capsys.readouterr().out
    record = json.loads(out.read_text())
    seconds = record["seconds"]
    assert all(held > 8 for held in record["bytes_per_token"].values())  # of a text this short, the table itself
    assert set(seconds) == {"ngram", "suffix", "rescan"}
    assert all(len(found) == 10 and min(found) > 0 for found in seconds.values())
    with pytest.raises(SystemExit, match="give more texts"):
        run("scripts/measure_lookups.py", *small, "--tokens", "100000")
