"""L5: the arguments of the command line: what may be typed, and the help that says so. It runs nothing.

The names are a promise (a test holds them). Ranges are the library's business: it checks them and says what is wrong.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from decoder import __version__
from decoder.bench.methods import FOREIGN
from decoder.drafters import DRAFTERS
from decoder.verify import VERIFIERS

_PROMPT = "Once upon a time there was a little rabbit who"
_COMMANDS = (  # name, what it does, an example
    ("generate", "stream a text", '"Once upon a time" --k 4 --show-accepted'),
    ("compare", "one prompt, plain and speculative", '"Once upon a time" --temperature 0'),
    ("bench", "time methods in turn on the same prompts", "--methods hf,baseline --k 2,4 --out run.json"),
    ("sweep", "measure the speed-up over draft lengths", "--k 1-8 --temperature 0 --plot sweep.png"),
    ("profile", "show where the time of one generation goes", '"Once upon a time" --k 4'),
    ("advise", "answer whether to speculate here, and how", "--prompts prompts.txt --drafters model,ngram"),
    ("report", "turn a benchmark's JSON into one HTML file", "run.json --out run.html"),
)


def draft_length(text: str) -> int | str:
    """A number, or "auto"; the library checks the range."""
    return text if text == "auto" else int(text)


def fixed_lengths(text: str) -> list[int]:
    """Numbers and ranges: 1,2,4 or 1-8."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        found += range(int(first), int(last) + 1) if dash else [int(first)]
    if not found or min(found) < 1 or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r} must name different draft lengths >= 1, as in 1-8 or 1,2,4")
    return found


def draft_lengths(text: str) -> list[int | str]:
    """As `fixed_lengths`, and "auto" among them."""
    parts = text.split(",")
    numbers = [part for part in parts if part != "auto"]
    found: list[int | str] = list(fixed_lengths(",".join(numbers))) if numbers else []
    return found + ["auto"] * (len(parts) > len(numbers))


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be >= 1")
    return number


def names_among(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A parser of comma-separated names."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} unknown; known are {', '.join(known)}")
        return names

    return parse


def _add_models(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models and sampling")
    group.add_argument("--target", default="tiny", help="hub name or folder (default: the bundled pair)")
    group.add_argument("--draft", help="hub name or folder of a smaller model with the same tokenizer")
    group.add_argument(
        "--drafter", choices=sorted(DRAFTERS), help="default: the draft model if there is one, else ngram"
    )
    group.add_argument("--head", metavar="FOLDER", help="a trained draft head, for --drafter eagle")
    group.add_argument("--verifier", choices=sorted(VERIFIERS), help="how drafts are judged; all are lossless")
    group.add_argument("--device", help="auto, cpu, cuda, cuda:N or mps")
    group.add_argument("--dtype", help="auto, float32, bfloat16 or float16")
    group.add_argument("--draft-device", help="default: the target's")
    group.add_argument("--draft-dtype", help="default: the target's")
    group.add_argument("--packed", action="store_true", default=None, help="matrices in oneDNN's layout (CPU)")
    group.add_argument("--temperature", type=float, help="0 is greedy")
    group.add_argument("--top-p", type=float, help="keep the likeliest tokens of this mass, in (0, 1]")
    group.add_argument("--top-k", type=int, help="keep so many tokens; 0 keeps all")
    group.add_argument("--min-p", type=float, help="drop tokens below this share of the likeliest one")
    group.add_argument("--seed", type=int, help="makes sampling repeatable")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _add_prompt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", help="text, or - to read it from the standard input")
    parser.add_argument("--chat", action="store_true", help="apply the tokenizer's chat template")
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="where the text ends at the latest")
    parser.add_argument("--stop", dest="stop_strings", action="append", metavar="TEXT", help="may be repeated")


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", default=_PROMPT, help="text, or - to read it from the standard input")
    parser.add_argument("--prompts", metavar="FILE", help=".jsonl with prompt or turns, else a prompt a line")
    parser.add_argument("--limit", type=positive, default=8, metavar="N", help="prompts used from the file (default 8)")
    parser.add_argument("--chat", action="store_true", help="apply the tokenizer's chat template")
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="of each text (default 64)")


def _add_own(built: Mapping[str, argparse.ArgumentParser]) -> None:
    """What only one or two commands have."""
    generate, bench, sweep = built["generate"], built["bench"], built["sweep"]
    generate.add_argument("--show-accepted", action="store_true", help="colour each token by its fate")
    generate.add_argument("--picture", metavar="FILE", help="tokens by fate as a picture (png, svg or pdf)")
    generate.add_argument("--stats", action="store_true", help="print the metrics to the standard error")
    methods = names_among([*FOREIGN, "baseline"])
    bench.add_argument("--methods", type=methods, default=["hf", "baseline"], help="yardsticks (default hf,baseline)")
    bench.add_argument("--k", type=draft_lengths, default=[4], help="draft lengths, as 4 or 2,4,auto (default 4)")
    sweep.add_argument("--k", type=fixed_lengths, default=list(range(1, 9)), help="draft lengths (default 1-8)")
    sweep.add_argument("--plot", metavar="FILE", help="picture with the predicted curve (png, svg or pdf)")
    for measured in (bench, sweep):
        measured.add_argument("--out", metavar="FILE", help="also write .json, .md and .html")
    built["advise"].add_argument(
        "--drafters", type=names_among(sorted(DRAFTERS)), help="to be tried; default: the decoder's own and ngram"
    )
    built["report"].add_argument("file", help="a JSON file that bench or a script wrote")
    built["report"].add_argument("--out", metavar="FILE", help="default: beside the JSON")


def _command(commands: Any, name: str, about: str, example: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog=f"example:\n  specdec {name} {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return parser


def build_parser() -> argparse.ArgumentParser:
    """The whole command line. Every command's help ends with an example."""
    parser = argparse.ArgumentParser(prog="specdec", description="Exact speculative decoding.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"decoder {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    built = {name: _command(commands, name, about, example) for name, about, example in _COMMANDS}
    _add_own(built)
    for name in ("generate", "compare", "profile"):
        _add_prompt(built[name])
        built[name].add_argument(
            "--k", type=draft_length, default=4, metavar="K", help="drafted tokens a round, or auto (default 4)"
        )
    for name in ("bench", "sweep", "advise"):
        _add_prompts(built[name])
    for name in ("bench", "sweep", "profile", "advise"):
        built[name].add_argument("--repeats", type=int, default=3, metavar="N", help="timed runs of each (default 3)")
    for name, each in built.items():
        if name != "report":
            _add_models(each)
        each.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser
