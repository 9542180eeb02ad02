"""Samples by mode and group of prompts as tables: speed-ups, methods by groups.

    spliced(document, "smollm2", table)    replaces what stands between the marks of that name in a document

Knows summaries; measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from decoder.measure.comparison import summary_table
from decoder.measure.summary import MethodSummary, summarise
from decoder.measure.timing import Sample
from decoder.report.tables import markdown_table
from lab.journal import Key

Groups = dict[str, list[MethodSummary]]  # group -> a summary of each method


ALL = "all"  # the group of every prompt
LEGEND = (
    "speed-up over `generate_baseline` / over `generate` (tokens per iteration, share of the iterations that drafted); "
    "runs of each method; over all prompts with a 95 % interval"
)


def fold(samples: Mapping[Key, Sample], modes: Sequence[str], methods: Sequence[str]) -> dict[str, Groups]:
    """mode -> group -> a summary of each method, in the order of `methods`; with several groups, all together last."""
    found: dict[str, Groups] = {}
    for mode in modes:
        kept: list[Sample] = []
        groups = list(dict.fromkeys(key[2] for key in samples if key[0] == mode))
        everyone = {key[4] for key in samples if key[0] == mode}
        for place, group in enumerate(groups):
            mine = [sample for key, sample in samples.items() if key[0] == mode and key[2] == group]
            mine = _complete(mine, everyone)
            if not mine:
                continue
            found.setdefault(mode, {})[group] = _ranked(mine, mode, methods)
            kept += [replace(sample, prompt=sample.prompt * len(groups) + place) for sample in mine]
        if len(found.get(mode, {})) > 1:
            found[mode][ALL] = _ranked(kept, mode, methods)
    return found


def _ranked(samples: Sequence[Sample], mode: str, methods: Sequence[str]) -> list[MethodSummary]:
    summaries = summarise(samples, outputs_comparable=mode == "greedy")
    return sorted(summaries, key=lambda each: methods.index(each.name) if each.name in methods else len(methods))


def _complete(samples: Sequence[Sample], methods: set[str]) -> list[Sample]:
    """Only prompts and repeats that every method has run: an interrupted round must not favour anybody."""
    turns: dict[tuple[int, int], set[str]] = {}
    for sample in samples:
        turns.setdefault((sample.prompt, sample.repeat), set()).add(sample.method)
    return [sample for sample in samples if turns[sample.prompt, sample.repeat] == methods]


def _ratio(summary: Mapping[str, Any], reference: str, interval: bool) -> str:
    if summary["name"] == reference:
        return "1"
    found = summary["speedups"].get(reference)
    if found is None:
        return "-"
    known = interval and found.get("lower") is not None and found.get("upper") is not None
    return f"{found['ratio']:.2f}" + (f" [{found['lower']:.2f}-{found['upper']:.2f}]" if known else "")


def _cell(summary: Mapping[str, Any], interval: bool) -> str:
    """Speed-ups, and in brackets tokens per iteration and the share of iterations that drafted."""
    both = f"{_ratio(summary, 'baseline', interval)} / {_ratio(summary, 'hf', interval)}"
    pace, share = summary["tokens_per_iteration"], summary.get("drafting_share")
    if not pace or summary["name"] == "baseline":
        return both
    return f"{both} ({pace:.2f}" + (")" if share is None else f", {100 * share:.0f} %)")


def pivot(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Methods by groups from `MethodSummary.to_dict()`s, a `_cell` each; over all groups with an interval."""
    names = dict.fromkeys(each["name"] for summaries in groups.values() for each in summaries)
    rows: list[list[object]] = []
    for name in names:
        row: list[object] = [name]
        for group, summaries in groups.items():
            each = next((summary for summary in summaries if summary["name"] == name), None)
            row.append(None if each is None else _cell(each, group == ALL))
        rows.append(row)
    runs = {group: summaries[0].get("runs") for group, summaries in groups.items() if summaries}
    return markdown_table(["method", *[_head(group, runs.get(group)) for group in groups]], rows)


def _head(group: str, runs: int | None) -> str:
    return group if not runs else f"{group} ({runs} run{'s' if runs > 1 else ''})"


def account(folded: Mapping[str, Groups], place: Mapping[str, Any]) -> str:
    """The whole measurement as Markdown."""
    lines = ["# Drafters by prompt group", ""]
    for mode, groups in folded.items():
        plain = {group: [each.to_dict() for each in summaries] for group, summaries in groups.items()}
        lines += [f"## {mode}", "", f"{LEGEND[0].upper()}{LEGEND[1:]}.", ""]
        lines += [pivot(plain), ""]
        for group, summaries in groups.items():
            lines += [f"### {mode}, {group}", "", summary_table(summaries), ""]
    devices = "".join(f", {name}" for name in place["devices"])
    lines.append(
        f"{place['processor']}, {place['threads']} threads of {place['cores']} cores{devices}; "
        f"torch {place['versions']['torch']}, transformers {place['versions']['transformers']}; {place['date']}; "
        f"medians, [quartiles] over runs, (95 % bootstrap interval over prompts).\n\n    {place['command']}\n"
    )
    return "\n".join(lines)


def marks(name: str) -> tuple[str, str]:
    """The lines of a document between which the table `name` stands."""
    return f"<!-- measured: {name} -->", f"<!-- end of {name} -->"


def spliced(document: str, name: str, table: str) -> str:
    """The document with the table between its marks.

    Raises:
        ValueError: the marks are not there, each on a line of its own, in order.
    """
    begin, end = marks(name)
    lines = document.split("\n")
    if lines.count(begin) != 1 or lines.count(end) != 1 or lines.index(begin) > lines.index(end):
        raise ValueError(f"the document needs the line {begin!r} and after it the line {end!r}, each once.")
    return "\n".join([*lines[: lines.index(begin) + 1], "", table, "", *lines[lines.index(end) :]])


def tables(groups: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> Iterable[str]:
    """One table a mode, from the JSON of a measurement."""
    for mode, by_group in groups.items():
        yield f"{mode}: {LEGEND}\n\n{pivot(by_group)}"
