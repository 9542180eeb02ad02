"""The measuring commands of the command line: bench, sweep, profile, advise. Each takes its options and a `Setup`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from decoder.api import SpeculativeDecoder
from decoder.drafters import ModelDrafter
from decoder.files import beside, write_json, write_text
from decoder.measure.comparison import Comparison, ComparisonReport
from decoder.measure.environment import environment
from decoder.measure.methods import OwnMethod, Plan, label, named, speculative
from decoder.measure.prediction import predict
from decoder.measure.setup import Setup, plan_of, twin
from decoder.measure.statistics import Interval
from decoder.measure.timing import Method
from decoder.report import terminal_table
from decoder.report.page import html_report


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False))


def _title(setup: Setup, plan: Plan) -> str:
    return setup.title + (", greedy" if plan.params.greedy else f", T = {plan.params.temperature:g}")


def _write(report: ComparisonReport, path: str | None) -> None:
    """JSON and Markdown beside each other, and the page."""
    if path is not None:
        report.write(path)
        write_text(beside(path, ".html"), html_report(report.to_dict()))
        print(f"wrote {beside(path, '.json')}, .md and .html", file=sys.stderr)


def _compared(setup: Setup, plan: Plan, methods: Sequence[Method]) -> ComparisonReport:
    comparison = Comparison(setup.spec, setup.ids(), plan, methods, _title(setup, plan), setup.notes)
    return setup.told(comparison.run(progress=sys.stderr.isatty()))


# ---- bench ----


def _bench_methods(
    options: argparse.Namespace, setup: Setup, spec: SpeculativeDecoder, drafters: Sequence[str], plan: Plan
) -> list[Method]:
    """Those to compare with, then one for each drafter and length; compiled ones last."""
    assisted = ["hf-assisted"] if setup.assistant is not None else []
    names = options.methods or ["hf", *assisted, "baseline"]
    found = [named(name, spec, plan, setup.assistant, options.assistant_tokens) for name in names]
    found += [speculative(spec, plan, k, drafter) for drafter in drafters for k in options.k]
    if options.compile:
        compiled = twin(spec, compile=True)
        found += [named(name, compiled, plan) for name in names if name == "baseline"]
        found += [speculative(compiled, plan, k, drafter) for drafter in drafters for k in options.k]
    return found


def bench(options: argparse.Namespace, setup: Setup) -> None:
    """Methods in turn on the same prompts. With `--compile`, this project's run eager and compiled."""
    spec = twin(setup.spec, compile=False) if options.compile else setup.spec
    plan = plan_of(options, spec)
    drafters = options.drafters or [spec.drafter.name]
    report = _compared(setup, plan, _bench_methods(options, setup, spec, drafters, plan))
    if options.predict:
        lengths = {label(name, k): k for name in drafters if name == "model" for k in options.k if k != "auto"}
        predictions = predict(spec, setup.ids(), report, lengths)
        extra = report.extra | {"predictions": predictions.to_dict()}
        report = replace(report, extra=extra, appendix=predictions.markdown())
    _write(report, options.out)
    if options.json:
        print_json(report.to_dict())
    else:
        print(report.markdown())


# ---- sweep ----


def sweep(options: argparse.Namespace, setup: Setup) -> None:
    """The speed-up over plain decoding at each draft length, and what theory says of a draft model."""
    spec, plan = setup.spec, plan_of(options, setup.spec)
    plain = OwnMethod("baseline", spec, plan)
    methods = {k: speculative(spec, plan, k) for k in options.k}
    report = _compared(setup, plan, [plain, *methods.values()])
    predicted: dict[int, float] = {}
    if isinstance(spec.drafter, ModelDrafter) and spec.draft is not None and not spec.compile:
        lengths = {method.name: k for k, method in methods.items()}
        found = predict(spec, setup.ids(), report, lengths, repeats=3 * options.repeats)
        predicted = {row.k: row.predicted for row in found.rows}
    _write(report, options.out)
    summaries = {k: report.summary(method.name) for k, method in methods.items()}
    ratios = {k: each.speedups[plain.name] for k, each in summaries.items()}
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
        print_json(rows)
    else:
        print("\n".join([*setup.notes, terminal_table(list(rows[0]), [list(row.values()) for row in rows])]))


def _plot(ratios: Mapping[int, Interval], predicted: Mapping[int, float], path: str) -> None:
    from decoder.report.figures import save
    from decoder.report.plots import speedup_over_k

    intervals = {
        k: (each.lower, each.upper) for k, each in ratios.items() if each.lower is not None and each.upper is not None
    }
    figure = speedup_over_k({k: each.ratio for k, each in ratios.items()}, predicted, intervals)
    print(f"wrote {save(figure, path)}", file=sys.stderr)


# ---- profile and advise ----


def _call(options: argparse.Namespace) -> dict[str, Any]:
    """Keywords of `generate`; the same tokens in every run."""
    found = {"max_new_tokens": options.max_new_tokens, "seed": options.seed or 0}
    stop = getattr(options, "stop_strings", None)
    return found if stop is None else found | {"stop_strings": stop}


def _record(name: str, value: dict[str, Any], setup: Setup, path: str | None) -> None:
    if path is not None:
        place = environment(setup.spec.target, setup.spec.draft)
        account = {name: value, "title": setup.title, "notes": list(setup.notes), "environment": place}
        write_json(beside(path, ".json"), account)
        print(f"wrote {beside(path, '.json')}", file=sys.stderr)


def profile(options: argparse.Namespace, setup: Setup) -> None:
    """Where the time of one generation goes, and what forwards of each model cost."""
    if options.picture is not None:
        from decoder.report.figures import new_figure

        new_figure(1, 1)  # says now, not after the measurement, that matplotlib is missing
    found = setup.spec.profile(setup.prompts[0], k=options.k, repeats=options.repeats, **_call(options))
    if options.picture is not None:
        from decoder.measure.pictures import profile_picture
        from decoder.report.figures import save

        print(f"wrote {save(profile_picture(found, setup.title), options.picture)}", file=sys.stderr)
    _record("profile", found.to_dict(), setup, options.out)
    if options.json:
        print_json(found.to_dict())
    else:
        print("\n".join([setup.title, *setup.notes, str(found)]))


def advise(options: argparse.Namespace, setup: Setup) -> None:
    """Whether to speculate on these prompts, with what and how long."""
    found = setup.spec.advise(setup.ids(), drafters=options.drafters, repeats=options.repeats, **_call(options))
    _record("advice", found.to_dict(), setup, options.out)
    if options.json:
        print_json(found.to_dict())
    else:
        print("\n".join([*setup.notes, str(found)]))
