"""L2: from names to loaded models and tokenizers: hub names, local folders, GGUF files.

Placement is accelerate's (`device_map`, `max_memory`, `offload_folder`). No remote code runs unless asked for.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def check_device(device: Any) -> str | None:
    """A device_map for `from_pretrained`; None means plain CPU.

    Raises:
        ValueError: the device does not exist here.
    """
    if isinstance(device, dict):
        return device  # type: ignore[return-value]  # an explicit accelerate device_map
    if str(device) == "auto":
        return "auto" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else None
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device={device!r} is not a device; use 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps'.") from error
    if wanted.type == "cuda" and (not torch.cuda.is_available() or (wanted.index or 0) >= torch.cuda.device_count()):
        count = torch.cuda.device_count()
        raise ValueError(f"device={device!r} is not available: torch sees {count} CUDA devices; use 'auto' or 'cpu'.")
    if wanted.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"device={device!r} is not available on this machine; use 'auto' or 'cpu'.")
    return None if wanted.type == "cpu" else str(wanted)


def check_dtype(dtype: Any) -> torch.dtype | None:
    """A torch dtype; None for "auto" (the checkpoint's own)."""
    if dtype == "auto" or dtype is None:
        return None
    if isinstance(dtype, torch.dtype) and dtype in (*_DTYPES.values(), torch.float64):
        return dtype
    if isinstance(dtype, str) and dtype.removeprefix("torch.") in _DTYPES:
        return _DTYPES[dtype.removeprefix("torch.")]
    raise ValueError(f"dtype={dtype!r} is not available; use 'auto', {', '.join(map(repr, _DTYPES))} or a torch dtype.")


def check_source(argument: str, name: Any) -> str:
    """A model's name or folder, checked as far as possible without a network.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise TypeError(f"{argument}={name!r} must be a hub name or a folder; for loaded models use from_models().")
    text = os.fspath(name)
    looks_local = text.startswith((".", "/", "~")) or text.count("/") > 1 or "\\" in text
    if looks_local and not Path(text).expanduser().exists():
        raise ValueError(f"{argument}={text!r} does not exist; give an existing folder or a hub name like 'gpt2'.")
    return str(Path(text).expanduser()) if looks_local else text


def _explain(argument: str, name: str, error: Exception) -> ValueError:
    return ValueError(
        f"{argument}={name!r} could not be loaded ({type(error).__name__}: {str(error).splitlines()[0]}); "
        "check the name, the network, or that the folder holds config.json and model.safetensors."
    )


def _source_options(gguf_file: str | None, trust_remote_code: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if gguf_file is not None:
        options["gguf_file"] = gguf_file
    return options


def load_config(argument: str, name: str, *, gguf_file: str | None = None, trust_remote_code: bool = False) -> Any:
    """The configuration alone: cheap, so that a hopeless choice is refused before weights are read."""
    try:
        return AutoConfig.from_pretrained(name, **_source_options(gguf_file, trust_remote_code))
    except Exception as error:
        raise _explain(argument, name, error) from error


def load_tokenizer(argument: str, name: str, *, gguf_file: str | None = None, trust_remote_code: bool = False) -> Any:
    """The tokenizer that belongs to a model."""
    try:
        return AutoTokenizer.from_pretrained(name, **_source_options(gguf_file, trust_remote_code))
    except Exception as error:
        raise _explain(argument, name, error) from error


def load_model(
    argument: str,
    name: str,
    *,
    device: Any = "auto",
    dtype: Any = "auto",
    max_memory: dict[Any, Any] | None = None,
    offload_folder: str | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """A causal model in eval mode, placed by accelerate.

    Raises:
        ValueError: an encoder-decoder model, a missing or corrupt checkpoint, a device or dtype that is not available.
    """
    placement = check_device(device)
    wanted = check_dtype(dtype)
    config = load_config(argument, name, gguf_file=gguf_file, trust_remote_code=trust_remote_code)
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{argument}={name!r} is an encoder-decoder model; use a decoder-only one.")
    if max_memory is not None or offload_folder is not None:
        placement = placement or "auto"
    options = _source_options(gguf_file, trust_remote_code)
    for key, value in (("device_map", placement), ("max_memory", max_memory), ("offload_folder", offload_folder)):
        if value is not None:
            options[key] = value
    try:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=wanted or "auto", **options)
    except Exception as error:
        raise _explain(argument, name, error) from error
    if wanted is None and model.device.type == "cpu" and model.dtype == torch.float16:
        model = model.float()  # half precision has no fast CPU kernels
    return model.eval()
