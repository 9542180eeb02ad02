"""The arguments of the command line: what may be typed, and the help that says so. It runs nothing.

The names are a promise (a test holds them). Every command that has an option gives it the same name, syntax and
default. Ranges are checked by what uses the value, which says what is wrong.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decoder import SpeculativeDecoder, __version__
from decoder.drafters import DRAFTERS
from decoder.measure.methods import FOREIGN
from decoder.verify import VERIFIERS

K, NEW_TOKENS, LIMIT, REPEATS, WARM_UP = 4, 128, 4, 3, 1
_COMMANDS = (  # name, what it does, an example
    ("generate", "stream a text", '"Once upon a time" --k 4 --show-accepted'),
    ("compare", "one prompt, plain and speculative", '"Once upon a time" --temperature 0'),
    ("bench", "time methods in turn on the same prompts", "--methods hf,baseline --k 2,4,auto --out run.json"),
    ("sweep", "measure the speed-up over draft lengths", "--k 1-8 --temperature 0 --plot sweep.png"),
    ("profile", "show where the time of one generation goes", '"Once upon a time" --k 4 --picture profile.png'),
    ("advise", "answer whether to speculate here, and how", "--prompts prompts.txt --drafters model,ngram"),
    ("train-head", "train a draft head for a model", "--target MODEL --data prompts.jsonl --out my-head --minutes 60"),
    ("report", "turn a report's JSON into one HTML file", "run.json --out run.html"),
)
COMMANDS = tuple(name for name, _, _ in _COMMANDS)
ONE, MANY = ("generate", "compare", "profile"), ("bench", "sweep", "advise")  # prompts that a command takes
Adder = Callable[[argparse.ArgumentParser], None]

# ---- values ----


def draft_length(text: str) -> int | str:
    """A number, or "auto"; the decoder checks the range."""
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


def names(text: str) -> list[str]:
    """Comma-separated names, each once."""
    return list(dict.fromkeys(text.split(",")))


def names_among(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A parser of comma-separated names."""

    def parse(text: str) -> list[str]:
        found = names(text)
        unknown = [name for name in found if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} unknown; known are {', '.join(known)}")
        return found

    return parse


# ---- options ----


def add_models(parser: argparse.ArgumentParser) -> None:
    """Which models, where, how precise, and what drafts."""
    group = parser.add_argument_group("models")
    group.add_argument("--target", default="tiny", help="hub name or folder (default: the bundled pair)")
    group.add_argument("--draft", help="hub name or folder of a smaller model with the same tokenizer")
    group.add_argument(
        "--drafter", choices=sorted(DRAFTERS), help="default: the draft model if there is one, else ngram"
    )
    group.add_argument("--head", metavar="FOLDER", help="a trained draft head, for --drafter eagle")
    group.add_argument("--draft-bits", type=int, choices=(4, 8), help="narrow weights for the draft (CPU); still exact")
    group.add_argument("--verifier", choices=sorted(VERIFIERS), help="how drafts are judged; all are lossless")
    group.add_argument("--device", help="auto, cpu, cuda, cuda:N or mps")
    group.add_argument("--dtype", help="auto, float32, bfloat16 or float16")
    group.add_argument("--draft-device", help="default: the target's")
    group.add_argument("--draft-dtype", help="default: the target's")
    group.add_argument("--packed", action="store_true", default=None, help="matrices in oneDNN's layout (CPU)")
    group.add_argument(
        "--compile", action="store_true", default=None, help="forwards through torch.compile; bench runs both ways"
    )
    group.add_argument("--threads", type=positive, metavar="N", help="threads of torch (default: torch's own choice)")


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen. The defaults are the decoder's own."""
    own = inspect.signature(SpeculativeDecoder).parameters
    group = parser.add_argument_group("sampling")
    for flag, kind, text in (
        ("--temperature", float, "0 is greedy"),
        ("--top-p", float, "keep the likeliest tokens of this mass, in (0, 1]"),
        ("--top-k", int, "keep so many tokens; 0 keeps all"),
        ("--min-p", float, "drop tokens below this share of the likeliest one"),
    ):
        default = own[flag[2:].replace("-", "_")].default
        group.add_argument(flag, type=kind, default=default, help=f"{text} (default {default:g})")
    group.add_argument("--seed", type=int, help="makes sampling repeatable (default: 0 where it is measured)")


def add_prompts(parser: argparse.ArgumentParser, command: str) -> None:
    """One prompt, or several from a file."""
    told = "text, or - to read it from the standard input"
    if command == "generate":
        parser.add_argument("prompt", help=told)
    else:
        parser.add_argument("prompt", nargs="?", help=f"{told} (default: our own)")
    if command in MANY:
        parser.add_argument("--prompts", metavar="FILE", help=".jsonl with prompt or turns, else one prompt per line")
        parser.add_argument("--category", type=names, metavar="NAMES", help="of a .jsonl, only these; as in rag,qa")
        parser.add_argument(
            "--limit", type=positive, default=LIMIT, metavar="N", help=f"prompts used (default {LIMIT})"
        )
    parser.add_argument("--chat", action="store_true", help="apply the tokenizer's chat template")


def add_length(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-new-tokens", type=int, default=NEW_TOKENS, metavar="N", help=f"of each text (default {NEW_TOKENS})"
    )


def add_repeats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repeats", type=int, default=REPEATS, metavar="N", help=f"timed runs of each (default {REPEATS})"
    )


@dataclass(frozen=True)
class Source:
    """The options that name models and prompts. The product's are those above; scripts/lab has one that makes them."""

    add_models: Adder = add_models
    add_prompts: Callable[[argparse.ArgumentParser, str], None] = add_prompts


# ---- commands ----


def _add_bench(bench: argparse.ArgumentParser) -> None:
    bench.add_argument(
        "--methods",
        type=names_among([*FOREIGN, "baseline"]),
        help="what to compare with, of hf, hf-assisted, hf-lookup, baseline (default: hf, hf-assisted where there is a "
        "draft model, baseline)",
    )
    bench.add_argument(
        "--drafters",
        type=names_among(sorted(set(DRAFTERS) - {"none"})),
        help="to be run (default: the decoder's own)",
    )
    bench.add_argument("--k", type=draft_lengths, default=[K], help=f"draft lengths, as 4 or 2,4,auto (default {K})")
    bench.add_argument("--assistant-tokens", type=positive, metavar="N", help="fixed draft length of hf-assisted")
    bench.add_argument("--predict", action="store_true", help="time forwards too and set theory beside each fixed k")


def _add_timed(parser: argparse.ArgumentParser) -> None:
    """What bench and sweep share."""
    parser.add_argument("--stop-at-eos", action="store_true", help="let texts end at EOS; speeds are then per token")
    parser.add_argument(
        "--warm-up", type=int, default=WARM_UP, metavar="N", help=f"untimed runs of each first (default {WARM_UP})"
    )
    parser.add_argument("--out", metavar="FILE", help="also write .json, .md and .html")


def _add_training(parser: argparse.ArgumentParser) -> None:
    """Options of `decoder.training.recipe.Recipe` keep its defaults where they are left out."""
    parser.add_argument("--target", default="tiny", help="hub name or folder (default: the bundled target)")
    parser.add_argument("--data", required=True, metavar="FILE", help="prompts, or .jsonl of texts as ids, or a folder")
    parser.add_argument(
        "--out", required=True, metavar="FOLDER", help="the head, its curves, and what goes on from there"
    )
    parser.add_argument("--minutes", type=float, help="wall time of the training, which the rates follow (default 60)")
    parser.add_argument("--steps", type=positive, help="or so many optimiser steps, whichever ends first")
    parser.add_argument("--vocabulary", type=int, help="ids the head can propose; 0 is all (default 8192)")
    parser.add_argument("--unroll", type=positive, help="steps on its own outputs that it is trained for (default 4)")
    parser.add_argument("--loss", choices=("kl", "tv"), help="KL or total variation (default kl)")
    parser.add_argument("--tokens-per-step", type=positive, metavar="N", help="of all processes (default 6000)")
    parser.add_argument("--tokens-per-batch", type=positive, metavar="N", help="in one forward (default 1500)")
    parser.add_argument("--longest", type=positive, metavar="N", help="tokens of a text (default 1024)")
    parser.add_argument("--rate", type=float, help="of the matrices (default 0.001)")
    parser.add_argument("--checkpoint-minutes", type=float, metavar="M", help="between checkpoints (default 5)")
    parser.add_argument(
        "--store-gb", type=float, default=8.0, metavar="GB", help="hidden states kept on disk (default 8)"
    )
    parser.add_argument("--dtype", help="of the target: float32 (default), bfloat16 or float16")
    add_length(parser)
    parser.add_argument("--seed", type=int, help="of texts and batches (default 0)")


def _add_own(built: Mapping[str, argparse.ArgumentParser]) -> None:
    """What only some commands have."""
    if "generate" in built:
        built["generate"].add_argument("--show-accepted", action="store_true", help="colour each token by its fate")
        built["generate"].add_argument("--picture", metavar="FILE", help="tokens by fate, drawn (png, svg or pdf)")
        built["generate"].add_argument("--stats", action="store_true", help="print the metrics to the standard error")
    if "report" in built:
        built["report"].add_argument("file", help="a JSON file that bench, sweep or a script wrote")
        built["report"].add_argument("--out", metavar="FILE", help="default: beside the JSON")
    if "train-head" in built:
        _add_training(built["train-head"])
    _add_bench(built["bench"])
    built["sweep"].add_argument(
        "--k", type=fixed_lengths, default=list(range(1, 9)), help="draft lengths (default 1-8)"
    )
    built["sweep"].add_argument("--plot", metavar="FILE", help="picture with the predicted curve (png, svg or pdf)")
    for name in ("bench", "sweep"):
        _add_timed(built[name])
    built["profile"].add_argument("--picture", metavar="FILE", help="draw it (png, svg or pdf)")
    built["advise"].add_argument(
        "--drafters", type=names_among(sorted(DRAFTERS)), help="to be tried (default: the decoder's own and ngram)"
    )
    for name in ("profile", "advise"):
        built[name].add_argument("--out", metavar="FILE", help="also write the account as JSON")


def _command(commands: Any, name: str, about: str, example: str | None) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog=None if example is None else f"example:\n  specdec {name} {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return parser


def build_parser(
    prog: str = "specdec",
    about: str = "Exact speculative decoding.",
    source: Source = Source(),
    commands: Sequence[str] = COMMANDS,
) -> argparse.ArgumentParser:
    """The whole command line. Every command's help ends with an example of the product's."""
    parser = argparse.ArgumentParser(
        prog=prog, description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"decoder {__version__}")
    added = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    built = {
        name: _command(added, name, told, example if prog == "specdec" else None)
        for name, told, example in _COMMANDS
        if name in commands
    }
    _add_own(built)
    for name, each in built.items():
        each.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if name in ("report", "train-head"):
            continue
        source.add_prompts(each, name)
        add_length(each)
        if name in ONE:
            each.add_argument(
                "--k", type=draft_length, default=K, help=f"drafted tokens per round, or auto (default {K})"
            )
            each.add_argument("--stop", dest="stop_strings", action="append", metavar="TEXT", help="may be repeated")
        if name in ("bench", "sweep", "profile", "advise"):
            add_repeats(each)
        source.add_models(each)
        add_sampling(each)
        each.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser
