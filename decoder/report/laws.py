"""L5: the target's and the draft's laws at every position of one text, for `probability_agreement`.

Both models read the same ids; both logits are warped with the decoder's sampling parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decoder.api import SpeculativeDecoder
from decoder.types import SamplingParams
from decoder.warpers import warped_probs


def laws_of_text(
    spec: SpeculativeDecoder, ids: Sequence[int], params: SamplingParams | None = None
) -> tuple[Tensor, Tensor]:
    """(p, q), each [N, V]: the laws after each of the N ids, under `params` (the decoder's own by default).

    Raises:
        ValueError: no draft model, or greedy parameters, for which there is no law to compare.
    """
    params = spec.params if params is None else params
    if spec.draft is None:
        raise ValueError("the decoder has no draft model whose law could be compared; give draft_model_name.")
    if params.greedy:
        raise ValueError("temperature=0 has no law to compare; give params with a temperature > 0.")
    laws = []
    with torch.inference_mode():
        for model in (spec.target, spec.draft):
            logits = model(input_ids=torch.tensor([list(ids)], device=model.device)).logits[0]  # [N, V]
            laws.append(logits.float().cpu())
    shared = min(logits.shape[-1] for logits in laws)
    p, q = (warped_probs(logits[:, :shared], params) for logits in laws)
    return p, q
