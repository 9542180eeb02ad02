"""Heads from a folder, whatever its layout, and the packaged head of a target."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from decoder.heads.config import CONFIG_FILE, TargetShape, shape_of
from decoder.heads.eagle import FeatureHead
from decoder.heads.fingerprint import SAME, likeness, sketch
from decoder.heads.medusa import MedusaHeads, is_medusa, load_medusa
from decoder.heads.published import CONFIG, load_published
from decoder.heads.store import load_own

Head = FeatureHead | MedusaHeads


def head_for(target: Any, asked: str | Path | Head | None) -> Head:
    """The head, checked against a transformers model and tied to it, on its device and in its dtype.

    asked: a folder or a head; None takes the packaged head whose sketch is the target's.

    Raises:
        ValueError: a head of another target, or none for this one.
    """
    shape = shape_of(target)
    head: Head
    if asked is None:
        folder = packaged(target)
        head, where = load_own(folder), folder.name
    elif isinstance(asked, (FeatureHead, MedusaHeads)):
        head, where = asked, "the given head"
    else:
        head, where = load_head(Path(asked), shape), str(asked)
    if isinstance(head, FeatureHead):
        _check(head, target, shape, where)
    weight = target.get_output_embeddings().weight
    head = head.to(weight.device, weight.dtype if weight.dtype.is_floating_point else torch.float32)
    for parameter in head.parameters():
        parameter.requires_grad_(False)
    return head.borrow(target).eval()


def _check(head: FeatureHead, target: Any, shape: TargetShape, where: str) -> None:
    head.config.target.check(shape, where)
    found = likeness(head.target_sketch.cpu().float(), sketch(target))
    if found < SAME:
        raise ValueError(
            f"head={where!r} was made for a model of this shape with other weights (likeness {found:.2f}, a quantised "
            "copy has above 0.98); use the head of this very model, or make one with `specdec train-head`."
        )


def load_head(folder: Path, target: TargetShape) -> Head:
    """A head in this project's layout or a published one, in float32, not yet tied to a target of this shape.

    Raises:
        ValueError: a folder that holds no head.
    """
    if (folder / CONFIG_FILE).is_file():
        return load_own(folder)
    if (folder / CONFIG).is_file():
        return load_medusa(folder, target) if is_medusa(folder) else load_published(folder, target)
    raise ValueError(f"head={str(folder)!r} holds no draft head: there is neither {CONFIG_FILE} nor {CONFIG}.")


def packaged(target: Any) -> Path:
    """The folder of the packaged head that was made for this model.

    Raises:
        ValueError: there is none.
    """
    shape, own = shape_of(target), sketch(target)
    for folder in packaged_folders():
        head = _known(folder)
        if head.config.target == shape and own.numel() and likeness(head.target_sketch, own) >= SAME:
            return folder
    raise ValueError(
        f"no packaged head was made for this {type(target).__name__} ({shape.layers} layers of {shape.hidden_size}); "
        "give head=FOLDER, make one with `specdec train-head`, or use another drafter."
    )


def packaged_folders() -> list[Path]:
    root = Path(str(files("decoder.heads"))) / "trained"
    return sorted(path.parent for path in root.glob(f"*/{CONFIG_FILE}"))


@cache
def _known(folder: Path) -> FeatureHead:
    return load_own(folder)
