"""Samples folded by mode and group of prompts. Knows summaries; measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from decoder.measure.comparison import summary_table
from decoder.measure.summary import MethodSummary, summarise
from decoder.measure.timing import Sample
from lab.journal import Key

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


def account(folded: Mapping[str, Groups], place: Mapping[str, Any]) -> str:
    """The whole measurement as Markdown."""
    lines = ["# Drafters by prompt group", ""]
    for mode, groups in folded.items():
        for group, summaries in groups.items():
            lines += [f"### {mode}, {group}", "", summary_table(summaries), ""]
    devices = "".join(f", {name}" for name in place["devices"])
    lines.append(
        f"{place['processor']}, {place['threads']} threads of {place['cores']} cores{devices}; "
        f"torch {place['versions']['torch']}, transformers {place['versions']['transformers']}; {place['date']}; "
        f"medians, [quartiles] over runs, (95 % bootstrap interval over prompts).\n\n    {place['command']}\n"
    )
    return "\n".join(lines)
