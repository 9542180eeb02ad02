"""From names to loaded models and tokenizers: hub names, local folders, GGUF files.

Placement is accelerate's (`device_map`, `max_memory`, `offload_folder`). No remote code runs unless asked for.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from decoder.text import check_same_tokenizer

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


def is_name(value: Any) -> bool:
    """A hub name or a path, as opposed to a loaded model."""
    return isinstance(value, (str, os.PathLike))


def check_loaded(argument: str, model: Any) -> None:
    """A transformers model, not a name or something else.

    Raises:
        TypeError: naming the argument.
    """
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise TypeError(
            f"{argument}={model!r:.80} must be a loaded transformers model; for names use "
            "SpeculativeDecoder(target_model_name, draft_model_name)."
        )


def resolve_names(target: Any, draft: Any) -> tuple[str, str | None, str]:
    """(target, draft, tokenizer) sources; "tiny" is the bundled pair. A loaded draft has no source."""
    if draft is not None and not is_name(draft):
        check_loaded("draft_model_name", draft)
    if target == "tiny":
        from decoder.models.tiny import tiny_paths

        paths = tiny_paths()
        own = paths.draft if draft is None else draft
        return str(paths.target), str(own) if is_name(own) else None, str(paths.tokenizer)
    name = check_source("target_model_name", target)
    return name, check_source("draft_model_name", draft) if is_name(draft) else None, name


def tiny_dtype(dtype: Any, device: Any) -> Any:
    """The bundled pair's "auto": float32 on a CPU, where bfloat16 kernels are slower at this width; else as stored."""
    return "float32" if dtype == "auto" and check_device(device) is None else dtype


def check_source(argument: str, name: Any) -> str:
    """A model's name or folder, checked as far as possible without a network.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise TypeError(f"{argument}={name!r} must be a hub name, a folder or a loaded model.")
    text = os.fspath(name)
    looks_local = text.startswith((".", "/", "~")) or text.count("/") > 1 or "\\" in text
    if looks_local and not Path(text).expanduser().exists():
        raise ValueError(f"{argument}={text!r} does not exist; give an existing folder or a hub name like 'gpt2'.")
    return str(Path(text).expanduser()) if looks_local else text


def _explain(argument: str, name: str, error: Exception) -> ValueError:
    return ValueError(
        f"{argument}={name!r} could not be loaded ({type(error).__name__}: {str(error).splitlines()[0]}); "
        "check the name, the network, or that the folder holds config.json and model.safetensors (pickled weights are "
        "not read: load them with transformers and use from_models(), or save them again with save_pretrained())."
    )


def _source_options(gguf_file: str | None, trust_remote_code: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if gguf_file is not None:
        options["gguf_file"] = gguf_file
    return options


def _check_complete(argument: str, name: str, report: Any) -> None:
    """transformers fills what a checkpoint lacks with random numbers and only warns.

    Raises:
        ValueError: naming what is missing.
    """
    lacking = sorted({*report.get("missing_keys", ()), *map(str, report.get("mismatched_keys", ()))})
    if lacking:
        raise ValueError(
            f"{argument}={name!r} is incomplete: the checkpoint lacks or misshapes {len(lacking)} weights, such as "
            f"{lacking[0]}; download it again, or name a causal language model."
        )


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


def compare_tokenizers(tokenizer: Any, draft_name: str, gguf_file: str | None, trust_remote_code: bool) -> None:
    """The draft must speak the target's language; checked before any weights are read.

    Raises:
        ValueError: saying which ids differ, or that the draft cannot be found.
    """
    load_config("draft_model_name", draft_name, gguf_file=gguf_file, trust_remote_code=trust_remote_code)
    try:
        theirs = load_tokenizer(
            "draft_model_name", draft_name, gguf_file=gguf_file, trust_remote_code=trust_remote_code
        )
    except ValueError:  # a folder with weights only: nothing to compare
        return
    check_same_tokenizer(tokenizer, theirs)


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
    if gguf_file is None:
        options["use_safetensors"] = True  # pickled weights can run code
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            name, dtype=wanted or "auto", output_loading_info=True, **options
        )
    except Exception as error:
        raise _explain(argument, name, error) from error
    _check_complete(argument, name, report)
    if wanted is None and model.device.type == "cpu" and model.dtype == torch.float16:
        model = model.float()  # half precision has no fast CPU kernels
    return model.eval()
