"""Reduce the JSON of a measurement to the figures that an experiment's page quotes, and keep those only.

    python scripts/summarise.py experiments/10-compare RUN.json   # into summary.json, then README
    python scripts/summarise.py docs/drafters.md                  # the tables of a document only

Takes what `specdec bench --out` and the `measure_*.py` scripts write. Each file becomes one entry of the folder's
summary.json, named after the file; an entry of that name is replaced. Kept are the command, date, machine, versions and
notes, and for each method medians, quartiles, speed-ups with their intervals, acceptance and agreement, with six
significant digits. Raw samples and token ids are left out: they are large, and nobody compares them by eye.

A document has a table written for it between two marks, so that its figures are the summary's (tests/docs hold it):

    <!-- table: 01-pairs/tiny-greedy -->               the methods of one comparison
    <!-- table: 11-drafters/smollm2 greedy -->         the methods over all groups of prompts
    <!-- table: 11-drafters/smollm2 greedy groups -->  speed-ups over plain decoding, group by group
    <!-- end -->
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from decoder.files import write_text
from decoder.report.tables import markdown_table

SUMMARY = "summary.json"
EXPERIMENTS = Path(__file__).parents[1] / "experiments"
MARKED = re.compile(r"(<!-- table: ([\w./-]+)((?: \w+)*) -->\n).*?(<!-- end -->)", re.DOTALL)
Entry = dict[str, Any]


def rounded(value: Any) -> Any:
    """Floats with six significant digits, wherever they stand."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, (list, tuple)) else value


def percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def method(summary: Mapping[str, Any], *, whole: bool = True) -> Entry:
    """One method. `whole`: with spread, intervals and agreement; a single group of prompts has the ratios only."""
    found: Entry = {"name": summary["name"]}
    if whole:
        spread = summary["spread"]
        found["runs"] = spread["count"]
        found |= {"tokens_per_second": summary["tokens_per_second"], "quartiles": [spread["lower"], spread["upper"]]}
    for baseline, ratio in summary["speedups"].items():
        interval = [ratio["ratio"], ratio["lower"], ratio["upper"]]
        found[f"vs_{baseline}"] = interval if whole else ratio["ratio"]
    names = ("acceptance_rate", "alpha", "tokens_per_iteration") if whole else ("tokens_per_iteration",)
    found |= {name: summary[name] for name in names}
    found["drafting_percent"] = percent(summary.get("drafting_share"))
    if whole:
        found["overhead_percent"] = percent(summary["overhead_share"])
        for each in list(summary["agreement"].values())[:1]:
            found["equal"] = f"{each['equal']}/{each['of']}"
    return rounded({name: value for name, value in found.items() if value is not None})


def head(record: Mapping[str, Any], options: Mapping[str, Any]) -> Entry:
    """Where, when and with what command."""
    place = record["environment"]
    found = {
        "command": place["command"],
        "date": place["date"][:16],
        "machine": f"{place['processor']}, {place['threads']} threads of {place['cores']} cores",
        "torch": place["versions"]["torch"],
        "transformers": place["versions"]["transformers"],
        "dtype": place.get("target", {}).get("dtype"),
        "max_new_tokens": options.get("max_new_tokens"),
    }
    return {name: value for name, value in found.items() if value is not None}


def forwards(predictions: Mapping[str, Any]) -> Entry:
    """Milliseconds of forwards of m tokens by themselves, and theory beside measurement."""
    return {
        "predictions": rounded(predictions["rows"]),
        "forward_ms": rounded(
            {
                model: {m: 1000 * found["median"] for m, found in predictions[model]["forward_s"].items()}
                for model in ("target", "draft")
                if predictions.get(model)
            }
        ),
    }


def reduce(record: Mapping[str, Any]) -> Entry:
    """One measurement.

    Raises:
        ValueError: neither a comparison nor a measurement by groups of prompts.
    """
    if "methods" in record:
        plan = record["plan"]
        found: Entry = {"title": record["title"], **head(record, plan), "temperature": plan["params"]["temperature"]}
        found["notes"] = [note for note in record["notes"] if " differs from " not in note]
        found["methods"] = [method(each) for each in record["methods"]]
        return found | (forwards(record["predictions"]) if record.get("predictions") else {})
    if "groups" in record:
        settings = record["settings"]
        found = {"title": Path(settings["target"]).name, **head(record, settings)}
        found["modes"] = {
            mode: {
                group: [method(each, whole=group == "all" or len(groups) == 1) for each in methods]
                for group, methods in groups.items()
            }
            for mode, groups in record["groups"].items()
        }
        return found
    raise ValueError("this JSON holds neither `methods` nor `groups`; give what specdec bench or a script wrote.")


def text(entries: Mapping[str, Entry]) -> str:
    """JSON with a line for each method, so that a later measurement shows as a readable difference."""

    def lines(value: Any, depth: int) -> str:
        flat = json.dumps(value, allow_nan=False, ensure_ascii=False)
        deep = isinstance(value, (dict, list)) and any(isinstance(each, (dict, list)) for each in _parts(value))
        if not deep or depth > 6 or len(flat) <= 100 or (isinstance(value, dict) and "name" in value):
            return flat
        pad = " " * (depth + 1)
        if isinstance(value, dict):
            body = [f"{pad}{json.dumps(name)}: {lines(each, depth + 1)}" for name, each in value.items()]
            return "{\n" + ",\n".join(body) + "\n" + " " * depth + "}"
        return "[\n" + ",\n".join(pad + lines(each, depth + 1) for each in value) + "\n" + " " * depth + "]"

    return lines(dict(entries), 0) + "\n"


def _parts(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


# ---- tables of documents ----


def ratio(summary: Mapping[str, Any], baseline: str) -> str | None:
    """A speed-up with its interval, where there is one."""
    if summary["name"] == baseline:
        return "1"
    found = summary.get(f"vs_{baseline}")
    if found is None or isinstance(found, (int, float)):
        return None if found is None else f"{found:.2f}"
    value, lower, upper = found
    return f"{value:.2f}" if lower is None or upper is None else f"{value:.2f} ({lower:.2f}-{upper:.2f})"


def methods_table(methods: Sequence[Entry]) -> str:
    """The methods of one comparison."""
    no_generate = not any("vs_hf" in each for each in methods)
    headers = ["method", "tokens/s", "over plain", *([] if no_generate else ["over generate"])]
    headers += ["alpha", "tokens per iteration", "outside models %", "same text"]
    rows: list[list[object]] = []
    for each in methods:
        drafts = each.get("alpha") is not None
        pace = each.get("tokens_per_iteration") if drafts else None
        row: list[object] = [each["name"], each["tokens_per_second"], ratio(each, "baseline")]
        row += [] if no_generate else [ratio(each, "hf")]
        rows.append([*row, each.get("alpha"), pace, each.get("overhead_percent"), each.get("equal")])
    return markdown_table(headers, rows)


def overall_table(methods: Sequence[Entry]) -> str:
    """Methods over all groups of prompts together."""
    rows: list[list[object]] = []
    for each in methods:
        share = each.get("drafting_percent")
        drafted = f"{share:.0f} %" if share else None
        pace = each.get("tokens_per_iteration") if each["name"] != "baseline" else None
        rows.append([each["name"], ratio(each, "baseline"), ratio(each, "hf"), pace, drafted])
    return markdown_table(["method", "over plain", "over generate", "tokens per iteration", "drafted in"], rows)


def groups_table(groups: Mapping[str, Sequence[Entry]]) -> str:
    """Speed-ups over plain decoding, methods by groups of prompts."""
    groups = {name: methods for name, methods in groups.items() if name != "all"}
    names = dict.fromkeys(each["name"] for methods in groups.values() for each in methods)
    cells = {(group, each["name"]): ratio(each, "baseline") for group, methods in groups.items() for each in methods}
    rows: list[list[object]] = [[name, *[cells.get((group, name)) for group in groups]] for name in names]
    return markdown_table(["over plain", *groups], rows)


def table(source: str, words: Sequence[str]) -> str:
    """The table that a mark asks for; `source` is FOLDER/ENTRY of the experiments.

    Raises:
        KeyError: no such entry, mode or group.
    """
    folder, _, name = source.partition("/")
    entry = json.loads((EXPERIMENTS / folder / SUMMARY).read_text(encoding="utf-8"))[name]
    if not words:
        return methods_table(entry["methods"])
    groups = entry["modes"][words[0]]
    return groups_table(groups) if "groups" in words[1:] else overall_table(groups["all"])


def with_tables(document: str) -> str:
    """The document with every marked table written anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{table(found[2], found[3].split())}\n\n{found[4]}", document)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("place", type=Path, help="the experiment's folder, or a document")
    made.add_argument("files", type=Path, nargs="*", metavar="FILE", help="JSON files of measurements")
    return made


def main(argv: Sequence[str] | None = None) -> None:
    options = parser().parse_args(argv)
    document = options.place / "README.md" if options.place.is_dir() else options.place
    if options.files:
        path = options.place / SUMMARY
        entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        entries |= {file.stem: reduce(json.loads(file.read_text(encoding="utf-8"))) for file in options.files}
        write_text(path, text(dict(sorted(entries.items()))))
        print(f"{path}: {', '.join(file.stem for file in options.files)}")
    if document.exists():
        write_text(document, with_tables(document.read_text(encoding="utf-8")))
        print(f"{document}: tables written")


if __name__ == "__main__":
    main()
