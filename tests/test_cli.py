"""The command line: frozen flags, results equal to the library's, exit codes, escaping, files."""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from decoder import SpeculativeDecoder, cli
from decoder.arguments import build_parser, draft_lengths, fixed_lengths
from decoder.bench.environment import command_line

MODELS = (
    "--target --draft --drafter --verifier --device --dtype --draft-device --draft-dtype --packed --temperature "
    "--top-p --top-k --min-p --seed --json --debug"
).split()
ONE = ["prompt", "--chat", "--max-new-tokens", "--stop", "--k", *MODELS]
MANY = ["prompt", "--prompts", "--limit", "--chat", "--max-new-tokens", "--repeats", *MODELS]
FROZEN = {
    "generate": [*ONE, "--show-accepted", "--picture", "--stats"],
    "compare": ONE,
    "bench": [*MANY, "--methods", "--k", "--out"],
    "sweep": [*MANY, "--k", "--plot", "--out"],
    "profile": [*ONE, "--repeats"],
    "advise": [*MANY, "--drafters"],
    "report": ["file", "--out", "--debug"],
}


def commands() -> dict[str, argparse.ArgumentParser]:
    actions = build_parser()._actions
    return next(dict(each.choices) for each in actions if isinstance(each, argparse._SubParsersAction))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, target: Any, draft: Any, tokenizer: Any) -> list[str]:
    """Both models in folders, as arguments."""
    root = tmp_path_factory.mktemp("pair")
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return ["--target", str(root / "target"), "--draft", str(root / "draft"), "--device", "cpu"]


@pytest.fixture
def spec(target: Any, draft: Any, tokenizer: Any) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_models(target, draft, tokenizer=tokenizer)


# ---- what may be typed ----


def test_flags_are_frozen() -> None:
    """Names are a promise: adding one here is a decision, losing one breaks somebody's script."""
    found = {
        name: sorted(
            action.option_strings[0] if action.option_strings else action.dest for action in parser._actions[1:]
        )
        for name, parser in commands().items()
    }
    assert found == {name: sorted(flags) for name, flags in FROZEN.items()}


@pytest.mark.parametrize("name", FROZEN)
def test_every_help_ends_with_an_example_that_parses(name: str) -> None:
    text = commands()[name].format_help()
    example = text.strip().splitlines()[-1].strip()
    assert example.startswith(f"specdec {name} ")
    words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', example)]
    assert build_parser().parse_args(words[1:]).command == name


def test_every_command_is_wired() -> None:
    assert set(cli.COMMANDS) == set(FROZEN)


def test_draft_lengths() -> None:
    assert fixed_lengths("1-3,8") == [1, 2, 3, 8] and draft_lengths("2,auto") == [2, "auto"]
    for wrong in ("0", "3-1", "2,2", "x", ""):
        with pytest.raises((ValueError, argparse.ArgumentTypeError)):
            fixed_lengths(wrong)


# ---- what comes out ----


def test_json_is_the_librarys_result(pair: list[str], spec: SpeculativeDecoder, capsys: Any) -> None:
    arguments = ["generate", "once upon", *pair, "--json", "--k", "3", "--max-new-tokens", "20", "--seed", "5"]
    assert cli.main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    expected = spec.generate("once upon", k=3, max_new_tokens=20, seed=5)
    assert printed["token_ids"] == list(expected.token_ids) and printed["fates"] == list(expected.fates)


def test_streamed_text_is_the_result_escaped(pair: list[str], spec: SpeculativeDecoder, capsys: Any) -> None:
    """A random byte-level model emits control characters; none reaches the terminal."""
    assert cli.main(["generate", "once", *pair, "--max-new-tokens", "40", "--seed", "1", "--stats"]) == 0
    out = capsys.readouterr()
    expected = spec.generate("once", k=4, max_new_tokens=40, seed=1).text
    assert out.out == cli.visible(expected) + "\n"
    assert all(each.isprintable() or each in "\n\t" for each in out.out)
    assert "acceptance_rate" in out.err


def test_accepted_tokens_are_coloured(pair: list[str], spec: SpeculativeDecoder, capsys: Any) -> None:
    assert cli.main(["generate", "once", *pair, "--max-new-tokens", "30", "--seed", "1", "--show-accepted"]) == 0
    out = capsys.readouterr().out
    result = spec.generate("once", k=4, max_new_tokens=30, seed=1)
    body = out[: out.rindex("\n\n")]
    assert body == cli.coloured(result)
    assert {"accepted", "recovered"} <= set(result.fates)


def test_a_prompt_can_come_from_the_standard_input(
    pair: list[str], spec: SpeculativeDecoder, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("the end"))
    assert cli.main(["generate", "-", *pair, "--json", "--max-new-tokens", "5", "--temperature", "0"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["full_text"] == spec.generate("the end", max_new_tokens=5, temperature=0.0).full_text


def test_stop_strings_stop(pair: list[str], spec: SpeculativeDecoder, capsys: Any) -> None:
    whole = spec.generate("once", max_new_tokens=30, temperature=0.0).text
    stop = whole[8:10]
    arguments = ["generate", "once", *pair, "--max-new-tokens", "30", "--temperature", "0", "--stop", stop]
    for extra in ([], ["--show-accepted"]):
        assert cli.main([*arguments, *extra]) == 0
        text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).split("\n\naccepted")[0]
        assert text.rstrip("\n") == cli.visible(whole[: whole.index(stop) + len(stop)]).rstrip("\n")


def test_compare_shows_both(pair: list[str], capsys: Any) -> None:
    assert cli.main(["compare", "once", *pair, "--max-new-tokens", "12", "--temperature", "0"]) == 0
    out = capsys.readouterr().out
    assert "plain" in out and "speculative" in out and "the texts are identical" in out
    assert "\x1b" not in out  # not a terminal
    assert cli.main(["compare", "once", *pair, "--max-new-tokens", "12", "--temperature", "0", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["identical"] and data["plain"]["token_ids"] == data["speculative"]["token_ids"]


def test_bench_writes_json_markdown_and_a_page(pair: list[str], tmp_path: Path, capsys: Any) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "once"}\n{"turns": ["the end", "unused"]}\n')
    arguments = ["bench", *pair, "--prompts", str(prompts), "--max-new-tokens", "6", "--repeats", "1", "--json"]
    arguments += ["--methods", "baseline", "--k", "2,3", "--temperature", "0", "--out", str(tmp_path / "run")]
    assert cli.main(arguments) == 0
    data = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in data["methods"]] == ["baseline", "speculative model k=2", "speculative model k=3"]
    assert data == json.loads((tmp_path / "run.json").read_text())
    assert "<svg" in (tmp_path / "run.html").read_text() and (tmp_path / "run.md").exists()
    assert cli.main(["report", str(tmp_path / "run.json"), "--out", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text() == (tmp_path / "run.html").read_text()


def test_sweep_measures_each_length(pair: list[str], tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "sweep.png"
    arguments = [
        "sweep",
        "once",
        *pair,
        "--k",
        "1-2",
        "--max-new-tokens",
        "8",
        "--repeats",
        "1",
        "--plot",
        str(picture),
    ]
    assert cli.main([*arguments, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)
    assert [point["k"] for point in points] == [1, 2]
    assert all(point["speedup"] > 0 and point["predicted"] > 0 and 0 <= point["alpha"] <= 1 for point in points)
    assert picture.stat().st_size > 5_000


def test_profile_and_advise_answer(pair: list[str], capsys: Any) -> None:
    assert cli.main(["profile", "once", *pair, "--max-new-tokens", "6", "--repeats", "1", "--json"]) == 0
    assert "phases" in json.loads(capsys.readouterr().out)
    arguments = ["advise", "once", *pair, "--max-new-tokens", "6", "--repeats", "1", "--drafters", "model"]
    assert cli.main(arguments) == 0
    assert re.match(r"(Yes|No): ", capsys.readouterr().out)


def test_the_recorded_command_can_be_typed_again() -> None:
    assert command_line(["/anywhere/decoder/__main__.py", "bench", "--k", "4"]) == "python -m decoder bench --k 4"
    assert command_line(["/usr/bin/specdec", "bench"]) == "specdec bench"


# ---- what goes wrong ----


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--temperature", "-1"], "temperature=-1.0 must be >= 0"),
        (["--top-p", "2"], "top_p=2.0 must lie in"),
        (["--k", "-1"], "k=-1 must be >= 0"),
        (["--max-new-tokens", "0"], "max_new_tokens=0"),
        (["--dtype", "float7"], "dtype='float7' is not available"),
    ],
)
def test_bad_values_get_the_librarys_message(pair: list[str], extra: list[str], message: str, capsys: Any) -> None:
    assert cli.main(["generate", "once", *pair, *extra]) == 2
    out = capsys.readouterr()
    assert message in out.err and out.err.startswith("specdec generate: ")
    assert out.out == "" and "Traceback" not in out.err


def test_missing_things_are_named(pair: list[str], tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["generate", "once", "--target", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert cli.main(["bench", *pair, "--prompts", str(tmp_path / "none.txt")]) == 2
    assert "none.txt" in capsys.readouterr().err
    (tmp_path / "bad.jsonl").write_text('{"question": 1}\n')
    assert cli.main(["bench", *pair, "--prompts", str(tmp_path / "bad.jsonl")]) == 2
    assert "needs 'prompt' or 'turns'" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unheard"],
        ["generate"],
        ["generate", "x", "--kk", "3"],
        ["generate", "x", "--temp", "0"],
        ["sweep", "--k", "0"],
        ["bench", "--methods", "hf,magic"],
        ["bench", "--limit", "0"],
    ],
)
def test_wrong_arguments_leave_with_two(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 2 and "usage: specdec" in capsys.readouterr().err


def test_an_error_shows_its_traceback_on_request(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        cli.main(["generate", "once", "--target", str(tmp_path / "none"), "--debug"])


def test_interruption_leaves_with_130(pair: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SpeculativeDecoder, "stream", interrupted)
    assert cli.main(["generate", "once", *pair]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_poor_terminal_gets_escapes(pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters outside the terminal's encoding are written out, not fatal."""
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert cli.main(["generate", "once", *pair, "--max-new-tokens", "40", "--seed", "1"]) == 0
    assert b"\\u" in raw.getvalue() or b"\\x" in raw.getvalue()


def test_the_module_runs_and_a_reader_may_leave(pair: list[str]) -> None:
    """`python -m decoder ... | head -c 1`: no traceback when the pipe closes."""
    command = [sys.executable, "-m", "decoder", "generate", "once", *pair, "--max-new-tokens", "100"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None and running.stderr is not None
    assert running.stdout.read(1)
    running.stdout.close()
    errors = running.stderr.read().decode()
    assert running.wait(timeout=300) in (0, 141)
    assert "Traceback" not in errors and "BrokenPipe" not in errors
