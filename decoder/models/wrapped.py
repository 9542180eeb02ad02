"""A loaded model with the features asked for around it, put together here only.

    packed     the model's linear layers once more in another layout (`models.packed`): a model in a model's place
    compile    forwards behind the prefill through `torch.compile` (`models.compiled`): a `CausalModel` in its place
    invariant  every forward of a run in one shape (`models.fixed`): a session in a session's place, opened by the call

Each is loaded when it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoder.models.hf import CausalModel


def wrapped(
    model: Any,
    role: str,
    vocab_size: int | None = None,
    banned: Sequence[int] = (),
    *,
    packed: bool = False,
    compile: bool = False,
) -> CausalModel:
    """The model as a decoder runs it; the model given is not changed. Arguments are those of `CausalModel`.

    Raises:
        ValueError: the model cannot be run, or not be packed.
    """
    if packed:
        from decoder.models.packed import packed_copy

        model = packed_copy(model, role)
    if compile:
        from decoder.models.compiled import CompiledModel

        return CompiledModel(model, role, vocab_size, banned)
    return CausalModel(model, role, vocab_size, banned)
