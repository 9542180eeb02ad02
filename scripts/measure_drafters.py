"""Every drafter on every group of prompts, interleaved run by run with what it must beat; in pieces, if need be.

    python scripts/measure_drafters.py --target FOLDER --by-category specbench_mini.jsonl \
        --prompts mt_bench.jsonl humaneval_head40.jsonl --limit 2 --seconds 200 --out OUT      again and again
    python scripts/measure_drafters.py --draft DRAFT --prompts FILE --out OUT      also "model" and the cascade with it
    python scripts/measure_drafters.py --write-table docs/drafters.md --out OUT

For each repeat and prompt all methods run in turn, another one first each time: transformers' `generate` ("hf"), the
same with prompt_lookup_num_tokens=10 ("hf-lookup"), this project's baseline, and the drafters. All emit exactly
--max-new-tokens tokens (EOS is ignored). A method with a memory begins each repeat and each piece with an empty one, so
it never meets its own text of the same prompt; k="auto" keeps what it learnt of the device for the piece.

Written: OUT.samples.jsonl, a line a run, from which the same command goes on where --seconds or a person stopped it;
OUT.json and OUT.md, medians and spread a group and the speed-ups, methods by groups, over the prompts that all methods
have finished. Prompts and texts are not written: a sample holds checksums of its token prefixes, which show equality
and nothing else. --write-table puts the table of OUT.json between the marks `lab.groups.marks` of a document.
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from decoder import SpeculativeDecoder
from decoder.arguments import draft_length
from decoder.drafters import DRAFTERS, RecycleDrafter, SuffixDrafter
from decoder.files import write_json
from decoder.measure.environment import environment
from decoder.measure.methods import OwnMethod, Plan, named
from decoder.measure.prompts import as_ids
from decoder.measure.timing import Method, Sample, timed
from decoder.models import loading
from decoder.models.tiny import tiny_paths
from decoder.types import SamplingParams
from lab.groups import account, fold, spliced, tables
from lab.journal import Journal, checksums

RIVALS = ("hf", "hf-lookup", "baseline")
WITH_MEMORY = {"suffix+memory": SuffixDrafter, "recycle+memory": RecycleDrafter}
WARM_UP_TOKENS = 8  # of every method before a piece begins


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("--target", default="tiny", help="hub name or folder; default: the bundled pair")
    made.add_argument("--draft", help="hub name or folder of a draft model")
    made.add_argument("--foreign-draft", help="a draft of another tokenizer, for crosstokenizer; tiny: the bundled")
    made.add_argument("--by-category", type=Path, nargs="*", default=[], help=".jsonl files, a group a `category`")
    made.add_argument("--prompts", type=Path, nargs="*", default=[], help=".jsonl files, a group each")
    made.add_argument("--limit", type=int, help="prompts a group, taken evenly over it (default: all)")
    made.add_argument("--max-prompt", type=int, default=1024, help="tokens kept of a prompt, its end (default 1024)")
    made.add_argument("--drafters", nargs="*", help="names, default: all that this target and draft allow")
    made.add_argument("--modes", nargs="*", choices=("greedy", "sampled"), default=["greedy", "sampled"])
    made.add_argument("--temperature", type=float, default=0.8, help="of the sampled mode (default 0.8)")
    made.add_argument("--top-p", type=float, default=0.95, help="of the sampled mode (default 0.95)")
    made.add_argument("--k", type=draft_length, default="auto", help="length for drafters with a model (default auto)")
    made.add_argument("--lookup-k", type=draft_length, default="auto", help="length for the others (default auto)")
    made.add_argument("--max-new-tokens", type=int, default=64)
    made.add_argument("--repeats", type=int, default=2)
    made.add_argument("--dtype", default="auto")
    made.add_argument("--device", default="auto")
    made.add_argument("--seconds", type=float, help="begin no run after so many; give the same command to go on")
    made.add_argument("--out", type=Path, required=True, help="path of the three files, without suffix")
    made.add_argument("--write-table", type=Path, metavar="DOCUMENT", help="measure nothing; put OUT's table there")
    return made


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    options = parser().parse_args(argv)
    if not options.by_category and not options.prompts and options.write_table is None:
        parser().error("give --by-category or --prompts")
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
    """All prompts as ids, the groups in turn; the first turn is a chat message where the model has a template."""
    groups: dict[str, list[Any]] = {}
    for path in [*options.by_category, *options.prompts]:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip():
                record = json.loads(line)
                group = record["category"] if path in options.by_category else path.stem
                text = record["turns"][0] if "turns" in record else record["prompt"]
                chat = "turns" in record
                groups.setdefault(group, []).append([{"role": "user", "content": text}] if chat else text)
    found = [
        Prompt(group, number, ids[-options.max_prompt :])
        for group, prompts in groups.items()
        for number, ids in enumerate(as_ids(spec, evenly(prompts, options.limit)))
    ]
    return sorted(found, key=lambda prompt: prompt.number)  # every group's first: a first piece has seen them all


def decoder_with(spec: SpeculativeDecoder, drafter: Any) -> SpeculativeDecoder:
    """The same models behind another drafter."""
    return SpeculativeDecoder.from_models(spec.target, spec.draft, tokenizer=spec.tokenizer, drafter=drafter)


def foreign_decoder(options: argparse.Namespace, spec: SpeculativeDecoder) -> SpeculativeDecoder:
    """Drafter "crosstokenizer" with a draft of another tokenizer."""
    tiny = options.foreign_draft == "tiny"
    name = str(tiny_paths().draft) if tiny else options.foreign_draft
    source = str(tiny_paths().tokenizer) if tiny else name
    return SpeculativeDecoder.from_models(
        spec.target,
        loading.load_model("--foreign-draft", name, device=options.device, dtype=options.dtype),
        tokenizer=spec.tokenizer,
        draft_tokenizer=loading.load_tokenizer("--foreign-draft", source),
        drafter="crosstokenizer",
    )


def drafting_decoders(options: argparse.Namespace, spec: SpeculativeDecoder) -> dict[str, SpeculativeDecoder]:
    """Drafter name -> decoder, made once a piece. A name that was asked for must work; of all names, those that do."""
    wanted = options.drafters if options.drafters is not None else sorted({*DRAFTERS} - {"none"})
    found = {}
    for name in wanted:
        if name in WITH_MEMORY:
            continue
        try:
            foreign = name == "crosstokenizer" and options.foreign_draft is not None
            found[name] = foreign_decoder(options, spec) if foreign else decoder_with(spec, name)
        except (ValueError, ImportError) as error:
            if options.drafters is not None:
                raise
            print(f"left out: {name} ({error})")
    return found


def methods_for(
    mode: str,
    options: argparse.Namespace,
    spec: SpeculativeDecoder,
    drafting: dict[str, SpeculativeDecoder],
    tokens: int,
) -> list[Method]:
    """Rivals and drafters of one mode; those with a memory are made anew, empty."""
    sampled = SamplingParams(options.temperature, options.top_p)
    plan = Plan(tokens, SamplingParams(0.0) if mode == "greedy" else sampled)
    found: list[Method] = [named(name, spec, plan) for name in RIVALS]
    fresh = {
        name: decoder_with(spec, kind(memory=True))
        for name, kind in WITH_MEMORY.items()
        if options.drafters is None or name in options.drafters
    }
    for name, decoder in (drafting | fresh).items():
        found.append(OwnMethod(name, decoder, plan, options.lookup_k if decoder.drafter.deterministic else options.k))
    return found


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
) -> int:
    """Run what the journal lacks, until the time is up; returns how many runs are left."""
    began = time.monotonic()
    names = [method.name for method in methods_for(options.modes[0], options, spec, drafting, 1)]
    rounds = [(mode, repeat) for mode in options.modes for repeat in range(options.repeats)]
    left = len(rounds) * len(prompts) * len(names)
    with tqdm(total=left, unit="run") as bar:
        for mode, repeat in rounds:
            todo = [
                (prompt, name)
                for prompt, name in turns(prompts, names, repeat)
                if (mode, repeat, prompt.group, prompt.number, name) not in journal.samples
            ]
            done = len(prompts) * len(names) - len(todo)
            bar.update(done)
            left -= done
            if todo:
                for method in methods_for(mode, options, spec, drafting, WARM_UP_TOKENS):
                    method(min((prompt.ids for prompt in prompts), key=len), 0)
            methods = {each.name: each for each in methods_for(mode, options, spec, drafting, options.max_new_tokens)}
            for prompt, name in todo:
                if options.seconds is not None and time.monotonic() - began > options.seconds:
                    return left
                output, wall_s = timed(methods[name], prompt.ids, repeat)
                ids = checksums(output.token_ids)
                journal.add(mode, prompt.group, Sample(name, prompt.number, repeat, wall_s, ids, output.counts))
                bar.update()
                left -= 1
    return left


def settings_of(options: argparse.Namespace, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """What makes two pieces the same measurement; without a person's folders."""
    found = {
        name: value if isinstance(value, (int, float, list, type(None))) else Path(str(value)).name
        for name, value in vars(options).items()
        if name not in ("out", "by_category", "prompts", "repeats", "seconds", "write_table")
    }
    found["prompts"] = [[prompt.group, prompt.number, zlib.crc32(str(prompt.ids).encode())] for prompt in prompts]
    return found


def write_table(document: Path, out: Path) -> None:
    """The table of OUT.json between the marks of its name."""
    record = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    text = spliced(document.read_text(encoding="utf-8"), out.name, "\n\n".join(tables(record["groups"])))
    document.write_text(text, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments(argv)
    if options.write_table is not None:
        write_table(options.write_table, options.out)
        return
    spec = SpeculativeDecoder(options.target, options.draft, dtype=options.dtype, device=options.device)
    prompts = read_groups(options, spec)
    drafting = drafting_decoders(options, spec)
    settings = settings_of(options, prompts)
    journal = Journal(options.out.with_suffix(".samples.jsonl"), settings)
    with torch.inference_mode():
        left = measure(options, spec, prompts, drafting, journal)
    folded = fold(journal.samples, options.modes, [*RIVALS, *drafting, *WITH_MEMORY])
    place = environment(spec.target, spec.draft)
    groups = {
        mode: {group: [each.to_dict() for each in summaries] for group, summaries in by_group.items()}
        for mode, by_group in folded.items()
    }
    record = {"settings": settings, "environment": place, "groups": groups}
    write_json(options.out.with_suffix(".json"), record)
    options.out.with_suffix(".md").write_text(account(folded, place))
    print(account(folded, place))
    if left:
        print(f"{left} runs are left: give the same command again.")


if __name__ == "__main__":
    main()
