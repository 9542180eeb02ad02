"""L2: heads on disk in this project's own layout: head.json beside head.safetensors."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from decoder.files import whole_file, write_json
from decoder.heads.config import CONFIG_FILE, HeadConfig
from decoder.heads.eagle import FeatureHead

WEIGHTS_FILE = "head.safetensors"


def save_head(head: FeatureHead, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write configuration and weights; what is the target's is not written."""
    folder.mkdir(parents=True, exist_ok=True)
    exact = {"draft_ids": torch.int32, "target_sketch": torch.float32}
    tensors = {
        name: tensor.detach().to("cpu", exact.get(name, dtype)).contiguous()
        for name, tensor in head.state_dict().items()
    }
    with whole_file(folder / WEIGHTS_FILE) as part:
        save_file(tensors, part, metadata={"format": "pt"})
    write_json(folder / CONFIG_FILE, head.config.to_dict())


def load_own(folder: Path) -> FeatureHead:
    """A head that `save_head` wrote, in float32, not yet bound to a target."""
    head = FeatureHead(HeadConfig.read(folder))
    tensors = load_file(folder / WEIGHTS_FILE)
    tensors["draft_ids"] = tensors["draft_ids"].long()
    head.target_sketch = tensors["target_sketch"]
    head.load_state_dict(tensors)
    return head
