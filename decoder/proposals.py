"""What the loop makes of a proposal before the target sees it: ids that the target has, shapes that it can verify."""

from __future__ import annotations

from dataclasses import replace

from decoder.types import Draft


def within_vocabulary(draft: Draft, vocab_size: int) -> Draft:
    """Cut each row before the first id outside the target's vocabulary: a prompt that is looked up may hold one."""
    if draft.probs is not None or draft.tokens.device.type != "cpu" or draft.tokens.numel() == 0:
        return draft  # drawn by a model over the target's own vocabulary
    low, high = draft.tokens.aminmax()
    if int(low) >= 0 and int(high) < vocab_size:
        return draft
    outside = (draft.tokens < 0) | (draft.tokens >= vocab_size)
    counts = [min(n, [*row, True].index(True)) for n, row in zip(draft.counts, outside.tolist(), strict=True)]
    tree = None if draft.tree is None else draft.tree.cut(counts)
    return replace(draft, tokens=draft.tokens.masked_fill(outside, 0), counts=counts, tree=tree)


def as_wide_as_its_tree(draft: Draft, name: str, verifiable: bool) -> Draft:
    """A proposal with a tree, without columns beyond it. name: the drafter's.

    Raises:
        ValueError: trees cannot be verified, and the drafter was told (`Drafter.chains`).
    """
    assert draft.tree is not None
    if not verifiable:
        raise ValueError(
            f"drafter {name!r} proposes trees, which this model, verifier or processor cannot have verified; "
            "write its chains(), which returns the drafter that proposes chains."
        )
    width = draft.tree.width
    if width == 0:
        return Draft.nothing(len(draft.counts))
    probs = None if draft.probs is None else draft.probs[:, :width]
    return replace(draft, tokens=draft.tokens[:, :width], probs=probs)
