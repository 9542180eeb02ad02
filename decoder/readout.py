"""What the host must know of a verdict, fetched from the device in one transfer per round."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decoder.types import Draft, Verdict


@dataclass(frozen=True)
class Read:
    """One row of a verdict on the host."""

    accepted: int
    next_token: int
    drafted: list[int]
    overlap: list[float]
    target_finite: list[bool]
    draft_finite: bool


def read_verdict(verdict: Verdict, tokens: Tensor, finite: Tensor, draft: Draft) -> list[Read]:
    """The round's one device-to-host transfer: everything the host must know, in one tensor.

    `cat` promotes the columns to int64, or to the overlap's type, in which ids below 2^24 are exact.
    """
    width = tokens.shape[1]
    columns = [verdict.accepted[:, None], verdict.next_tokens[:, None], tokens, finite]
    if verdict.overlap is not None:
        columns.append(verdict.overlap.to(torch.promote_types(verdict.overlap.dtype, torch.float32)))
    if draft.finite is not None:
        columns.append(draft.finite.to(tokens.device)[:, None])
    rows = []
    for values, count in zip(torch.cat(columns, dim=1).tolist(), draft.counts, strict=True):
        drafted = [int(v) for v in values[2 : 2 + count]]
        flags = [bool(v) for v in values[2 + width : 3 + width + count]]
        shares = values[3 + 2 * width : 3 + 2 * width + count] if verdict.overlap is not None else []
        healthy = draft.finite is None or bool(values[-1])
        rows.append(Read(int(values[0]), int(values[1]), drafted, shares, flags, healthy))
    return rows
