"""The transformers model within what a person hands over: adapters of PEFT and compiled modules are opened.

Both wrappers take any arguments and hand them on, so nothing can be asked of them about caches or positions. What they
hold is the model whose forward does the work, the layers of an adapter included, as in `generate` of either.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from decoder.models.hf import check_no_dropout, input_device

_TOKENS = (0, 1, 2, 1, 0)  # what the wrapper and the model within are compared on


def inner_model(model: Any, role: str, *, compile: bool = False) -> Any:
    """The model that is run for `model`; most models stand for themselves.

    role: "target" or "draft", used in messages.   compile: whether this decoder compiles its forwards.

    Raises:
        ValueError: an adapter that does more than the layers it puts into the model.
    """
    if isinstance(model, torch._dynamo.eval_frame.OptimizedModule):
        if not compile:
            warnings.warn(
                f"the {role} was compiled by torch.compile(model), whose graphs would be made anew for every length; "
                "it runs uncompiled here, as in generate(). compile=True compiles it in static shapes.",
                stacklevel=2,
            )
        return inner_model(model._orig_mod, role, compile=compile)
    return _without_adapter(model, role) if _is_peft(model) else model


def _is_peft(model: Any) -> bool:
    return type(model).__module__.partition(".")[0] == "peft"


def _without_adapter(model: Any, role: str) -> Any:
    """The model in whose layers an adapter sits, if the adapter sits nowhere else."""
    inner = model
    while _is_peft(inner):  # PeftModel.base_model is a tuner, whose `model` is the model; prompts have no tuner
        inner = inner._modules.get("base_model", inner._modules.get("model"))
    check_no_dropout(inner, role)
    configs = getattr(model, "peft_config", {}).values()
    kinds = ", ".join(sorted({getattr(each.peft_type, "value", str(each.peft_type)) for each in configs}))
    by_tokens = any(getattr(each, "alora_invocation_tokens", None) for each in configs)
    if by_tokens or not _same_logits(model, inner):
        raise ValueError(
            f"the {role} {type(model).__name__} ({kinds}) does more than the layers it puts into the model, and that "
            "would be lost; use merge_and_unload() if it has it, an adapter within the layers (such as LoRA), or "
            "transformers' own generate()."
        )
    return inner


def _same_logits(model: Any, inner: Any) -> bool:
    from decoder.models.probe import allowed_error, relative_error

    ids = torch.tensor([_TOKENS], device=input_device(inner))
    try:
        with torch.inference_mode():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
            own = inner(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError):
        return False
    return logits.shape == own.shape and relative_error(logits, own) <= allowed_error(inner.dtype)
