"""Time per draft step and alpha against the size of a draft's vocabulary (FR-Spec, arXiv 2502.14856).

    python scripts/measure_reduced_vocabulary.py --target MODEL --draft MODEL --prompts prompts.jsonl \
        --sizes 1024 4096 16384 --out reduced.json
    python scripts/measure_reduced_vocabulary.py --target MODEL --draft quantized --prompts prompts.jsonl \
        --rank-texts book.txt

Prompts are JSON lines with "turns" (the first is used) or "prompt". Tokens are ranked by frequency in the target's
own answers to the prompts that are kept out of the measurement (`--rank-on`, the first of the file) and in the texts of
`--rank-texts`; the whole vocabulary is always the last row. --draft may be "layerskip" or "quantized", a draft made out
of the target. Draft steps are timed alone, interleaved over the sizes, and with them a verification of k + 1 tokens;
alpha and tokens per iteration are those of greedy decoding, read off the target's answers (a greedy
draft's proposal depends on the text alone), and

    tokens a second = tokens per iteration / (k step_s + verify_s)

is what they promise together.

An --out file that is there already keeps its rows, and only what they lack is measured: sizes may be added, and
`--only steps` and `--only alpha` measure apart (seconds on a quiet machine, counts on any). The steps of one piece are
interleaved, those of different pieces are not. It must have been begun with the same options.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tqdm.auto import tqdm

from decoder import SpeculativeDecoder
from decoder.drafters import ModelDrafter, ReducedVocabularyDrafter
from decoder.drafters.reduced import most_frequent
from decoder.files import write_json
from decoder.measure.environment import environment
from decoder.report.tables import markdown_table

MADE_OF_TARGET = ("layerskip", "quantized")
PIECES = ("steps", "alpha")
_PIECE = 8  # tokens read at once: a quantised draft reads long inputs with the weights it was made from
Row = dict[str, Any]


def read_prompts(path: Path, limit: int | None) -> list[str]:
    """The first turn of each line."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [line["turns"][0] if "turns" in line else line["prompt"] for line in lines][:limit]


def as_prompt(text: str, spec: SpeculativeDecoder) -> Any:
    """A chat message where the tokenizer has a template."""
    chat = getattr(spec.tokenizer, "chat_template", None) is not None
    return [{"role": "user", "content": text}] if chat else text


def step_seconds(models: Sequence[Any], context: Sequence[int], widths: Sequence[int], repeats: int) -> list[float]:
    """Median seconds of a forward of `widths[i]` tokens by model i, all taking turns."""
    sessions = []
    with torch.inference_mode():
        for model, width in zip(models, widths, strict=True):
            session = model.open(1, len(context) + width)
            session.feed(torch.tensor([list(context)]), [0], [len(context) - 1])
            session.commit([len(context)])
            sessions.append(session)
        taken: list[list[float]] = [[] for _ in models]
        for turn in range(repeats + 1):
            for session, width, seconds in zip(sessions, widths, taken, strict=True):
                tokens = torch.tensor([[context[-1]] * width])
                began = time.perf_counter()
                session.feed(tokens, [len(context)])
                if turn > 0:  # the first turn warms up
                    seconds.append(time.perf_counter() - began)
    return [median(seconds) for seconds in taken]


def agreements(model: Any, prompt: Sequence[int], text: Sequence[int]) -> list[bool]:
    """Whether the draft's first choice is the text's next token, at each of its positions, the text being given."""
    session = model.open(1, len(prompt) + len(text))
    tokens = [*prompt, *text]
    at = len(prompt)
    logits = session.feed(torch.tensor([tokens[:at]]), [0], [at - 1])
    session.commit([at])
    said = [int(logits.argmax())]
    while len(said) < len(text):
        piece = tokens[at : at + _PIECE][: len(text) - len(said)]
        said += session.feed(torch.tensor([piece]), [at])[0].argmax(-1).tolist()
        at += len(piece)
        session.commit([at])
    return [one == other for one, other in zip(said, text, strict=True)]


def rounds(agreed: Sequence[bool], k: int) -> tuple[int, int, int, int]:
    """(accepted, tested, emitted, rounds) of greedy decoding of this text, whose first token comes with the prefill.

    Greedy drafts depend on the text alone, and the text is the target's: what a run does can be read off.
    """
    at, accepted, tested, count = 1, 0, 0, 0
    while at < len(agreed):
        drafted = min(k, len(agreed) - at - 1)
        run = next((i for i in range(drafted) if not agreed[at + i]), drafted)
        accepted, tested, count = accepted + run, tested + min(run + 1, drafted), count + 1
        at += run + 1
    return accepted, tested, max(0, len(agreed) - 1), count


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What makes two pieces the same measurement; without a person's folders."""
    kept = {name: value for name, value in vars(options).items() if name not in ("out", "sizes", "only")}
    plain = {name: Path(value).name if isinstance(value, (str, Path)) else value for name, value in kept.items()}
    return plain | {"rank_texts": [path.name for path in options.rank_texts]}


def earlier_rows(options: argparse.Namespace) -> list[Row]:
    """The rows of an earlier piece.

    Raises:
        SystemExit: it was begun with other options.
    """
    if options.out is None or not options.out.exists():
        return []
    record = json.loads(options.out.read_text(encoding="utf-8"))
    if record["options"] != settings_of(options):
        raise SystemExit(f"{options.out} was begun with other options; name another --out, or remove it.")
    rows: list[Row] = record["rows"]
    return rows


class Measurement:
    """One target, one draft, and the prompts; a row a size, the whole vocabulary last."""

    def __init__(self, spec: SpeculativeDecoder, options: argparse.Namespace, rows: Sequence[Row] = ()) -> None:
        prompts = [as_prompt(text, spec) for text in read_prompts(options.prompts, options.limit)]
        self.ranking, self.measured = prompts[: options.rank_on], prompts[options.rank_on :]
        if not self.measured or not (self.ranking or options.rank_texts):
            raise SystemExit(
                f"--rank-on {options.rank_on} leaves nothing to rank on or to measure in {len(prompts)} prompts."
            )
        self.spec, self.options = spec, options
        self.whole = spec.target_model.vocab_size
        self.rows = {row["tokens"]: row for row in rows}
        for size in {min(size, self.whole) for size in options.sizes} | {self.whole}:
            self.rows.setdefault(size, {"tokens": size})
        made = options.draft in MADE_OF_TARGET
        self.draft = spec.drafter_for(options.draft).model if made else spec.draft_model

    def lacking(self, name: str) -> list[Row]:
        return [row for _, row in sorted(self.rows.items()) if name not in row]

    def drafter(self, row: Row, ranked: Sequence[int]) -> ModelDrafter:
        if row["tokens"] == self.whole:
            return ModelDrafter(self.draft)
        recipe = ReducedVocabularyDrafter(ranked[: row["tokens"]], draft=self.draft)
        return recipe.bind(self.spec.target_model, None)

    def answers(self, prompts: Sequence[Any]) -> list[tuple[list[int], list[int]]]:
        """(prompt, the target's greedy continuation), as ids."""
        call = {"max_new_tokens": self.options.new_tokens, "temperature": 0.0, "eos_token_id": None}
        results = [self.spec.generate(prompt, k=0, **call) for prompt in prompts]
        return [(list(result.prompt_token_ids), list(result.token_ids)) for result in results]

    def ranked(self) -> list[int]:
        answers = [text for _, text in self.answers(self.ranking)]
        texts: list[str] = []
        for path in self.options.rank_texts:
            text = path.read_text(encoding="utf-8")
            texts += read_prompts(path, None) if path.suffix == ".jsonl" else text.split("\n\n")
        return most_frequent([*answers, *texts], self.spec.tokenizer, self.whole)

    def steps(self) -> None:
        """Seconds of a draft step, and of the target's verification of k + 1 tokens beside them."""
        rows = self.lacking("draft_step_s")
        if not rows:
            return
        models = [self.drafter(row, range(self.whole)).model for row in rows]  # which tokens does not matter here
        context = list(self.spec.generate(self.measured[0], k=0, max_new_tokens=1).prompt_token_ids)
        widths = [1] * len(models) + [self.options.k + 1]
        *steps_s, verify_s = step_seconds([*models, self.spec.target_model], context, widths, self.options.repeats)
        for row, step_s in zip(rows, steps_s, strict=True):
            row |= {"draft_step_s": step_s, "verify_s": verify_s}

    def alphas(self) -> Iterator[None]:
        """Agreement with the target's own answers; a size at a time."""
        rows = self.lacking("alpha")
        if not rows:
            return
        ranked, texts = self.ranked(), self.answers(self.measured)
        for row in rows:
            model = self.drafter(row, ranked).model
            with torch.inference_mode():
                found = [
                    rounds(agreements(model, prompt, text), self.options.k)
                    for prompt, text in tqdm(texts, desc=f"{row['tokens']:,} tokens", unit="prompt", leave=False)
                ]
            accepted, tested, emitted, count = map(sum, zip(*found, strict=True))
            row["alpha"], row["tokens_per_iteration"] = accepted / max(1, tested), emitted / max(1, count)
            yield

    def promised(self) -> list[Row]:
        """The rows, with tokens a second where all is known."""
        for row in self.rows.values():
            if "verify_s" in row and "alpha" in row:
                round_s = self.options.k * row["draft_step_s"] + row["verify_s"]
                row["promised_tokens_per_second"] = row["tokens_per_iteration"] / round_s
        return [row for _, row in sorted(self.rows.items())]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("--target", required=True, help="name or folder")
    made.add_argument(
        "--draft",
        required=True,
        help=f"name or folder, which may be the target's, or one of {', '.join(MADE_OF_TARGET)}",
    )
    made.add_argument("--prompts", type=Path, required=True, help="JSON lines")
    made.add_argument("--sizes", type=int, nargs="+", default=[1024, 4096, 8192, 16384, 32768])
    made.add_argument(
        "--rank-on", type=int, default=16, help="prompts whose answers rank the tokens (default: %(default)s)"
    )
    made.add_argument("--rank-texts", type=Path, nargs="*", default=[], help=".txt or .jsonl files that rank them, too")
    made.add_argument("--limit", type=int, help="prompts read in all")
    made.add_argument("--k", type=int, default=4)
    made.add_argument("--new-tokens", type=int, default=128)
    made.add_argument("--repeats", type=int, default=30, help="timed draft steps a size (default: %(default)s)")
    made.add_argument("--dtype", default="auto", help="of the models (default: auto)")
    made.add_argument("--only", choices=PIECES, help="measure seconds, or agreement, and not both")
    made.add_argument("--out", type=Path, help="JSON file")
    return made


def shown(row: Row, name: str, form: str, scale: float = 1.0) -> str:
    return format(scale * row[name], form) if name in row else "-"


def save(rows: Sequence[Row], options: argparse.Namespace) -> None:
    """After every size: what is measured is not lost."""
    if options.out is not None:
        record = {"rows": rows, "environment": environment(), "options": settings_of(options)}
        write_json(options.out, record)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    draft = None if options.draft in MADE_OF_TARGET else options.draft
    spec = SpeculativeDecoder(options.target, draft, dtype=options.dtype, temperature=0.0)
    measurement = Measurement(spec, options, earlier_rows(options))
    if options.only != "alpha":
        measurement.steps()
        save(measurement.promised(), options)
    if options.only != "steps":
        for _ in measurement.alphas():
            save(measurement.promised(), options)
    table = [
        [
            f"{row['tokens']:,}",
            shown(row, "draft_step_s", ".2f", 1e3),
            shown(row, "alpha", ".3f"),
            shown(row, "tokens_per_iteration", ".2f"),
            shown(row, "promised_tokens_per_second", ".1f"),
        ]
        for row in measurement.promised()
    ]
    print(markdown_table(["tokens", "draft step, ms", "alpha", "tokens per iteration", "tokens/s promised"], table))


if __name__ == "__main__":
    main()
