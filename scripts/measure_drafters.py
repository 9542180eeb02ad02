"""Every drafter on every group of prompts, greedy and sampled, interleaved run by run with what it must beat.

    python scripts/measure_drafters.py --target FOLDER --by-category specbench_mini.jsonl \
        --prompts mt_bench.jsonl humaneval_head40.jsonl --out experiments/drafters
    python scripts/measure_drafters.py --target tiny --draft DRAFT ...      # also "model" and the cascade with it

For each repeat and prompt all methods run in turn, another one first each time: transformers' `generate` ("hf"), the
same with prompt_lookup_num_tokens=10 ("hf-lookup"), this project's baseline, and the drafters. All emit exactly
--max-new-tokens tokens (EOS is ignored). A method with a memory begins each repeat with an empty one, so it never meets
its own text of the same prompt.

Written: OUT.samples.jsonl, a line a run, from which an interrupted measurement resumes with the same command; OUT.json
and OUT.md, medians and spread a group and the speed-ups over the baseline, methods by groups. Prompts and texts are not
written: a sample holds checksums of its token prefixes, which show equality and nothing else.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from decoder import SpeculativeDecoder
from decoder.bench.environment import environment
from decoder.bench.measure import summary_table
from decoder.bench.methods import OwnMethod, Plan, named
from decoder.bench.prompts import as_ids
from decoder.drafters import DRAFTERS, RecycleDrafter, SuffixDrafter
from decoder.measure.comparison import MethodSummary, summarise
from decoder.measure.timing import Counts, Method, Sample, timed
from decoder.report.tables import markdown_table
from decoder.types import SamplingParams

RIVALS = ("hf", "hf-lookup", "baseline")
WITH_MEMORY = {"suffix+memory": SuffixDrafter, "recycle+memory": RecycleDrafter}


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--target", default="tiny", help="hub name or folder; default: the bundled pair")
    parser.add_argument("--draft", help="hub name or folder of a draft model")
    parser.add_argument("--by-category", type=Path, nargs="*", default=[], help=".jsonl files, a group a `category`")
    parser.add_argument("--prompts", type=Path, nargs="*", default=[], help=".jsonl files, a group each")
    parser.add_argument("--limit", type=int, help="prompts a group, taken evenly over it (default: all)")
    parser.add_argument("--max-prompt", type=int, default=1024, help="tokens kept of a prompt, its end (default 1024)")
    parser.add_argument("--drafters", nargs="*", help="names, default: all that this target and draft allow")
    parser.add_argument("--modes", nargs="*", choices=("greedy", "sampled"), default=["greedy", "sampled"])
    parser.add_argument("--temperature", type=float, default=0.8, help="of the sampled mode (default 0.8)")
    parser.add_argument("--top-p", type=float, default=0.95, help="of the sampled mode (default 0.95)")
    parser.add_argument("--k", type=int, default=4, help="tokens a round of drafters with a model (default 4)")
    parser.add_argument("--lookup-k", type=int, default=10, help="tokens a round of the others (default 10)")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True, help="path of the three files, without suffix")
    options = parser.parse_args(argv)
    if not options.by_category and not options.prompts:
        parser.error("give --by-category or --prompts")
    return options


@dataclass(frozen=True)
class Prompt:
    """One prompt: its group, its number in the group, its ids."""

    group: str
    number: int
    ids: list[int]


def evenly(items: Sequence[Any], limit: int | None) -> list[Any]:
    if limit is None or limit >= len(items):
        return list(items)
    return [items[i * len(items) // limit] for i in range(limit)]


def read_groups(options: argparse.Namespace, spec: SpeculativeDecoder) -> list[Prompt]:
    """All prompts as ids, group by group; the first turn is a chat message where the model has a template."""
    groups: dict[str, list[Any]] = {}
    for path in [*options.by_category, *options.prompts]:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip():
                record = json.loads(line)
                group = record["category"] if path in options.by_category else path.stem
                text = record["turns"][0] if "turns" in record else record["prompt"]
                chat = "turns" in record
                groups.setdefault(group, []).append([{"role": "user", "content": text}] if chat else text)
    return [
        Prompt(group, number, ids[-options.max_prompt :])
        for group, prompts in groups.items()
        for number, ids in enumerate(as_ids(spec, evenly(prompts, options.limit)))
    ]


def decoder_with(spec: SpeculativeDecoder, drafter: Any) -> SpeculativeDecoder:
    """The same models behind another drafter."""
    return SpeculativeDecoder.from_models(spec.target, spec.draft, tokenizer=spec.tokenizer, drafter=drafter)


def drafting_decoders(options: argparse.Namespace, spec: SpeculativeDecoder) -> dict[str, SpeculativeDecoder]:
    """Drafter name -> decoder. A name that was asked for must work; of all names, those that do."""
    wanted = options.drafters if options.drafters is not None else sorted({*DRAFTERS} - {"none"})
    found = {}
    for name in wanted:
        if name in WITH_MEMORY:
            continue
        try:
            found[name] = decoder_with(spec, name)
        except (ValueError, ImportError) as error:
            if options.drafters is not None:
                raise
            print(f"left out: {name} ({error})")
    return found


def methods_for(
    mode: str, options: argparse.Namespace, spec: SpeculativeDecoder, drafting: dict[str, SpeculativeDecoder]
) -> list[Method]:
    """Rivals and drafters of one mode; those with a memory are made anew, empty."""
    sampled = SamplingParams(options.temperature, 0, options.top_p)
    plan = Plan(options.max_new_tokens, SamplingParams(0.0) if mode == "greedy" else sampled)
    found: list[Method] = [named(name, spec, plan) for name in RIVALS]
    fresh = {
        name: decoder_with(spec, kind(memory=True))
        for name, kind in WITH_MEMORY.items()
        if options.drafters is None or name in options.drafters
    }
    for name, decoder in (drafting | fresh).items():
        k = options.lookup_k if decoder.drafter.deterministic else options.k
        found.append(OwnMethod(name, decoder, plan, k))
    return found


def checksums(token_ids: Sequence[int]) -> list[int]:
    """A checksum of every prefix: two texts agree as far as these do."""
    running, found = 0, []
    for token in token_ids:
        running = zlib.crc32(int(token).to_bytes(4, "little"), running)
        found.append(running)
    return found


class Journal:
    """The samples so far, a JSON line each, under a first line that says what is measured."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.samples: dict[tuple[str, int, str, int, str], Sample] = {}
        if not path.exists():
            self._append(settings)
            return
        lines = path.read_text().splitlines()
        if json.loads(lines[0]) != json.loads(json.dumps(settings)):
            raise SystemExit(f"{path} was begun with other settings; name another --out, or remove it to start anew.")
        for line in lines[1:]:
            record = json.loads(line)
            counts = None if record["counts"] is None else Counts(**record["counts"])
            self._hold(record, Sample(**(record["sample"] | {"token_ids": tuple(record["checksums"])}), counts=counts))

    def _append(self, record: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    def _hold(self, record: dict[str, Any], sample: Sample) -> None:
        self.samples[record["mode"], sample.repeat, record["group"], sample.prompt, sample.method] = sample

    def add(self, mode: str, group: str, sample: Sample) -> None:
        plain = {name: getattr(sample, name) for name in ("method", "prompt", "repeat", "wall_s")}
        counts = None if sample.counts is None else asdict(sample.counts)
        record = {"mode": mode, "group": group, "sample": plain, "counts": counts, "checksums": sample.token_ids}
        self._append(record)
        self._hold(record, sample)


def turns(prompts: Sequence[Prompt], methods: Sequence[str], repeat: int) -> Iterator[tuple[Prompt, str]]:
    """All methods on each prompt, another one first each time."""
    for place, prompt in enumerate(prompts):
        for i in range(len(methods)):
            yield prompt, methods[(repeat + place + i) % len(methods)]


def measure(
    options: argparse.Namespace,
    spec: SpeculativeDecoder,
    prompts: Sequence[Prompt],
    drafting: dict[str, SpeculativeDecoder],
    journal: Journal,
) -> None:
    """Run what the journal lacks."""
    names = [method.name for method in methods_for(options.modes[0], options, spec, drafting)]
    total = len(options.modes) * options.repeats * len(prompts) * len(names)
    with tqdm(total=total, unit="run") as bar:
        for mode in options.modes:
            for repeat in range(options.repeats):
                todo = [
                    (prompt, name)
                    for prompt, name in turns(prompts, names, repeat)
                    if (mode, repeat, prompt.group, prompt.number, name) not in journal.samples
                ]
                bar.update(len(prompts) * len(names) - len(todo))
                if not todo:
                    continue
                for method in methods_for(mode, options, spec, drafting):  # warm-up
                    method(prompts[0].ids, 0)
                methods = {method.name: method for method in methods_for(mode, options, spec, drafting)}
                for prompt, name in todo:
                    output, wall_s = timed(methods[name], prompt.ids, repeat)
                    ids = tuple(checksums(output.token_ids))
                    journal.add(mode, prompt.group, Sample(name, prompt.number, repeat, wall_s, ids, output.counts))
                    bar.update()


def fold(journal: Journal, modes: Sequence[str]) -> dict[str, dict[str, list[MethodSummary]]]:
    """mode -> group -> a summary of each method."""
    found: dict[str, dict[str, list[MethodSummary]]] = {}
    for mode in modes:
        groups = list(dict.fromkeys(key[2] for key in journal.samples if key[0] == mode))
        for group in groups:
            samples = [sample for key, sample in journal.samples.items() if key[0] == mode and key[2] == group]
            summaries = summarise(samples, outputs_comparable=mode == "greedy")
            found.setdefault(mode, {})[group] = sorted(summaries, key=lambda each: each.name)
    return found


def pivot(groups: dict[str, list[MethodSummary]]) -> str:
    """Speed-up over the baseline: methods by groups, with tokens a round where the method counts them."""
    rows: list[list[object]] = []
    for name in dict.fromkeys(each.name for summaries in groups.values() for each in summaries):
        row: list[object] = [name]
        for summaries in groups.values():
            each = next((summary for summary in summaries if summary.name == name), None)
            ratio = None if each is None else each.speedups.get("baseline")
            pace = None if each is None else each.tokens_per_iteration
            row.append("1" if ratio is None else f"{ratio.ratio:.2f}" + (f" ({pace:.2f})" if pace else ""))
        rows.append(row)
    return markdown_table(["method", *groups], rows)


def markdown(folded: dict[str, dict[str, list[MethodSummary]]], place: dict[str, Any]) -> str:
    lines = ["# Drafters by prompt group", ""]
    for mode, groups in folded.items():
        lines += [f"## {mode}", "", "Speed-up over the baseline (tokens per iteration).", "", pivot(groups), ""]
        for group, summaries in groups.items():
            lines += [f"### {mode}, {group}", "", summary_table(summaries), ""]
    lines.append(
        f"{place['processor']}, {place['threads']} threads of {place['cores']} cores; {' '.join(place['devices'])} "
        f"torch {place['versions']['torch']}, transformers {place['versions']['transformers']}; {place['date']}; "
        f"medians, [quartiles] over runs, (95 % bootstrap interval over prompts).\n\n    {place['command']}\n"
    )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments(argv)
    spec = SpeculativeDecoder(options.target, options.draft, dtype=options.dtype, device=options.device)
    prompts = read_groups(options, spec)
    drafting = drafting_decoders(options, spec)
    settings = {
        name: value if isinstance(value, (int, float, list, type(None))) else Path(str(value)).name
        for name, value in vars(options).items()
        if name not in ("out", "by_category", "prompts", "repeats")
    }
    settings["prompts"] = [[prompt.group, prompt.number, zlib.crc32(str(prompt.ids).encode())] for prompt in prompts]
    journal = Journal(options.out.with_suffix(".samples.jsonl"), settings)
    with torch.inference_mode():
        measure(options, spec, prompts, drafting, journal)
    folded = fold(journal, options.modes)
    place = environment(spec.target, spec.draft)
    groups = {
        mode: {group: [each.to_dict() for each in summaries] for group, summaries in by_group.items()}
        for mode, by_group in folded.items()
    }
    record = {"settings": settings, "environment": place, "groups": groups}
    options.out.with_suffix(".json").write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
    options.out.with_suffix(".md").write_text(markdown(folded, place))
    print(markdown(folded, place))


if __name__ == "__main__":
    main()
