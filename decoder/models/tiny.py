"""Where the bundled model pair lies: a small storyteller and its one-layer draft, trained by this project.

`scripts/train_tiny_pair.py` made it; the model card is `decoder/models/tiny/README.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

_NEEDED = ("config.json", "model.safetensors", "tokenizer.json")


@dataclass(frozen=True)
class TinyPaths:
    """Folders in the plain Hugging Face format; `tokenizer` serves both models."""

    target: Path
    draft: Path
    tokenizer: Path


def tiny_paths() -> TinyPaths:
    """The folders of the bundled pair, from the package's own data; no network is used.

    Raises:
        FileNotFoundError: a file of the pair is missing, as in an installation without package data.
    """
    root = Path(str(files("decoder.models"))) / "tiny"
    paths = TinyPaths(target=root / "target", draft=root / "draft", tokenizer=root / "target")
    for folder in (paths.target, paths.draft):
        missing = [name for name in _NEEDED if not (folder / name).is_file()]
        if missing:
            raise FileNotFoundError(
                f"The bundled pair 'tiny' is incomplete: {folder.name} has no {', '.join(missing)}. Reinstall the "
                "package with its data, train the pair with scripts/train_tiny_pair.py, or name other models."
            )
    return paths
