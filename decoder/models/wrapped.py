"""The model that a run forwards: the caller's own, with the features asked for wrapped around it in one place.

    packed     its linear layers once more in another layout (`models.packed`): a model in the model's place
    compile    forwards behind the prefill through `torch.compile` (`models.compiled`): a `CausalModel` in its place
    invariant  every forward of one run in one shape (`models.fixed`): its runs in the runs' place, per call

Each is loaded when it is asked for.
"""

from __future__ import annotations

from typing import Any

from decoder.models.hf import CausalModel


def wrapped(
    model: Any, role: str, vocabulary: tuple[int, list[int]], *, packed: bool = False, compile: bool = False
) -> CausalModel:
    """The model in the form that runs forward; the model given is not changed.

    vocabulary: (V, ids that the tokenizer lacks), as `CausalModel` takes them.

    Raises:
        ValueError: the model cannot be run here, or not be packed.
    """
    if not (packed or compile):
        return CausalModel(model, role, *vocabulary)
    from decoder.models.changes import Origin

    inner, kind = model, CausalModel
    if packed:
        from decoder.models.packed import packed_copy

        inner = packed_copy(model, role)
    if compile:
        from decoder.models.compiled import CompiledModel

        kind = CompiledModel
    found = kind(inner, role, *vocabulary)
    found.origin = Origin(model, role, inner if packed else None)
    return found


def fixed_width(model: CausalModel) -> CausalModel:
    """The model whose runs have one shape in every forward behind the prefill."""
    from decoder.models.fixed import FixedWidthModel

    fixed: Any = FixedWidthModel(model)  # stands for what it wraps
    return fixed  # type: ignore[no-any-return]
