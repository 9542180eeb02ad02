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
from decoder.arguments import build_parser, draft_lengths, fixed_lengths, names_among
from decoder.asked.prompts import DEFAULT_NEW_TOKENS
from decoder.measure.environment import command_line
from decoder.models import compiled

MODELS = (
    "--target --draft --drafter --head --draft-bits --verifier --device --dtype --draft-device --draft-dtype --packed "
    "--compile --threads --temperature --top-p --top-k --min-p --seed --json --debug"
).split()
ONE = ["prompt", "--chat", "--max-new-tokens", "--stop", "--k", *MODELS]
MANY = ["prompt", "--prompts", "--category", "--limit", "--chat", "--max-new-tokens", "--repeats", *MODELS]
TIMED = ["--k", "--warm-up", "--stop-at-eos", "--out"]
FROZEN = {
    "generate": [*ONE, "--show-accepted", "--picture", "--stats"],
    "compare": ONE,
    "bench": [*MANY, *TIMED, "--methods", "--drafters", "--assistant-tokens", "--predict"],
    "sweep": [*MANY, *TIMED, "--plot"],
    "profile": [*ONE, "--repeats", "--picture", "--out"],
    "advise": [*MANY, "--drafters", "--out"],
    "train-head": (
        "--target --data --out --minutes --steps --vocabulary --unroll --loss --tokens-per-step --tokens-per-batch "
        "--longest --rate --checkpoint-minutes --store-gb --dtype --max-new-tokens --seed --debug"
    ).split(),
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
    assert {*cli.COMMANDS, "train-head", "report"} == set(FROZEN)


def test_one_set_of_defaults() -> None:
    """An option has the same default in every command that has it, and the help says which; `--k` of a sweep aside."""
    found: dict[str, set[str]] = {}
    for name, parser in commands().items():
        for action in parser._actions:
            if action.option_strings and (name, action.dest) != ("sweep", "k"):
                default = action.default[0] if isinstance(action.default, list) else action.default
                found.setdefault(action.dest, set()).add(str(default))
                if action.dest in {"temperature", "top_p", "top_k", "min_p", "max_new_tokens", "limit", "repeats", "k"}:
                    assert f"(default {default:g})" in str(action.help), (name, action.dest)
    assert all(len(defaults) == 1 for defaults in found.values()), found


def test_a_bare_call_samples_as_the_decoder_does(spec: SpeculativeDecoder) -> None:
    options = build_parser().parse_args(["generate", "x"])
    assert (options.temperature, options.top_p, options.top_k, options.min_p) == (
        *(spec.params.temperature, spec.params.top_p, spec.params.top_k, spec.params.min_p),
    )
    assert options.max_new_tokens == DEFAULT_NEW_TOKENS


def test_draft_lengths() -> None:
    assert fixed_lengths("1-3,8") == [1, 2, 3, 8] and draft_lengths("2,auto") == [2, "auto"]
    for wrong in ("0", "3-1", "2,2", "x", ""):
        with pytest.raises((ValueError, argparse.ArgumentTypeError)):
            fixed_lengths(wrong)
    with pytest.raises(argparse.ArgumentTypeError, match="magic unknown"):
        names_among(["hf", "baseline"])("hf,magic")
    assert names_among(["hf", "baseline"])("baseline,hf,baseline") == ["baseline", "hf"]


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


def test_bench_of_some_categories_with_two_drafters(pair: list[str], tmp_path: Path, capsys: Any) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"category": "x", "turns": ["once upon a time"]}\n{"category": "y", "prompt": "the cat"}\n')
    arguments = ["bench", *pair, "--prompts", str(prompts), "--category", "x", "--methods", "baseline,hf-lookup"]
    arguments += ["--drafters", "ngram,model", "--temperature", "0.8", "--repeats", "1", "--max-new-tokens", "16"]
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    assert "target with draft draft, T = 0.8" in text
    assert "speculative ngram k=4" in text and "speculative model k=4" in text and "hf-lookup" in text


def test_the_draft_s_weights_can_be_narrow(pair: list[str], capsys: Any) -> None:
    arguments = ["bench", "once", *pair, "--draft-bits", "8", "--methods", "hf-assisted", "--temperature", "0"]
    assert cli.main([*arguments, "--repeats", "1", "--max-new-tokens", "6", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["notes"] == [
        "speculative runs: the draft's matrices in 8 bits; hf-assisted drafts with the given weights"
    ]
    assert cli.main(["generate", "once", *pair[:2], "--draft-bits", "4"]) == 2
    assert "--draft-bits=4 needs a draft model" in capsys.readouterr().err


def test_every_command_can_be_compiled(
    pair: list[str], spec: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")  # traces in static shapes, generates no code
    greedy = ["once", *pair, "--temperature", "0", "--max-new-tokens", "8", "--compile", "--json"]
    assert cli.main(["generate", *greedy]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["token_ids"] == list(spec.generate("once", temperature=0, max_new_tokens=8).token_ids)
    assert cli.main(["sweep", *greedy, "--k", "2", "--repeats", "1"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["speedup"] > 0 and row["predicted"] is None  # theory is of eager forwards


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


def test_accounts_of_profile_and_advise_are_written(pair: list[str], tmp_path: Path, capsys: Any) -> None:
    for name, key in (("profile", "profile"), ("advise", "advice")):
        out = tmp_path / f"{name}.json"
        assert cli.main([name, "once", *pair, "--max-new-tokens", "6", "--repeats", "1", "--out", str(out)]) == 0
        record = json.loads(out.read_text())
        assert record[key] and record["title"] == "target with draft draft" and record["environment"]["target"]


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
    assert cli.main(["bench", "once", *pair, "--prompts", str(tmp_path / "bad.jsonl")]) == 2
    assert "a prompt and --prompts were both given" in capsys.readouterr().err
    assert cli.main(["advise", *pair, "--category", "rag"]) == 2
    assert "give --prompts FILE with it" in capsys.readouterr().err
    assert cli.main(["bench", "once", *pair, "--chat"]) == 2
    assert "chat template" in capsys.readouterr().err
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
        ["bench", "--k", "2", "4", "auto"],
        ["bench", "--drafters", "none"],
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
