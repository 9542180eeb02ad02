"""The target with 8- or 4-bit weights drafts for the target.

No second checkpoint: the narrow copy is made from the target when the decoder is built, and shares with it every
tensor that stays as it is (embeddings, norms, biases, the weights used for long inputs). q is the copy's own
distribution, so rounding costs acceptance and never exactness. What it costs: `nbytes` of memory beside the target, and
one reading of the narrow weights per drafted token.

Does not know the kernels: see `models.quantize`. CPU only.
"""

from __future__ import annotations

import copy
from typing import Any, cast

from decoder.drafters.model import ModelDrafter
from decoder.models.hf import CausalModel
from decoder.models.quantize import quantized_copy
from decoder.models.sharing import own_bytes


class QuantizedDrafter(ModelDrafter):
    """Drafts with a narrow copy of the target.

    bits: 8 or 4, of the layers' weights.   head_bits: 4, 8, or 16 to leave the head as it is.
    group_size: inputs that share a scale in 4 bits.   sample: as for `ModelDrafter`.
    """

    name = "quantized"

    def __init__(self, bits: int = 4, *, head_bits: int = 8, group_size: int = 32, sample: bool = True) -> None:
        super().__init__(cast(Any, None), sample=sample)  # the model is made by `bind`
        self.bits, self.head_bits, self.group_size = bits, head_bits, group_size
        self.nbytes = 0  # beside the target
        self._target: CausalModel | None = None

    @classmethod
    def for_models(cls, target: Any, draft: Any) -> QuantizedDrafter:
        return cls().bind(target, draft)

    def bind(self, target: Any, draft: Any) -> QuantizedDrafter:
        """Make the narrow copy, once for each target.

        Raises:
            ValueError: options out of range, or a target that is not wholly on the CPU.
        """
        if self._target is target:
            return self
        recipe = self if self._target is None else copy.copy(self)
        twin = quantized_copy(target.model, self.bits, head_bits=self.head_bits, group_size=self.group_size)
        recipe.model = CausalModel(twin, "draft", target.vocab_size, target.banned)
        recipe.nbytes = own_bytes(twin, target.model)
        recipe._target = target
        return recipe

    def __repr__(self) -> str:
        if self._target is None:
            return f"QuantizedDrafter(bits={self.bits}, head_bits={self.head_bits}, not bound)"
        memory = f"{self.nbytes / 2**20:.1f} MiB beside the target"
        return f"QuantizedDrafter(bits={self.bits}, head_bits={self.head_bits}, {memory})"
