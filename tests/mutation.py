"""Faults put into real code: one exact string of a module's source replaced, for the length of a block.

The changed functions' code objects take the place of the real ones, wherever they were imported, and are put back
afterwards.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def functions_of(namespace: dict, module: str) -> Iterator[tuple[str, types.FunctionType]]:
    """Every function and method a module defines, by qualified name."""
    for value in list(namespace.values()):
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, types.FunctionType):
            yield value.__qualname__, value
        elif isinstance(value, type):
            for member in vars(value).values():
                inner = (
                    getattr(member, "fget", None)
                    or getattr(member, "func", None)
                    or getattr(member, "__func__", member)
                )
                if isinstance(inner, types.FunctionType) and inner.__module__ == module:
                    yield inner.__qualname__, inner


@contextmanager
def mutated(module_name: str, *changes: tuple[str, str]) -> Iterator[None]:
    """The module with each `old` replaced by its `new`, for the length of the block.

    Raises:
        LookupError: an `old` that does not stand exactly once in the source, or a change that reaches no function.
    """
    module = importlib.import_module(module_name)
    source = Path(module.__file__).read_text()
    for old, new in changes:
        if source.count(old) != 1:
            raise LookupError(f"{old!r} stands {source.count(old)} times in {module_name}; write the mutant anew")
        source = source.replace(old, new)
    faulty: dict = {"__name__": module_name, "__file__": module.__file__}
    exec(compile(source, module.__file__, "exec"), faulty)  # the project's own source
    codes = {
        name: function.__code__
        for name, function in functions_of(faulty, module_name)
        if function.__code__.co_filename == module.__file__
    }
    kept = []
    try:
        for name, function in functions_of(vars(module), module_name):
            if name in codes and function.__code__ != codes[name]:
                kept.append((function, function.__code__))
                function.__code__ = codes[name]
        if not kept:
            raise LookupError(f"the change to {module_name} reaches no function")
        yield
    finally:
        for function, code in kept:
            function.__code__ = code
