"""L5: samples by mode and group of prompts as tables: speed-ups, methods by groups.

    spliced(document, "smollm2", table)    replaces what stands between the marks of that name in a document

Knows summaries; measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from decoder.bench.journal import Key
from decoder.bench.measure import summary_table
from decoder.measure.comparison import MethodSummary, summarise
from decoder.measure.timing import Sample
from decoder.report.tables import markdown_table

Groups = dict[str, list[MethodSummary]]  # group -> a summary of each method


ALL = "all"  # the group of every prompt


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


def _ratio(summary: Mapping[str, Any], yardstick: str) -> str:
    if summary["name"] == yardstick:
        return "1"
    found = summary["speedups"].get(yardstick)
    return "-" if found is None else f"{found['ratio']:.2f}"


def pivot(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Methods by groups from `MethodSummary.to_dict()`s: speed-up over the baseline, over `generate`, and tokens a
    round in brackets where the method counts them."""
    names = dict.fromkeys(each["name"] for summaries in groups.values() for each in summaries)
    rows: list[list[object]] = []
    for name in names:
        row: list[object] = [name]
        for summaries in groups.values():
            each = next((summary for summary in summaries if summary["name"] == name), None)
            if each is None:
                row.append(None)
                continue
            pace = each["tokens_per_iteration"]
            both = f"{_ratio(each, 'baseline')} / {_ratio(each, 'hf')}"
            row.append(both + (f" ({pace:.2f})" if pace and name != "baseline" else ""))
        rows.append(row)
    return markdown_table(["method", *groups], rows)


def account(folded: Mapping[str, Groups], place: Mapping[str, Any]) -> str:
    """The whole measurement as Markdown."""
    lines = ["# Drafters by prompt group", ""]
    for mode, groups in folded.items():
        plain = {group: [each.to_dict() for each in summaries] for group, summaries in groups.items()}
        lines += [f"## {mode}", "", "Speed-up over the baseline / over `generate` (tokens per iteration).", ""]
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
        yield f"{mode}: speed-up over `generate_baseline` / over `generate` (tokens per iteration)\n\n{pivot(by_group)}"
