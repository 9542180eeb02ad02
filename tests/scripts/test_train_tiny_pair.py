"""The training script of the bundled pair: filter, held-out books, and resuming after an interruption."""

from __future__ import annotations

import csv
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from tiny_pair import corpus, tokens  # noqa: E402
from tiny_pair.optimiser import StackedMuon  # noqa: E402

ANIMALS = ("fox", "hare", "otter", "badger", "owl", "mouse")
PLACES = ("wood", "meadow", "brook", "hill", "barn")


def synthetic_corpus(folder: Path, paragraphs: int = 160) -> Path:
    """Three training books and one held-out book of made-up sentences; returns the list of books."""
    rows = ["title\tauthor\tyear\tgutenberg_number\tfile\tsplit"]
    for number in range(4):
        rng = random.Random(number)
        text = "\n\n".join(
            f"The {rng.choice(ANIMALS)} went to the {rng.choice(PLACES)} and met the {rng.choice(ANIMALS)} there."
            for _ in range(paragraphs)
        )
        (folder / f"book{number}.txt").write_text(text + "\n\n\n" + text[: len(text) // 3], encoding="utf-8")
        rows.append(f"Book {number}\tNobody\t1900\t{number}\tbook{number}.txt\t{'heldout' if number == 3 else 'train'}")
    books = folder / "books.tsv"
    books.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return books


def command(books: Path, out: Path) -> list[str]:
    script = str(SCRIPTS / "train_tiny_pair.py")
    sizes = ["--preset", "smoke", "--target-steps", "60", "--draft-steps", "40", "--threads", "1", "--no-compile"]
    return [sys.executable, script, "--corpus", str(books.parent), "--books", str(books), "--out", str(out), *sizes]


def curve(path: Path) -> list[dict[str, str]]:
    """The rows of a curve without the wall time, which no two runs share."""
    with path.open(encoding="utf-8", newline="") as handle:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(handle)]


def run_and_kill(arguments: list[str], checkpoint: Path) -> None:
    """Start the script and kill it without warning as soon as `checkpoint` appears."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not checkpoint.exists():
            assert process.poll() is None, "the script ended before its first checkpoint"
            assert time.monotonic() < deadline, "no checkpoint after two minutes"
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def last_step(checkpoint: Path) -> int:
    return int(torch.load(checkpoint, weights_only=True)["step"])


@pytest.mark.slow
def test_killed_and_resumed_run_gives_the_same_curves_and_weights(tmp_path: Path) -> None:
    books = synthetic_corpus(tmp_path)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(command(books, whole), check=True, capture_output=True)
    for name, steps in (("target", 60), ("draft", 40)):
        run_and_kill(command(books, broken), broken / name / "checkpoint.pt")
        assert 0 < last_step(broken / name / "checkpoint.pt") < steps
    subprocess.run(command(books, broken), check=True, capture_output=True)
    for name, steps in (("target", 60), ("draft", 40)):
        expected = curve(whole / "report" / f"{name}_curve.csv")
        assert curve(broken / "report" / f"{name}_curve.csv") == expected
        assert int(expected[-1]["step"]) == steps
        weights = f"pair/{name}/model.safetensors"
        assert (whole / weights).read_bytes() == (broken / weights).read_bytes()
    first, last = expected[0], expected[-1]
    assert float(last["loss"]) != float(first["loss"])
    assert {p.name for p in (whole / "report").iterdir()} >= {"curves.png", "figures.json", "samples.txt"}


def test_missing_corpus_is_named(tmp_path: Path) -> None:
    arguments = [sys.executable, str(SCRIPTS / "train_tiny_pair.py"), "--corpus", str(tmp_path / "nowhere")]
    result = subprocess.run([*arguments, "--out", str(tmp_path / "out")], check=False, capture_output=True, text=True)
    assert result.returncode != 0
    assert "FileNotFoundError: corpus: no folder" in result.stderr and "nowhere" in result.stderr


def test_missing_book_is_named_with_its_number(tmp_path: Path) -> None:
    books = synthetic_corpus(tmp_path)
    (tmp_path / "book1.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"book1\.txt.*Project Gutenberg 1"):
        corpus.load_split(tmp_path, "train", corpus.read_books(books))


def test_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"split: 'test'.*'train' or 'heldout'"):
        corpus.load_split(tmp_path, "test", corpus.read_books())


def test_held_out_books_are_never_trained_on(tmp_path: Path) -> None:
    books = corpus.read_books(synthetic_corpus(tmp_path))
    for number in range(4):
        with (tmp_path / f"book{number}.txt").open("a", encoding="utf-8") as handle:
            handle.write(f"\n\n\nThis is story number {number}.")
    train = "".join(corpus.load_split(tmp_path, "train", books).sections)
    heldout = "".join(corpus.load_split(tmp_path, "heldout", books).sections)
    assert "number 3" not in train and all(f"number {n}" in train for n in range(3))
    assert "number 3" in heldout and not any(f"number {n}" in heldout for n in range(3))


def test_committed_list_holds_out_whole_books_of_different_authors() -> None:
    books = corpus.read_books()
    heldout = [b for b in books if b.split == "heldout"]
    assert len(heldout) >= 3 and len({b.author for b in heldout}) == len(heldout)
    assert {b.split for b in books} == {"train", "heldout"}
    assert len({b.gutenberg_number for b in books}) == len({b.file for b in books}) == len(books)
    trained = {b.title for b in books if b.split == "train"}
    assert trained.isdisjoint(b.title for b in heldout)


@pytest.mark.parametrize("word", ["heathens", "Redskins", "the black slave", "Gipsy"])
def test_filter_drops_the_paragraph_and_keeps_its_neighbours(word: str) -> None:
    result = corpus.filter_text(f"Before.\n\nThen came {word} over the hill.\n\nAfter.\n\n\nAnother story.\n")
    assert result.sections == ["Before.\n\nAfter.", "Another story."]
    assert (result.paragraphs, result.dropped) == (4, 1)


@pytest.mark.parametrize(
    "text", ["Fatty Coon was hungry.", "A black cat sat there.", "The jewel shone.", "Red leaves."]
)
def test_filter_keeps_harmless_paragraphs(text: str) -> None:
    assert not corpus.is_demeaning(text)


def test_filter_drops_a_section_left_empty() -> None:
    assert corpus.filter_text("Two cannibals.\n\n\nA story.").sections == ["A story."]


def test_every_chunk_is_read_once_per_epoch_whatever_the_row_length() -> None:
    stream = np.arange(1000, dtype=np.uint16)
    order = tokens.ChunkOrder(stream, 32, seed=5)
    rows = torch.cat([order.batch(step, 1, 32) for step in range(order.count)])
    assert rows.shape == (order.count, 33)
    assert torch.equal(rows[:, 1:], rows[:, :-1] + 1)
    inputs = rows[:, :-1].flatten()
    assert inputs.unique().numel() == inputs.numel() == order.count * 32
    halves = order.batch(3, 2, 16)
    assert torch.equal(halves[:, :-1].reshape(2, 32), order.batch(3, 2, 32)[:, :-1])


def test_chunk_order_refuses_a_short_stream() -> None:
    with pytest.raises(ValueError, match=r"stream: 40 tokens, at least 65"):
        tokens.ChunkOrder(np.zeros(40, dtype=np.uint16), 32, seed=0)


def test_stacked_muon_follows_torch_muon() -> None:
    torch.manual_seed(0)
    shapes = ((32, 32), (64, 32), (32, 64), (32, 32))
    ours = [torch.nn.Parameter(torch.randn(s)) for s in shapes]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    stacked = StackedMuon(ours, lr=0.02, momentum=0.95, weight_decay=0.1)
    reference = torch.optim.Muon(theirs, lr=0.02, momentum=0.95, weight_decay=0.1)
    for _ in range(3):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        stacked.step()
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        # torch orthogonalises in bfloat16, so equality holds to about 1 % of the three updates of 0.02.
        torch.testing.assert_close(a, b, atol=2e-3, rtol=0)
