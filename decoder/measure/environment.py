"""Where a figure was measured: versions, processor, threads, dtype, load, and the command that repeats it."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("torch", "transformers", "accelerate", "numpy")


def processor_name() -> str:
    """The processor as its maker calls it, as far as the system tells."""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def instruction_sets() -> list[str]:
    """Those that decide which matrix kernels run."""
    listing = Path("/proc/cpuinfo")
    known = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16", "i8mm", "sve")
    if not listing.is_file():
        return []
    flags: set[str] = set()
    for line in listing.read_text().splitlines():
        if line.startswith(("flags", "Features")):
            flags |= set(line.partition(":")[2].split())
    return [name for name in known if name in flags]


def _short(argument: str) -> str:
    """An absolute path without the folders above it, which mean nothing elsewhere."""
    flag, equals, value = argument.rpartition("=")
    return f"{flag}{equals}{Path(value).name}" if os.path.isabs(value) else argument


def command_line(argv: list[str] | None = None) -> str:
    """The command of this process, as another person would type it."""
    argv = sys.argv if argv is None else argv
    program = argv[0] if argv else ""
    name = os.path.basename(program)
    if name == "__main__.py":
        return shlex.join(["python", "-m", os.path.basename(os.path.dirname(program)), *map(_short, argv[1:])])
    if name and not name.endswith(".py"):  # a console script
        return shlex.join([name, *map(_short, argv[1:])])
    relative = os.path.relpath(program)
    program = os.path.basename(program) if relative.startswith("..") else relative
    return shlex.join(["python", program, *map(_short, argv[1:])])


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _model(model: Any) -> dict[str, Any]:
    parameters = list(model.parameters())
    return {
        "class": type(model).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "bytes": sum(p.numel() * p.element_size() for p in parameters),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "attention": getattr(model.config, "_attn_implementation", None),
    }


def environment(target: Any = None, draft: Any = None, argv: list[str] | None = None) -> dict[str, Any]:
    """Everything a reader needs to judge or repeat a measurement, in plain types."""
    record: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command_line(argv),
        "versions": _versions(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor_name(),
        "instruction_sets": instruction_sets(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }
    for role, model in (("target", target), ("draft", draft)):
        if model is not None:
            record[role] = _model(model)
    return record
