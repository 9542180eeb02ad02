"""The model that a run forwards: the caller's own, with the features asked for wrapped around it in one place."""

from __future__ import annotations

from typing import Any

from decoder.models.hf import CausalModel


def wrapped(
    model: Any, role: str, vocabulary: tuple[int, list[int]], *, packed: bool = False, compile: bool = False
) -> CausalModel:
    """The model in the form that runs forward."""
    if packed:
        from decoder.models.packed import packed_copy

        model = packed_copy(model, role)
    if compile:
        from decoder.models.compiled import CompiledModel

        return CompiledModel(model, role, *vocabulary)
    return CausalModel(model, role, *vocabulary)


def check_unchanged(model: CausalModel) -> None:
    """Whether a packed copy still stands for the caller's model."""
    from decoder.models.packed import check_unchanged

    check_unchanged(model.model)
