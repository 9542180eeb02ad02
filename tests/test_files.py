"""Reports are written whole or not at all: a disk that is full leaves the old file and a clear error."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from decoder import cli
from decoder.drafters.memory import SuffixMemory
from decoder.files import beside, whole_file, write_json, write_text
from decoder.report.page import write_html

resource = pytest.importorskip("resource")  # how a test makes the system refuse to write
PACKAGE = Path(cli.__file__).parent


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes: the system's own refusal, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_device_is_named() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(OSError, match=r"/dev/full could not be written \(No space left.*free some space") as caught:
        write_text(full, "text")
    assert caught.value.errno == errno.ENOSPC


def save_html(folder: Path) -> Path:
    (folder / "run.json").write_text(json.dumps({"title": "a run", "note": "x" * 4000}))
    return write_html(folder / "run.json")


def save_memory(folder: Path) -> Path:
    memory = SuffixMemory(max_tokens=20_000)
    memory.add([[n * n % 9973 for n in range(5000)]])
    memory.save(folder / "memory.npz")
    return folder / "memory.npz"


def save_figure(folder: Path) -> Path:
    from decoder.report.figures import new_figure, save

    return save(new_figure(3, 2)[0], folder / "figure.png")


@pytest.mark.parametrize("save", [save_html, save_memory, save_figure], ids=lambda save: save.__name__)
def test_what_stood_there_stays_where_the_new_file_does_not_fit(tmp_path: Path, save) -> None:
    path = save(tmp_path)
    whole, listed = path.read_bytes(), sorted(tmp_path.iterdir())
    assert len(whole) > 1200
    if save is save_html:
        (tmp_path / "run.json").write_text("{}")  # so that the new file would differ
    with room_for(1000), pytest.raises(OSError, match=rf"{path.name} could not be written .*free some space"):
        save_again = save if save is not save_html else lambda folder: write_html(folder / "run.json")
        save_again(tmp_path)
    assert path.read_bytes() == whole
    assert sorted(tmp_path.iterdir()) == listed, "half a file was left"


def test_the_command_line_says_it_in_one_line(tmp_path: Path, capsys) -> None:
    page = save_html(tmp_path)
    before = page.read_bytes()
    with room_for(1000):
        assert cli.main(["report", str(tmp_path / "run.json")]) == 2
    message = capsys.readouterr().err
    assert "run.html could not be written (File too large); free some space" in message
    assert message.count("\n") == 1
    assert page.read_bytes() == before


def test_an_interrupt_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), whole_file(path) as part:
        part.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]
    link = tmp_path / "link.txt"
    link.symlink_to(path)
    write_text(link, "new")
    assert link.is_symlink() and path.read_text() == "new"


def test_every_report_is_written_this_way() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.name != "files.py":
            found = re.findall(r".*(?:\.write_text\(|open\([^)]*[\"']wb?[\"']).*", path.read_text())
            assert all("part.open" in line for line in found), f"{path.name}: {found}; use decoder.files"


@pytest.mark.parametrize("given", ["alpha-0.71", "alpha-0.71.json", "alpha-0.71.md", "alpha-0.71.html"])
def test_a_name_with_dots_keeps_them(tmp_path: Path, given: str) -> None:
    assert beside(tmp_path / given, ".json") == tmp_path / "alpha-0.71.json"
    assert beside(str(tmp_path / given), ".md") == tmp_path / "alpha-0.71.md"


def test_json_keeps_its_values_and_puts_numbers_on_one_line(tmp_path: Path) -> None:
    value = {
        "ids": [3, 1, -4],
        "rates": [0.5, 1e-7],
        "text": "[\n 1 ]",
        "none": [],
        "mixed": [1, "a"],
        "deep": [[1, 2], {"x": [7]}],
    }
    write_json(tmp_path / "a.json", value)
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == value
    assert ' "ids": [3, 1, -4],\n' in text and "[0.5, 1e-07]" in text and '"x": [7]' in text
    assert '\n  "a"\n' in text and text.endswith("}\n")
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "b.json", [float("nan")])
    assert not (tmp_path / "b.json").exists()
