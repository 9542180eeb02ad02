"""The commands behind scripts/benchmark.py and scripts/profile.py, on synthetic pairs small enough for a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from decoder.bench import benchmark_command, profile_command

ROOT = Path(__file__).parents[2]
PAIR = ["--geometry", "small-gpt2:smaller-gpt2", "--acceptance", "0.7", "--prompt-length", "6", "--limit", "2"]
SHORT = ["--max-new-tokens", "16"]


def test_benchmark_of_a_synthetic_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found"
    command = [*PAIR, *SHORT, "--k", "2", "auto", "--repeats", "1", "--predict", "--draft-bits", "8", "--out", str(out)]
    assert benchmark_command.main(command) == 0
    text = capsys.readouterr().out
    assert "SYNTHETIC: shapes of small-gpt2:smaller-gpt2 with random weights; acceptance dialled to 0.7" in text
    assert "acceptance (alpha) dialled 0.7, reached" in text and "reached %" in text
    record = json.loads((tmp_path / "found.json").read_text())
    names = ["hf", "hf-assisted", "baseline", "speculative model k=2", "speculative model k=auto"]
    assert [each["name"] for each in record["methods"]] == names
    assert record["acceptance_dialled"] == 0.7 and record["predictions"]["rows"][0]["k"] == 2
    assert {tuple(s["token_ids"]) for s in record["samples"] if s["prompt"] == 0} == {
        tuple(record["samples"][0]["token_ids"])
    }
    assert all(len(sample["token_ids"]) == 16 for sample in record["samples"])
    assert (tmp_path / "found.md").read_text() in text


def test_benchmark_of_a_folder(tmp_path: Path, tokenizer, target, draft, capsys: pytest.CaptureFixture[str]) -> None:
    for name, model in (("big", target), ("small", draft)):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"category": "x", "turns": ["once upon a time"]}\n{"category": "y", "prompt": "the cat"}\n')
    command = ["--target", str(tmp_path / "big"), "--draft", str(tmp_path / "small"), "--prompts", str(prompts), *SHORT]
    command += ["--category", "x", "--method", "baseline", "--method", "hf-lookup", "--drafter", "ngram"]
    command += ["--drafter", "model", "--temperature", "0.8", "--repeats", "1", "--device", "cpu"]
    assert benchmark_command.main(command) == 0
    text = capsys.readouterr().out
    assert "big with draft small, T = 0.8" in text
    assert "speculative ngram k=4" in text and "speculative model k=4" in text and "hf-lookup" in text


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["--acceptance", "0.5"], "give --geometry"),
        (["--geometry", "small-gpt2:smaller-gpt2"], "needs --acceptance"),
        ([*PAIR, "--draft", "gpt2"], "leave out --draft"),
        ([*PAIR, "--k", "0"], "--k '0' must be a positive integer or auto"),
        ([*PAIR, "--k", "many"], "--k 'many'"),
        ([*PAIR, "--method", "hf-lookup"], "never repeats itself"),
        ([*PAIR, "--limit", "0"], "--limit=0"),
        ([*PAIR, "--temperature", "-1"], "temperature=-1.0"),
        ([*PAIR, "--repeats", "0"], "repeats=0"),
        (["--target", "/no/such/folder"], "does not exist"),
    ],
)
def test_bad_options_are_refused_in_one_line(
    command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark_command.main(command) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and error.startswith("benchmark.py: ") and "\n" not in error


def test_profile_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "p.json", tmp_path / "p.png"
    command = [*PAIR, *SHORT, "--k", "3", "--repeats", "1", "--out", str(out), "--picture", str(picture)]
    assert profile_command.main(command) == 0
    text = capsys.readouterr().out
    assert "SYNTHETIC" in text and "target forwards" in text and "ms a call" in text
    record = json.loads(out.read_text())
    assert record["profile"]["tokens"] == 16 and set(record["profile"]["draft"]["forward_s"]) >= {"1", "16"}
    assert record["environment"]["draft"]["class"] == "GPT2LMHeadModel"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_profile_without_matplotlib(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    command = [*PAIR, "--max-new-tokens", "4", "--repeats", "1", "--picture", "p.png"]
    assert profile_command.main(command) == 2
    assert "pip install 'decoder[plots]'" in capsys.readouterr().err


def test_advise_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.json"
    assert profile_command.main([*PAIR, *SHORT, "--advise", "--repeats", "1", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "Yes: speculate" in text or "No: plain decoding" in text
    assert json.loads(out.read_text())["advice"]["candidates"][0]["drafter"] == "model"


def test_the_script_does_not_hide_the_standard_library_s_module() -> None:
    """cProfile imports `profile`; from the scripts' folder it must still find its own."""
    code = "import sys; sys.path.insert(0, 'scripts'); import cProfile, profile; print(profile.Profile.__module__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "profile\n"
