"""scripts/synthetic.py: the product's measuring commands on synthetic pairs small enough for a test."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import synthetic
from decoder.models import compiled

PAIR = ["--geometry", "small-gpt2:smaller-gpt2", "--acceptance", "0.7", "--prompt-length", "6"]
TWO = [*PAIR, "--limit", "2"]
SHORT = ["--max-new-tokens", "16", "--temperature", "0"]


def test_bench_of_a_synthetic_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found"
    command = [*TWO, *SHORT, "--k", "2,auto", "--repeats", "1", "--predict", "--draft-bits", "8", "--out", str(out)]
    assert synthetic.main(["bench", *command]) == 0
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


def test_bench_runs_both_eager_and_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")  # traces in static shapes, generates no code
    command = ["bench", *PAIR, "--limit", "1", *SHORT, "--methods", "baseline", "--k", "2", "--repeats", "1"]
    assert synthetic.main([*command, "--compile", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    names = ["baseline", "speculative model k=2", "baseline compiled", "speculative model k=2 compiled"]
    assert [each["name"] for each in record["methods"]] == names
    assert set(record["methods"][3]["speedups"]) == {"baseline", "baseline compiled"}
    assert len({tuple(sample["token_ids"]) for sample in record["samples"]}) == 1


def test_sweep_of_a_synthetic_pair(capsys: pytest.CaptureFixture[str]) -> None:
    assert synthetic.main(["sweep", *TWO, *SHORT, "--k", "1,3", "--repeats", "1"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("SYNTHETIC") and "predicted" in text


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["--acceptance", "0.5"], "give --geometry"),
        (["--geometry", "small-gpt2:smaller-gpt2"], "needs --acceptance"),
        ([*PAIR, "--draft", "gpt2"], "leave out --draft"),
        ([*PAIR, "once upon"], "leave out --draft, --prompts and a prompt"),
        ([*PAIR, "--methods", "hf-lookup"], "never repeats itself"),
        ([*PAIR, "--temperature", "-1"], "temperature=-1.0"),
        ([*PAIR, "--repeats", "0"], "repeats=0"),
        (["--target", "/no/such/folder"], "does not exist"),
    ],
)
def test_bad_options_are_refused_in_one_line(
    command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert synthetic.main(["bench", *command]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and error.startswith("synthetic.py bench: ") and "\n" not in error


@pytest.mark.parametrize(
    ("command", "message"),
    [(["--k", "0"], "draft lengths >= 1"), (["--k", "many"], "--k"), (["--limit", "0"], "0 must be >= 1")],
)
def test_bad_numbers_are_refused_by_the_parser(
    command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        synthetic.main(["bench", *PAIR, *command])
    assert message in capsys.readouterr().err


def test_profile_of_a_synthetic_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "p.json", tmp_path / "p.png"
    command = [*PAIR, *SHORT, "--k", "3", "--repeats", "1", "--out", str(out), "--picture", str(picture)]
    assert synthetic.main(["profile", *command]) == 0
    text = capsys.readouterr().out
    assert "SYNTHETIC" in text and "target forwards" in text and "ms per call" in text
    record = json.loads(out.read_text())
    assert record["profile"]["tokens"] == 16 and set(record["profile"]["draft"]["forward_s"]) >= {"1", "16"}
    assert record["environment"]["draft"]["class"] == "GPT2LMHeadModel"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_profile_without_matplotlib(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    command = [*PAIR, "--max-new-tokens", "4", "--repeats", "1", "--picture", "p.png"]
    assert synthetic.main(["profile", *command]) == 2
    assert "pip install 'decoder[plots]'" in capsys.readouterr().err


def test_advise_on_a_synthetic_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.json"
    assert synthetic.main(["advise", *TWO, *SHORT, "--repeats", "1", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "Yes: speculate" in text or "No: plain decoding" in text
    assert json.loads(out.read_text())["advice"]["candidates"][0]["drafter"] == "model"


def test_the_product_offers_no_synthetic_models(capsys: pytest.CaptureFixture[str]) -> None:
    from decoder.cli import main

    with pytest.raises(SystemExit):
        main(["bench", *PAIR])
    assert "unrecognized arguments" in capsys.readouterr().err
