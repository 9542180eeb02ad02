"""The way of one call: how many files a reader opens, and how many calls lead from one to another, up to the target."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import decoder
from decoder import SpeculativeDecoder

HOME = str(Path(decoder.__file__).parent)


class Reached(Exception):
    """The target's first forward."""


def walk(spec: SpeculativeDecoder) -> list[tuple[str, str]]:
    """(caller, callee) of every call between two files of ours, in order, each pair once; properties are not calls."""
    found: dict[tuple[str, str], None] = {}
    properties = {
        member.fget.__code__
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith("decoder")
        for kind in vars(module).values()
        if isinstance(kind, type)
        for member in vars(kind).values()
        if isinstance(member, property) and hasattr(member.fget, "__code__")
    }

    def reached(**passed: Any) -> None:
        raise Reached

    def file_of(frame: FrameType) -> str:
        name = frame.f_code.co_filename
        module = frame.f_globals.get("__file__") or ""
        return module if name == "<string>" else name  # what dataclasses generate belongs to their module

    def seen(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_back is None:
            return
        here, there = file_of(frame.f_back), file_of(frame)
        if here != there and here.startswith(HOME) and there.startswith(HOME) and frame.f_code not in properties:
            names = (f"{here}:{frame.f_back.f_code.co_qualname}", f"{there}:{frame.f_code.co_qualname}")
            found.setdefault(names)

    spec.target.forward = reached
    sys.setprofile(seen)
    try:
        spec.generate("Once", k=4)
    except Reached:
        pass
    finally:
        sys.setprofile(None)
    return [(a.removeprefix(HOME), b.removeprefix(HOME)) for a, b in found]


def test_a_call_goes_through_few_files() -> None:
    """From `generate` to the first forward of the target; the draft's prefill is on the way."""
    spec = SpeculativeDecoder(temperature=0.8)
    spec.generate("Once", k=4, max_new_tokens=2)
    steps = walk(spec)
    files = {name.split(":")[0] for pair in steps for name in pair}
    assert "/models/hf.py" in files and "/asked/request.py" in files, "the way was followed"
    asked = [pair for pair in steps if "/loop.py:run" not in pair[1]]
    before = next(i for i, (_, callee) in enumerate(steps) if callee.endswith("loop.py:run"))
    assert len(files) <= 14, sorted(files)
    assert before <= 18 and len(asked) <= 32, steps
