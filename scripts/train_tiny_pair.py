"""Train the bundled model pair from a folder of books: tokenizer, target, distilled draft.

    python scripts/train_tiny_pair.py --corpus ../shared/data/corpus --out runs/tiny
    python scripts/train_tiny_pair.py --corpus FOLDER --out runs/large --preset large      # with a GPU

Everything is a function of --seed and the corpus. Interrupted, it resumes where it was when called again; a finished
stage is not repeated. OUT/pair/target and OUT/pair/draft are the result; OUT/report holds figures, curves, samples.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tiny_pair import agreement, continuation, corpus, evaluation, export, llama, plots, report, tokens
from tiny_pair.checkpoint import write_curve
from tiny_pair.distill import Texts, train_draft
from tiny_pair.loop import Row
from tiny_pair.presets import PRESETS, Preset
from tiny_pair.target import train_target


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description="Train the bundled model pair.")
    made.add_argument("--corpus", type=Path, required=True, help="folder with one text file per book")
    made.add_argument("--out", type=Path, required=True, help="folder for checkpoints, curves and the finished pair")
    made.add_argument("--books", type=Path, default=corpus.BOOKS_TSV, help="list of books and their split")
    made.add_argument("--preset", choices=sorted(PRESETS), default="tiny", help="'large' needs a GPU")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--target-steps", type=int, help="optimizer steps of the target (default: the preset's)")
    made.add_argument("--draft-steps", type=int, help="optimizer steps of the draft (default: the preset's)")
    made.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads")
    made.add_argument("--no-compile", action="store_true", help="train without torch.compile (slower, starts at once)")
    return made


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; see --help."""
    return parser().parse_args(argv)


def chosen_preset(arguments: argparse.Namespace) -> Preset:
    """The preset, with the step counts given on the command line."""
    preset = PRESETS[arguments.preset]
    for name in ("target", "draft"):
        steps = getattr(arguments, f"{name}_steps")
        if steps is None:
            continue
        if steps < 1:
            raise ValueError(f"--{name}-steps: {steps} is not at least 1; leave it out for the preset's own number")
        stage = replace(getattr(preset, f"{name}_stage"), steps=steps)
        preset = replace(preset, **{f"{name}_stage": stage})
    return preset


def prepare_tokens(arguments: argparse.Namespace, preset: Preset) -> PreTrainedTokenizerFast:
    """Make OUT/tokenizer, OUT/train.npy and OUT/heldout.npy unless they are there; returns the tokenizer."""
    folder = arguments.out / "tokenizer"
    if (arguments.out / "heldout.npy").exists():
        return AutoTokenizer.from_pretrained(folder)
    books = corpus.read_books(arguments.books)
    train = corpus.load_split(arguments.corpus, "train", books)
    heldout = corpus.load_split(arguments.corpus, "heldout", books)
    for name, text in (("train", train), ("heldout", heldout)):
        print(f"{name}: {text.paragraphs} paragraphs, {text.dropped} dropped by the filter", flush=True)
    tokenizer = tokens.train_tokenizer(train.sections, preset.vocab_size, preset.context)
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    tokens.save_stream(arguments.out / "train.npy", tokens.encode_stream(tokenizer, train.sections))
    tokens.save_stream(arguments.out / "heldout.npy", tokens.encode_stream(tokenizer, heldout.sections))
    return tokenizer


class Run:
    """One run: the arguments, the token streams and both models, with one method per stage."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.preset = arguments, chosen_preset(arguments)
        self.out, self.seed = arguments.out, arguments.seed
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = prepare_tokens(arguments, self.preset)
        self.train = tokens.load_stream(self.out / "train.npy")
        self.heldout = tokens.load_stream(self.out / "heldout.npy")
        shapes = (self.preset.target, self.seed), (self.preset.draft, self.seed + 1)
        self.target, self.draft = (
            llama.build_llama(shape, len(self.tokenizer), self.preset.context, seed).to(self.device)
            for shape, seed in shapes
        )
        for name, model in (("target", self.target), ("draft", self.draft)):
            print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters")
        print(f"text: {len(self.train):,} tokens to train on, {len(self.heldout):,} held out", flush=True)

    @property
    def _numerics(self) -> dict[str, bool]:
        return {"bfloat16": llama.wants_bfloat16(self.device), "compiled": not self.arguments.no_compile}

    def fit_target(self) -> list[Row]:
        """Train the target; afterwards its weights are those that will be exported."""
        sizes = evaluation.token_bytes(self.tokenizer)
        windows = evaluation.held_out_windows(self.heldout, sizes, self.preset.context, self.preset.evaluation_windows)
        stage, folder = self.preset.target_stage, self.out / "target"
        rows = train_target(self.target, self.train, windows, stage, folder, seed=self.seed, **self._numerics)
        export.round_to_bfloat16(self.target.eval().requires_grad_(False))
        return rows

    def generated(self) -> np.ndarray:
        """The text that the target wrote for the draft, made once."""
        path = self.out / "generated.npy"
        if not path.exists():
            preset = self.preset
            made = continuation.write_generated(
                self.target,
                self.train,
                preset.generated,
                preset.context,
                self.seed,
                batch=512 if self.device.type == "cuda" else 64,
            )
            tokens.save_stream(path, made)
        return tokens.load_stream(path)

    def fit_draft(self) -> list[Row]:
        """Distil the draft from the finished target."""
        context = self.preset.context
        new_tokens = min(128, context // 2)
        made = agreement.held_out_continuations(self.target, self.heldout, 32, context // 16, new_tokens, self.seed)
        texts = Texts(self.train, self.generated(), made)
        llama.copy_embeddings(self.target, self.draft)
        stage, folder = self.preset.draft_stage, self.out / "draft"
        rows = train_draft(
            self.target, self.draft, texts, stage, folder, context=context, seed=self.seed, **self._numerics
        )
        export.round_to_bfloat16(self.draft.eval())
        return rows

    def finish(self, target_rows: list[Row], draft_rows: list[Row]) -> None:
        """Write OUT/pair and OUT/report."""
        pair, folder = self.out / "pair", self.out / "report"
        folder.mkdir(exist_ok=True)
        size = sum(export.export_model(getattr(self, n), self.tokenizer, pair / n) for n in ("target", "draft"))
        write_curve(folder / "target_curve.csv", target_rows)
        write_curve(folder / "draft_curve.csv", draft_rows)
        plots.plot_curves(folder / "curves.png", target_rows, draft_rows)
        figures = {"bytes": size, "target_seconds": target_rows[-1]["seconds"]}
        figures |= {"draft_seconds": draft_rows[-1]["seconds"]} | self._measured(pair)
        (folder / "figures.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        samples = report.unedited_samples(report.load_float32(pair / "target"), self.tokenizer)
        (folder / "samples.txt").write_text("\n\n-----\n\n".join(samples) + "\n", encoding="utf-8")
        print(json.dumps(figures, indent=2))

    def _measured(self, pair: Path) -> dict[str, object]:
        context, books = self.preset.context, corpus.read_books(self.arguments.books)
        target, draft = report.load_float32(pair / "target"), report.load_float32(pair / "draft")
        by_book = report.bits_per_byte_by_book(target, self.tokenizer, self.arguments.corpus, books, context)
        rates = report.agreement_figures(target, draft, self.heldout, context, 4 * 32, self.seed + 1000)
        times = report.step_seconds({"target": target, "draft": draft})
        return {"bits_per_byte": by_book, "agreement": rates, "step_seconds": times} | {
            "cost_ratio": times["draft"] / times["target"]
        }


def main(argv: list[str] | None = None) -> None:
    """Run every stage that is not finished yet."""
    arguments = parse_arguments(argv)
    torch.set_num_threads(arguments.threads)
    run = Run(arguments)
    target_rows = run.fit_target()
    run.finish(target_rows, run.fit_draft())


if __name__ == "__main__":
    main()
