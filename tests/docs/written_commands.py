"""The commands that documents tell people to type, and the parsers that would get them."""

from __future__ import annotations

import argparse
import ast
import functools
import json
import re
import runpy
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoder.arguments import build_parser

ROOT = Path(__file__).parents[2]
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_INDENTED = re.compile(r"^ {4,}(.*)$", re.MULTILINE)
_ASSIGNED = re.compile(r"\w+=\S*")
_SCRIPT = re.compile(r"(?:scripts|examples)/\w+\.py")


@dataclass(frozen=True)
class Command:
    """What to type, less environment assignments: the program and its words."""

    source: str
    program: str
    words: tuple[str, ...]
    named_only: bool = False  # a code span within a sentence that names a program and no options

    def __str__(self) -> str:
        return f"{self.source}: {shlex.join([self.program, *self.words])}"


def commands_in(text: str, source: str, *, span: bool = False) -> Iterator[Command]:
    """This project's commands in lines of a shell; && and | separate commands."""
    for part in re.split(r"&&|\|\||[|;\n]", text):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:  # prose with an apostrophe
            continue
        while words and _ASSIGNED.fullmatch(words[0]):
            words.pop(0)
        if words[:3] == ["python", "-m", "decoder"]:
            words = ["specdec", *words[3:]]
        if words[:1] == ["python"] and len(words) > 1 and _SCRIPT.fullmatch(words[1]):
            words.pop(0)
        if words and (words[0] == "specdec" or _SCRIPT.fullmatch(words[0])):
            bare = len(words) == 1 or (len(words) == 2 and not words[1].startswith("-"))
            yield Command(source, words[0], tuple(words[1:]), span and bare)


def _text(path: Path) -> tuple[str, str]:
    """What a file says, lines continued by a backslash as one, and its name."""
    return re.sub(r" *\\\n\s*", " ", path.read_text(encoding="utf-8")), str(path.relative_to(ROOT))


def in_markdown(path: Path) -> Iterator[Command]:
    """Those of code blocks, fenced or indented, and of code spans."""
    text, source = _text(path)
    for block in _FENCED.findall(text):
        yield from commands_in(block, source)
    text = _FENCED.sub("", text)
    yield from commands_in("\n".join(_INDENTED.findall(text)), source)
    for found in _SPAN.findall(_INDENTED.sub("", text)):
        yield from commands_in(found.replace("\n", " "), source, span=True)


def in_docstring(path: Path) -> Iterator[Command]:
    """Those of the indented lines of a script's docstring; what follows two spaces there is a remark."""
    text, source = _text(path)
    told = ast.get_docstring(ast.parse(text)) or ""
    yield from commands_in("\n".join(re.split(" {2,}", line)[0] for line in _INDENTED.findall(told)), source)


def in_summary(path: Path) -> Iterator[Command]:
    """Those that are recorded with measurements."""
    for entry in json.loads(path.read_text(encoding="utf-8")).values():
        yield from commands_in(entry.get("command", ""), str(path.relative_to(ROOT)))


@functools.cache
def _script(program: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / program))


def parser_of(program: str) -> argparse.ArgumentParser:
    """The parser that a program uses; an example without one takes no words."""
    if program == "specdec":
        return build_parser()
    make = _script(program).get("parser")
    return argparse.ArgumentParser(program) if make is None else make()


def parse(command: Command) -> argparse.Namespace | None:
    """What the real parser makes of a command; of one that is only named, that it exists.

    Raises:
        SystemExit: the parser refuses it.
    """
    if command.named_only:
        if command.program != "specdec":
            assert (ROOT / command.program).is_file(), f"{command} does not exist"
        elif command.words:
            choices = next(a.choices for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
            assert command.words[0] in choices, f"{command}: no such command"
        return None
    if command.words == ("COMMAND", "--help"):  # any of them
        return None
    return parser_of(command.program).parse_args(list(command.words))
