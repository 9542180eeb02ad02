"""Every command that a document, a script's help or a recorded measurement tells to type is one that can be typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from written_commands import ROOT, Command, commands_in, in_docstring, in_markdown, parse

DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
SCRIPTS = [*(ROOT / "scripts").glob("*.py"), *(ROOT / "examples").glob("*.py")]


def test_what_is_written_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("written_commands.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "Type `specdec bench --k 2,4`, or see `specdec sweep` and `scripts/experiment.py`.\n\n"
        "    N=2 python scripts/experiment.py 02 \\\n        --out x   # a comment\n\n"
        "```bash\npip install x && python examples/compare.py\npython -m decoder advise --drafters ngram\n```\n"
    )
    assert {str(found).removeprefix("page.md: ") for found in in_markdown(page)} == {
        "specdec bench --k 2,4",
        "specdec sweep",
        "scripts/experiment.py",
        "scripts/experiment.py 02 --out x",
        "examples/compare.py",
        "specdec advise --drafters ngram",
    }


@pytest.mark.parametrize(
    "wrong",
    [
        "specdec bench --k 2 4 auto",
        "specdec bench --methods magic",
        "python -m decoder benchmark",
        "python scripts/experiment.py 99",
        "python examples/compare.py --k 4",
    ],
)
def test_what_cannot_be_typed_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = commands_in(wrong, "here")
    with pytest.raises(SystemExit):
        parse(command)


def test_what_does_not_exist_may_not_be_named() -> None:
    for name in ("scripts/no_such.py", "specdec dance"):
        (command,) = commands_in(name, "here", span=True)
        with pytest.raises(AssertionError):
            parse(command)


@pytest.mark.parametrize("command", sorted({c for path in DOCUMENTS for c in in_markdown(path)}, key=str), ids=str)
def test_commands_of_the_documents(command: Command) -> None:
    parse(command)


@pytest.mark.parametrize("command", sorted({c for path in SCRIPTS for c in in_docstring(path)}, key=str), ids=str)
def test_commands_of_the_scripts_own_help(command: Command) -> None:
    parse(command)
