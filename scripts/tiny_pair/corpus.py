"""The text: which books are trained on, which are held out, and which paragraphs are left out."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

BOOKS_TSV = Path(__file__).with_name("books.tsv")

# Words that demean a people or a disability, or that in books of this age nearly always come with a demeaning
# portrait. One match drops the whole paragraph. "coon" is absent on purpose: here it is always the raccoon.
_DROPPED_WORDS = (
    r"n[i]gg\w+",
    r"negro(es)?|negress\w*",
    r"dark(y|ies)",
    r"picc?aninn\w+",
    r"blackamoors?|black[- ]?moors?",
    r"savages",
    r"squaws?|redskins?|red[- ]?(skinned|men|man|indians?)|injuns?|half[- ]?(breed|caste)s?",
    r"chinam[ae]n|japs?",
    r"blacks|black (man|men|wom[ae]n|slaves?)",
    r"hottentots?|mulatto\w*|golliwo\w+|dagos?",
    r"heathens?|heathenish|cannibals?|barbarians?",
    r"gyps(y|ies)|gips(y|ies)",
    r"jew|jews|jewess|jewish",
    r"half[- ]?wit(s|ted)?|imbeciles?|cripples?",
)
_DROPPED = re.compile(r"\b(?:" + "|".join(_DROPPED_WORDS) + r")\b", re.IGNORECASE)

SECTION_BREAK = "\n\n\n"
PARAGRAPH_BREAK = "\n\n"


@dataclass(frozen=True)
class Book:
    """One row of the book list: `gutenberg_number` is the Project Gutenberg number, `split` is train or heldout."""

    title: str
    author: str
    year: int
    gutenberg_number: int
    file: str
    split: str


@dataclass(frozen=True)
class FilteredText:
    """Sections (stories or chapters) of one or more books, with the counts of paragraphs seen and dropped."""

    sections: list[str]
    paragraphs: int
    dropped: int


def read_books(path: Path = BOOKS_TSV) -> list[Book]:
    """Read a book list (tab-separated, with the header title, author, year, gutenberg_number, file, split)."""
    with path.open(encoding="utf-8", newline="") as handle:
        rows = csv.DictReader(handle, delimiter="\t")
        return [
            Book(r["title"], r["author"], int(r["year"]), int(r["gutenberg_number"]), r["file"], r["split"])
            for r in rows
        ]


def is_demeaning(paragraph: str) -> bool:
    """Whether the paragraph holds one of the dropped words (whole words, any case)."""
    return _DROPPED.search(paragraph) is not None


def filter_text(text: str) -> FilteredText:
    """Split one book into sections and drop its demeaning paragraphs; sections left empty vanish."""
    sections: list[str] = []
    seen = dropped = 0
    for section in text.split(SECTION_BREAK):
        paragraphs = [p.strip("\n") for p in section.split(PARAGRAPH_BREAK) if p.strip()]
        kept = [p for p in paragraphs if not is_demeaning(p)]
        seen += len(paragraphs)
        dropped += len(paragraphs) - len(kept)
        if kept:
            sections.append(PARAGRAPH_BREAK.join(kept))
    return FilteredText(sections, seen, dropped)


def load_split(corpus: Path, split: str, books: list[Book]) -> FilteredText:
    """Read and filter every book of one split, in list order.

    Raises FileNotFoundError when the corpus folder or one of its books is missing, ValueError when the split is empty.
    """
    chosen = [b for b in books if b.split == split]
    if not chosen:
        raise ValueError(f"split: {split!r} names no book of the list; it must be 'train' or 'heldout'")
    if not corpus.is_dir():
        raise FileNotFoundError(
            f"corpus: no folder {str(corpus)!r}. It must hold one plain-text file per book of {BOOKS_TSV.name} "
            "(the list gives the Project Gutenberg numbers to fetch)"
        )
    parts = [filter_text(_read_book(corpus, book)) for book in chosen]
    sections = [s for part in parts for s in part.sections]
    return FilteredText(sections, sum(p.paragraphs for p in parts), sum(p.dropped for p in parts))


def _read_book(corpus: Path, book: Book) -> str:
    path = corpus / book.file
    if not path.is_file():
        raise FileNotFoundError(
            f"corpus: {book.file!r} ({book.title}, Project Gutenberg {book.gutenberg_number}) is missing in "
            f"{str(corpus)!r}; fetch it, or give another list with --books"
        )
    return path.read_text(encoding="utf-8")
