"""The command line, `python -m decoder` and `specdec`: calls of `decoder.api` and `decoder.measure`, printed.

Generated text and results go to the standard output, messages to the standard error. Exit codes: 0 done, 2 bad
arguments or a file or model that cannot be used (with the decoder's own message), 130 interrupted, 141 the reader
went away.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from decoder.arguments import build_parser
from decoder.measure import commands
from decoder.measure.commands import print_json
from decoder.measure.setup import Setup, given, set_up
from decoder.report import coloured, comparison, legend, metrics, styled, terminal_table, visible, wants_colour
from decoder.report.page import write_html
from decoder.results import GenerationResult


def _call(options: argparse.Namespace) -> dict[str, Any]:
    """Keywords of `generate`."""
    return given(options, ("max_new_tokens", "stop_strings"))


def _generate(options: argparse.Namespace, setup: Setup) -> None:
    spec, prompt = setup.spec, setup.prompts[0]
    if options.json:
        result = spec.generate(prompt, k=options.k, **_call(options))
        _picture(result, options.picture)
        print_json(result.to_dict())
        return
    stream = spec.stream(prompt, k=options.k, **_call(options))
    if options.show_accepted:
        for piece, fate in stream.tokens():
            print(styled(piece, fate), end="", flush=True)
        print(f"\n\n{legend()}")
    else:
        for piece in stream:
            print(visible(piece), end="", flush=True)
        print()
    assert stream.result is not None
    _picture(stream.result, options.picture)
    if options.stats:
        print(terminal_table(*metrics(stream.result)), file=sys.stderr)


def _picture(result: GenerationResult, path: str | None) -> None:
    if path is not None:
        from decoder.report.figures import save
        from decoder.report.tokens import token_picture

        print(f"wrote {save(token_picture(result), path)}", file=sys.stderr)


def _compare(options: argparse.Namespace, setup: Setup) -> None:
    spec, prompt, call = setup.spec, setup.prompts[0], _call(options)
    call["seed"] = options.seed or 0
    spec.generate(prompt, k=options.k, **{**call, "max_new_tokens": 8})  # warms both models up
    results = {"plain": spec.generate_baseline(prompt, **call)}
    results["speculative"] = spec.generate(prompt, k=options.k, **call)
    same = results["plain"].token_ids == results["speculative"].token_ids
    if options.json:
        print_json({name: result.to_dict() for name, result in results.items()} | {"identical": same})
        return
    text = results["speculative"]
    print(f"{coloured(text)}\n\n{legend()}" if wants_colour(sys.stdout) else visible(text.text), end="\n\n")
    print(terminal_table(*comparison(results, "plain")))
    verdict = "the texts are identical" if same else "the texts differ: greedy decoding parted at a near-tie"
    if not spec.params.greedy:
        verdict = "sampled: both texts follow the same distribution; with --temperature 0 they are compared"
    print(f"\n{verdict}. One run each; see bench.")


def _report(options: argparse.Namespace) -> None:
    print(write_html(options.file, options.out))


def _train_head(options: argparse.Namespace) -> None:
    from decoder.training.command import run_command

    run_command(options)


COMMANDS: dict[str, Callable[[argparse.Namespace, Setup], None]] = {
    "generate": _generate,
    "compare": _compare,
    "bench": commands.bench,
    "sweep": commands.sweep,
    "profile": commands.profile,
    "advise": commands.advise,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Argument errors leave through argparse, with code 2."""
    return run(build_parser(), argv)


def run(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None = None,
    set_up: Callable[[argparse.Namespace], Setup] = set_up,
) -> int:
    """Run one command of `parser` over the models and prompts that `set_up` makes of its options."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may lack a model's characters
    options = parser.parse_args(argv)
    try:
        if options.command == "report":
            _report(options)
        elif options.command == "train-head":
            _train_head(options)
        else:
            COMMANDS[options.command](options, set_up(options))
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at exit
        return 141
    except (ValueError, TypeError, OSError, ImportError) as error:
        if options.debug:
            raise
        print(f"{parser.prog} {options.command}: {visible(str(error))}", file=sys.stderr)
        return 2
    return 0
