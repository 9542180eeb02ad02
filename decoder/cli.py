"""L5: the command line, `python -m decoder` and `specdec`: calls of `decoder.api` and `decoder.bench`, printed.

Generated text and results go to the standard output, messages to the standard error. Exit codes: 0 done, 2 bad
arguments or a file or model that cannot be used (with the library's own message), 130 interrupted, 141 the reader
went away. Options left out keep the library's defaults, so none is repeated here.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers.utils import logging as library_logging

from decoder.api import SpeculativeDecoder
from decoder.arguments import build_parser
from decoder.asked.prompts import encode
from decoder.bench.measure import Report, compare
from decoder.bench.methods import Plan, label
from decoder.bench.prediction import predict
from decoder.bench.prompts import as_ids, read_prompts
from decoder.drafters import ModelDrafter
from decoder.files import beside, write_text
from decoder.measure.statistics import Interval
from decoder.report import coloured, comparison, legend, metrics, styled, terminal_table, visible, wants_colour
from decoder.report.page import html_report, write_html
from decoder.results import GenerationResult

_BUILD = ("device", "dtype", "draft_device", "draft_dtype", "drafter", "verifier", "seed", "packed")
_SAMPLING = ("temperature", "top_p", "top_k", "min_p")


def _given(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """The options that were typed; the others keep the library's defaults."""
    return {name: value for name in names if (value := getattr(options, name, None)) is not None}


def _decoder(options: argparse.Namespace) -> SpeculativeDecoder:
    if not sys.stderr.isatty():
        library_logging.disable_progress_bar()  # of loading weights: noise in a log
    return SpeculativeDecoder(options.target, options.draft, **_given(options, (*_BUILD, *_SAMPLING)))


def _call(options: argparse.Namespace) -> dict[str, Any]:
    """Keywords of `generate`."""
    return _given(options, ("max_new_tokens", "stop_strings"))


def _prompt(options: argparse.Namespace) -> Any:
    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    return [{"role": "user", "content": text}] if options.chat else text


def _prompts(options: argparse.Namespace, spec: SpeculativeDecoder) -> list[list[int]]:
    """Token ids of the prompt, or of a file's prompts; `--chat` makes plain text a message too."""
    if options.prompts is None:
        return encode(_prompt(options), spec.tokenizer)[0]
    found = read_prompts(Path(options.prompts), options.limit)
    if options.chat:
        found = [[{"role": "user", "content": each}] if isinstance(each, str) else each for each in found]
    return as_ids(spec, found)


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False))


# ---- commands ----


def _generate(options: argparse.Namespace) -> None:
    spec, prompt = _decoder(options), _prompt(options)
    if options.json:
        result = spec.generate(prompt, k=options.k, **_call(options))
        _picture(result, options.picture)
        _print_json(result.to_dict())
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


def _compare(options: argparse.Namespace) -> None:
    spec, prompt, call = _decoder(options), _prompt(options), _call(options)
    call["seed"] = 0 if options.seed is None else options.seed
    spec.generate(prompt, k=options.k, **{**call, "max_new_tokens": 8})  # warms both models up
    results = {"plain": spec.generate_baseline(prompt, **call)}
    results["speculative"] = spec.generate(prompt, k=options.k, **call)
    same = results["plain"].token_ids == results["speculative"].token_ids
    if options.json:
        _print_json({name: result.to_dict() for name, result in results.items()} | {"identical": same})
        return
    text = results["speculative"]
    print(f"{coloured(text)}\n\n{legend()}" if wants_colour(sys.stdout) else visible(text.text), end="\n\n")
    print(terminal_table(*comparison(results, "plain")))
    greedy = "the texts are identical" if same else "the texts differ: greedy decoding parted at a near-tie"
    print(f"\n{greedy if spec.params.greedy else 'sampled: both texts follow the same law'}. One run each; see bench.")


def _measured(
    options: argparse.Namespace,
    spec: SpeculativeDecoder,
    prompts: Sequence[Sequence[int]],
    methods: Sequence[str],
    ks: Sequence[int | str],
) -> Report:
    return compare(
        spec,
        prompts,
        Plan(options.max_new_tokens, spec.params),
        methods=methods,
        drafts=[(None, k) for k in ks],
        title=f"{options.command}: {options.target}",
        repeats=options.repeats,
        seed=options.seed or 0,
        progress=sys.stderr.isatty(),
    )


def _write(report: Report, path: str | None) -> None:
    """JSON and Markdown beside each other, and the page."""
    if path is not None:
        report.write(path)
        page = beside(path, ".html")
        write_text(page, html_report(report.to_dict()))
        print(f"wrote {beside(path, '.json')}, .md and .html", file=sys.stderr)


def _bench(options: argparse.Namespace) -> None:
    spec = _decoder(options)
    report = _measured(options, spec, _prompts(options, spec), options.methods, options.k)
    _write(report, options.out)
    if options.json:
        _print_json(report.to_dict())
    else:
        print(report.markdown())


def _sweep(options: argparse.Namespace) -> None:
    spec = _decoder(options)
    prompts = _prompts(options, spec)
    report = _measured(options, spec, prompts, ["baseline"], options.k)
    lengths = {label(spec.drafter, k): k for k in options.k}
    predicted: dict[int, float] = {}
    if spec.draft is not None and isinstance(spec.drafter, ModelDrafter):
        predictions = predict(spec, prompts, report.summaries, report.samples, lengths, repeats=3 * options.repeats)
        predicted = {row.k: row.predicted for row in predictions.rows}
    _write(report, options.out)
    summaries = {k: report.summary(name) for name, k in lengths.items()}
    ratios = {k: each.speedups["baseline"] for k, each in summaries.items()}
    if options.plot is not None:
        _plot(ratios, predicted, options.plot)
    names = ("acceptance_rate", "alpha", "tokens_per_iteration")
    rows = [
        {"k": k, "speedup": ratios[k].ratio, "lower": ratios[k].lower, "upper": ratios[k].upper}
        | {"predicted": predicted.get(k)}
        | {name: getattr(each, name) for name in names}
        for k, each in summaries.items()
    ]
    if options.json:
        _print_json(rows)
    else:
        print(terminal_table(list(rows[0]), [list(row.values()) for row in rows]))


def _plot(ratios: Mapping[int, Interval], predicted: Mapping[int, float], path: str) -> None:
    from decoder.report.figures import save
    from decoder.report.plots import speedup_over_k

    intervals = {
        k: (each.lower, each.upper) for k, each in ratios.items() if each.lower is not None and each.upper is not None
    }
    figure = speedup_over_k({k: each.ratio for k, each in ratios.items()}, predicted, intervals)
    print(f"wrote {save(figure, path)}", file=sys.stderr)


def _profile(options: argparse.Namespace) -> None:
    profile = _decoder(options).profile(_prompt(options), k=options.k, repeats=options.repeats, **_call(options))
    if options.json:
        _print_json(profile.to_dict())
    else:
        print(profile)


def _advise(options: argparse.Namespace) -> None:
    spec = _decoder(options)
    advice = spec.advise(_prompts(options, spec), drafters=options.drafters, repeats=options.repeats, **_call(options))
    if options.json:
        _print_json(advice.to_dict())
    else:
        print(advice)


def _report(options: argparse.Namespace) -> None:
    print(write_html(options.file, options.out))


COMMANDS = {
    "generate": _generate,
    "compare": _compare,
    "bench": _bench,
    "sweep": _sweep,
    "profile": _profile,
    "advise": _advise,
    "report": _report,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Argument errors leave through argparse, with code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may lack a model's characters
    options = build_parser().parse_args(argv)
    try:
        COMMANDS[options.command](options)
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
        print(f"specdec {options.command}: {visible(str(error))}", file=sys.stderr)
        return 2
    return 0
