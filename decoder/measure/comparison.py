"""One comparison from models to a written account: methods interleaved on the same prompts, JSON and Markdown.

    report = Comparison(spec, prompts, plan, ["hf", "baseline", speculative(spec, plan, 4)]).run()
    print(report.markdown()); report.write("comparison.json")

Prompts are token ids. Timing and folding are `timing`'s and `summary`'s; here methods are put together and the result
is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from decoder.api import SpeculativeDecoder
from decoder.files import beside, write_json, write_text
from decoder.measure.environment import environment
from decoder.measure.methods import Plan, named
from decoder.measure.quiet import quiet
from decoder.measure.statistics import Interval
from decoder.measure.summary import MethodSummary, summarise
from decoder.measure.timing import Method, Sample, interleaved
from decoder.report.tables import markdown_table, terminal_table


@dataclass(frozen=True)
class ComparisonReport:
    """A finished comparison. `title` says what was compared, `notes` what the reader must know."""

    title: str
    plan: Plan
    summaries: tuple[MethodSummary, ...]
    samples: tuple[Sample, ...]
    environment: dict[str, Any]
    notes: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    appendix: str = ""  # more Markdown, after the table

    def summary(self, name: str) -> MethodSummary:
        for each in self.summaries:
            if each.name == name:
                return each
        raise ValueError(f"method {name!r} was not run; run were {[each.name for each in self.summaries]}.")

    def table(self) -> str:
        """A row for each method, for a terminal."""
        return terminal_table(*_cells(self.summaries))

    def markdown(self) -> str:
        """Title, table, notes and environment."""
        place = self.environment
        lines = [f"### {self.title}", "", summary_table(self.summaries), ""]
        lines += [f"- {note}" for note in self.notes]
        lines.append(
            f"- {place['processor']}, {place['threads']} threads of {place['cores']} cores"
            + "".join(f", {name}" for name in place["devices"])
            + f"; torch {place['versions']['torch']}, transformers {place['versions']['transformers']}; "
            f"{place['date']}; medians, [quartiles] over runs, (95 % bootstrap interval over prompts)"
        )
        lines += ["", self.appendix] if self.appendix else []
        return "\n".join([*lines, "", f"    {place['command']}", ""])

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "plan": asdict(self.plan),
            "environment": self.environment,
            "notes": list(self.notes),
            "methods": [each.to_dict() for each in self.summaries],
            "samples": [asdict(each) for each in self.samples],
            **self.extra,
        }

    def write(self, path: str | Path) -> None:
        """JSON at `path`, and the Markdown beside it."""
        write_json(beside(path, ".json"), self.to_dict())
        write_text(beside(path, ".md"), self.markdown())


def _ratio(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    if interval.lower is None or interval.upper is None:
        return f"{interval.ratio:.2f}"
    return f"{interval.ratio:.2f} ({interval.lower:.2f}-{interval.upper:.2f})"


def _cells(summaries: Sequence[MethodSummary]) -> tuple[list[str], list[list[object]]]:
    """Headers, and a row for each method."""
    references = list(dict.fromkeys(name for each in summaries for name in each.speedups))
    headers = ["method", "tokens/s", "quartiles", *[f"× {name}" for name in references]]
    headers += ["acceptance_rate", "alpha", "tokens/iteration", "overhead %", "equal outputs"]
    rows: list[list[object]] = []
    for each in summaries:
        agreements = list(each.agreement.values())
        share = each.overhead_share
        rows.append(
            [
                each.name,
                each.tokens_per_second,
                f"[{each.spread.lower:.1f}, {each.spread.upper:.1f}]",
                *[_ratio(each.speedups.get(name)) if name != each.name else "1" for name in references],
                each.acceptance_rate,
                each.alpha,
                each.tokens_per_iteration,
                None if share is None else 100 * share,
                f"{agreements[0].equal}/{agreements[0].of}" if agreements else "-",
            ]
        )
    return headers, rows


def summary_table(summaries: Sequence[MethodSummary]) -> str:
    """A Markdown table, a row for each method."""
    return markdown_table(*_cells(summaries))


def _bar(turns: Iterable[Any], total: int) -> Iterable[Any]:
    bar: Iterable[Any] = tqdm(turns, total=total, unit="run")
    return bar


@dataclass(frozen=True)
class Comparison:
    """Methods that take turns on the same prompts.

    methods: objects, or names as "hf", "hf-assisted", "hf-lookup" and "baseline" (`methods.named`).
    title, notes: what was compared, and what the reader must know; for the account.
    """

    spec: SpeculativeDecoder
    prompts: Sequence[Sequence[int]]
    plan: Plan
    methods: Sequence[Method | str]
    title: str = "Comparison"
    notes: Sequence[str] = ()

    def run(self, *, progress: bool = False) -> ComparisonReport:
        """Run every method on every prompt, interleaved, and fold what was measured.

        Greedy outputs are compared token for token with each plain method's; differences are reported, not raised,
        since in half precision two exact loops may part at a near-tie.

        Raises:
            ValueError: no methods or prompts, two methods of one name, or a plan's counts out of range.
        """
        plan = self.plan
        chosen = [named(each, self.spec, plan) if isinstance(each, str) else each for each in self.methods]
        with quiet():
            samples = interleaved(
                chosen,
                self.prompts,
                repeats=plan.repeats,
                warm_up=plan.warm_up,
                seed=plan.seed,
                watch=_bar if progress else None,
            )
        summaries = summarise(samples, outputs_comparable=plan.params.greedy)
        return ComparisonReport(
            self.title,
            plan,
            tuple(summaries),
            tuple(samples),
            environment(self.spec.target, self.spec.draft),
            _notes(summaries, self.notes),
        )


def _notes(summaries: Sequence[MethodSummary], given: Sequence[str]) -> tuple[str, ...]:
    """The given notes, and a line for each method whose greedy outputs differ."""
    found = list(given)
    for each in summaries:
        for reference, agreement in each.agreement.items():
            if agreement.first_difference is not None:
                prompt, place = agreement.first_difference
                found.append(
                    f"{each.name} differs from {reference} in {agreement.of - agreement.equal} of {agreement.of} "
                    f"outputs, first at token {place} of prompt {prompt}"
                )
    return tuple(found)
