"""L5: one comparison from models to a written account: methods interleaved on the same prompts, JSON and Markdown.

    report = compare(spec, prompts, plan, methods=["hf", "baseline"], drafts=[(None, 4)])
    print(report.markdown()); report.write("comparison.json")

Measuring and folding are `decoder.measure`'s; here methods are put together and the result is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from decoder.api import SpeculativeDecoder
from decoder.bench.environment import environment
from decoder.bench.methods import Plan, named, speculative
from decoder.files import beside, write_json, write_text
from decoder.measure.comparison import MethodSummary, summarise
from decoder.measure.statistics import Interval
from decoder.measure.timing import Method, Sample, interleaved
from decoder.report.tables import markdown_table


@dataclass(frozen=True)
class Report:
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


def summary_table(summaries: Sequence[MethodSummary]) -> str:
    """A Markdown table, a row for each method."""
    yardsticks = list(dict.fromkeys(name for each in summaries for name in each.speedups))
    headers = ["method", "tokens/s", "quartiles", *[f"× {name}" for name in yardsticks]]
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
                *[_ratio(each.speedups.get(name)) if name != each.name else "1" for name in yardsticks],
                each.acceptance_rate,
                each.alpha,
                each.tokens_per_iteration,
                None if share is None else 100 * share,
                f"{agreements[0].equal}/{agreements[0].of}" if agreements else "-",
            ]
        )
    return markdown_table(headers, rows)


def _bar(turns: Iterable[Any], total: int) -> Iterable[Any]:
    bar: Iterable[Any] = tqdm(turns, total=total, unit="run")
    return bar


def compare(
    spec: SpeculativeDecoder,
    prompts: Sequence[Sequence[int]],
    plan: Plan,
    *,
    methods: Sequence[str] = ("hf", "baseline"),
    drafts: Sequence[tuple[Any, int | str]] = ((None, 4),),
    title: str = "Comparison",
    repeats: int = 3,
    warm_up: int = 1,
    seed: int = 0,
    assistant: Any = None,
    assistant_tokens: int | None = None,
    notes: Sequence[str] = (),
    progress: bool = False,
    compiled: SpeculativeDecoder | None = None,
) -> Report:
    """Run `methods` and one speculative method for each (drafter, k) of `drafts` on token-id prompts, interleaved.

    assistant: the draft of "hf-assisted", the decoder's own by default.
    compiled: the same models built with compile=True; this project's own methods run with it too.
    Greedy outputs are compared token for token with each yardstick's; differences are reported, not raised, since in
    half precision two exact loops may part at a near-tie.
    """
    assistant = spec.draft if assistant is None else assistant
    chosen: list[Method] = [named(name, spec, plan, assistant, assistant_tokens) for name in methods]
    chosen += [speculative(spec, plan, k, drafter) for drafter, k in drafts]
    if compiled is not None:
        chosen += [named(name, compiled, plan) for name in methods if name == "baseline"]
        chosen += [speculative(compiled, plan, k, drafter) for drafter, k in drafts]
    samples = interleaved(
        chosen, prompts, repeats=repeats, warm_up=warm_up, seed=seed, watch=_bar if progress else None
    )
    summaries = summarise(samples, outputs_comparable=plan.params.greedy)
    return Report(
        title, plan, tuple(summaries), tuple(samples), environment(spec.target, spec.draft), _notes(summaries, notes)
    )


def _notes(summaries: Sequence[MethodSummary], given: Sequence[str]) -> tuple[str, ...]:
    """The given notes, and a line for each method whose greedy outputs differ."""
    found = list(given)
    for each in summaries:
        for yardstick, agreement in each.agreement.items():
            if agreement.first_difference is not None:
                prompt, place = agreement.first_difference
                found.append(
                    f"{each.name} differs from {yardstick} in {agreement.of - agreement.equal} of {agreement.of} "
                    f"outputs, first at token {place} of prompt {prompt}"
                )
    return tuple(found)
