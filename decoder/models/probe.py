"""Does a model's cached forward equal its uncached one? Asked of the model itself, before the first token.

Families with tests of their own need no probe. Any other decoder-only model may do things with its cache that its
signature does not show (copy layers, skip some, keep a state beside it), so it is tried on a few tokens: prefill, a
draft that is thrown away, and the true continuation. A model that fails is refused, never served silently wrong.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_TOKENS = 9
_KEPT = 5


def allowed_error(dtype: torch.dtype) -> float:
    """Relative error of logits that rounding explains; a lost or stale state gives a few percent up to 1."""
    return 0.001 if dtype in (torch.float32, torch.float64) else 0.1


def probe_error(open_session: Any, uncached: Any, vocab_size: int) -> float:
    """Relative error of cached logits after a rollback, the median over four positions.

    open_session(limit) -> a session; uncached(tokens [1, m]) -> logits [1, m, V].
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, vocab_size, (1, _TOKENS), generator=generator)  # [1, m]
    thrown = (tokens[:, _KEPT:] + 1) % vocab_size
    with torch.inference_mode():
        session = open_session(_TOKENS)
        layers = len(session.cache.layers)
        session.feed(tokens[:, : _KEPT - 1], [0])
        session.commit([_KEPT - 1])
        if len(session.cache.layers) != layers:  # copies of its own, which no rollback reaches
            return float("inf")
        session.feed(tokens[:, _KEPT - 1 : _KEPT], [_KEPT - 1])
        session.commit([_KEPT])
        session.feed(thrown, [_KEPT])
        session.commit([_KEPT])
        cached: Tensor = session.feed(tokens[:, _KEPT:], [_KEPT]).float()  # [1, 4, V]
        truth: Tensor = uncached(tokens)[:, _KEPT:].to(cached.device).float()
    real = torch.isfinite(truth)  # a padded vocabulary holds -inf
    difference, size = ((part.masked_fill(~real, 0.0)).norm(dim=-1) for part in (cached - truth, truth))
    # The median over positions: in half precision a mixture of experts may route one of them differently.
    errors = difference / size.clamp(min=1e-6)
    return float(errors.median())


def check_cached_equals_uncached(
    open_session: Any, uncached: Any, vocab_size: int, dtype: torch.dtype, kind: str
) -> None:
    """Refuse a model whose cache cannot be trusted.

    Raises:
        ValueError: naming the model.
    """
    remedy = "its cache cannot be rolled back here; use another model, or transformers' own generate()."
    try:
        error = probe_error(open_session, uncached, vocab_size)
    except (RuntimeError, TypeError, IndexError, AttributeError, KeyError) as problem:
        raise ValueError(f"{kind} fails with a position-addressed cache ({problem!s:.120}); {remedy}") from problem
    if not error <= allowed_error(dtype):  # NaN, too
        raise ValueError(f"{kind}: cached logits differ from uncached ones by {error:.0%}; {remedy}")
