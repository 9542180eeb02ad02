"""From logits to the distribution that is sampled: processors, then temperature, top-k, top-p, min-p.

The order and the edge rules are those of transformers (`TemperatureLogitsWarper`, `TopKLogitsWarper`,
`TopPLogitsWarper`, `MinPLogitsWarper`); the same object warps target and draft, once each. Logits become float32
first. Top-p selects before it sorts: it looks at the few largest logits and sorts the whole
vocabulary only for rows whose mass is spread wider.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from decoder.trees import Tree
from decoder.types import Contexts, Draft, Rows, SamplingParams

Processor = Callable[[Tensor, Tensor], Tensor]  # (input_ids [1, L], scores [1, V]) -> scores [1, V]
RowSettings = tuple[SamplingParams, Sequence[Processor], Sequence[int]]  # parameters, processors, ids of the padding
_SELECT = 128
_COLD = 1e-6


def _keep_top_k(scores: Tensor, top_k: int) -> Tensor:
    """Mask all below the k-th largest; ties with it stay, as in transformers."""
    if top_k >= scores.shape[-1]:
        return scores
    smallest_kept = scores.topk(top_k, dim=-1).values[..., -1:]
    return scores.masked_fill(scores < smallest_kept, -torch.inf)


def _nucleus_threshold(sorted_probs: Tensor, top_p: float) -> Tensor:
    """How many of the descending probabilities [N, n] form the nucleus: those with less than top_p before them."""
    before = sorted_probs.cumsum(-1) - sorted_probs
    return (before < top_p).sum(-1).clamp_(min=1)


def _drop_spare_ties(keep: Tensor, scores: Tensor, smallest: Tensor, size: Tensor) -> Tensor:
    """Where more tokens tie with the smallest kept score than fit, keep the highest ids (a stable sort's order)."""
    spare = keep.sum(-1) - size
    if not bool((spare > 0).any()):
        return keep
    tied = scores == smallest
    return keep & ~(tied & (tied.cumsum(-1) <= spare[:, None]))


def _nucleus_mask(scores: Tensor, probs: Tensor, top_p: float) -> Tensor:
    """[N, V] bool: the smallest set of likeliest tokens whose mass reaches top_p."""
    vocab = scores.shape[-1]
    # On a GPU one full sort is cheaper than the host read that would tell whether a selection is enough.
    width = vocab if scores.device.type != "cpu" else min(_SELECT, vocab)
    values, ids = scores.topk(width, dim=-1)
    chosen = probs.gather(-1, ids)
    if width < vocab and bool((chosen.sum(-1) < top_p).any()):
        values, ids = scores.sort(dim=-1, descending=True)
        chosen = probs.gather(-1, ids)
    size = _nucleus_threshold(chosen, top_p)
    smallest = values.gather(-1, (size - 1)[:, None])
    return _drop_spare_ties(scores >= smallest, scores, smallest, size)


def warped_probs(scores: Tensor, params: SamplingParams) -> Tensor:
    """Scores [..., V] -> probabilities [..., V] under `params` (temperature > 0)."""
    flat = scores.reshape(-1, scores.shape[-1])
    if params.temperature < _COLD:  # nothing may overflow: only differences to the best count
        flat = (flat - flat.amax(-1, keepdim=True)) / max(params.temperature, 1e-30)
    elif params.temperature != 1.0:
        flat = flat / params.temperature
    if params.top_k > 0:
        flat = _keep_top_k(flat, params.top_k)
    probs = torch.softmax(flat, dim=-1)
    if params.top_p < 1.0:
        probs = probs.masked_fill(~_nucleus_mask(flat, probs, params.top_p), 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    if params.min_p > 0.0:
        probs = probs.masked_fill(probs < params.min_p * probs.amax(-1, keepdim=True), 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs.reshape(scores.shape)


class Warper:
    """The sampling parameters and the processors of one run, for all rows alike (`Warper(...)`) or for each row its own
    (`Warper.of_rows(...)`).

    `processors` follow transformers' `LogitsProcessor` protocol and run before the warpers. They see the
    committed and the drafted prefix of each position, behind the padding that the row came with.
    """

    def __init__(self, params: SamplingParams, processors: Sequence[Processor] = ()) -> None:
        self.greedy = params.greedy  # of the whole run: it does not change when rows end
        self._alike: RowSettings = (params, tuple(processors), ())
        self._rows: list[RowSettings] | None = None

    @classmethod
    def of_rows(cls, rows: Sequence[RowSettings]) -> Warper:
        """One (parameters, processors, ids of the padding) for each row. Greedy only if every row is: beside rows that
        sample, the distribution of a greedy row has all its mass on the likeliest token."""
        own: list[RowSettings] = [(params, tuple(processors), padding) for params, processors, padding in rows]
        first = own[0][0]
        warper = cls(first)
        if any((params is not first and params != first) or processors for params, processors, _ in own):
            warper._rows = own
            warper.greedy = all(params.greedy for params, _, _ in own)
        return warper

    @property
    def processors(self) -> Sequence[Processor]:
        """All processors, whichever row they belong to."""
        return self._alike[1] if self._rows is None else tuple(each for _, mine, _ in self._rows for each in mine)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        if self._rows is not None:
            self._rows = [self._rows[row] for row in rows]

    def _of(self, row: int) -> RowSettings:
        return self._alike if self._rows is None else self._rows[row]

    def scores(
        self,
        logits: Tensor,
        contexts: Contexts,
        drafted: Tensor | None = None,
        rows: Rows = None,
        tree: Tree | None = None,
    ) -> Tensor:
        """Logits [B, n, V] -> processed scores [B, n, V], at least float32.

        Position i of row b follows contexts[b] + drafted[b, :i], in a tree contexts[b] and the path to node i - 1.
        rows: which rows of the run these are; all by default.
        """
        scores = logits if logits.dtype == torch.float64 else logits.float()
        if not self.processors:
            return scores
        found = []
        for b, context in enumerate(contexts):
            own = self._of(b if rows is None else rows[b])
            mine = None if drafted is None else drafted[b : b + 1]
            found.append(self._row_scores(scores[b], context, mine, own, None if tree is None else tree.paths(b)))
        return torch.stack(found)

    def _row_scores(
        self,
        scores: Tensor,
        context: Sequence[int],
        drafted: Tensor | None,
        own: RowSettings,
        paths: Sequence[Sequence[int]] | None,
    ) -> Tensor:
        """One row's scores [n, V], position by position. paths: which drafted tokens lead to each; None: all before."""
        _, processors, padding = own
        if not processors:
            return scores
        context = [*padding, *context]
        vocab = scores.shape[-1]
        # A prompt may hold ids that have no score; processors that look up each id's score find them impossible.
        spare = max(max(context) + 1 - vocab, 0)
        padded = torch.nn.functional.pad(scores, (0, spare), value=-torch.inf) if spare else scores
        prefix = torch.tensor([context], dtype=torch.long, device=scores.device)  # [1, L]
        if drafted is not None:
            if paths is not None:
                branches = [torch.cat([prefix, drafted[:, path].to(prefix.device)], dim=1) for path in paths]
                scored = [process(branch, padded[i : i + 1], processors) for i, branch in enumerate(branches)]
                return torch.cat(scored)[:, :vocab]
            prefix = torch.cat([prefix, drafted.to(prefix.device)], dim=1)
        return torch.cat(
            [
                process(prefix[:, : len(context) + i], padded[i : i + 1], processors)[:, :vocab]
                for i in range(scores.shape[0])
            ]
        )

    def admitted(self, contexts: Contexts, draft: Draft) -> list[int]:
        """How many leading tokens of a deterministic draft no processor forbids, as far as processors can tell
        (`admits`). Leaving the rest out changes no distribution: p is 0 there. A sampled draft stays as it is: what was
        drawn must not decide what is verified; so does a tree."""
        counts = list(draft.counts)
        if (
            draft.probs is not None
            or draft.tree is not None
            or not any(hasattr(each, "admits") for each in self.processors)
        ):
            return counts
        for b, (context, drafted) in enumerate(zip(contexts, draft.tokens.tolist(), strict=True)):
            for processor in self._of(b)[1]:
                if hasattr(processor, "admits"):
                    counts[b] = processor.admits(context, drafted[: counts[b]])
        return counts

    def probs(self, scores: Tensor, rows: Rows = None) -> Tensor:
        """Scores [B, ..., V] -> p or q [B, ..., V]. Not defined for greedy decoding, which never needs it."""
        if self._rows is None:
            return warped_probs(scores, self._alike[0])
        groups: dict[SamplingParams, list[int]] = {}
        for b, row in enumerate(range(len(scores)) if rows is None else rows):
            groups.setdefault(self._of(row)[0], []).append(b)
        if len(groups) == 1:
            return _probs(scores, next(iter(groups)))
        probs = torch.empty_like(scores)
        for params, members in groups.items():
            probs[members] = _probs(scores[members], params)
        return probs

    def warped_scores(self, scores: Tensor, rows: Rows = None) -> Tensor:
        """Scores [B, n, V] as transformers' warpers leave them: divided by the temperature, filtered tokens at -inf."""
        found = []
        for b, row in enumerate(range(len(scores)) if rows is None else rows):
            params = self._of(row)[0]
            warped = scores[b] if params.greedy else scores[b] / params.temperature
            if not params.greedy and (params.top_k or params.top_p < 1.0 or params.min_p):
                warped = warped.masked_fill(_probs(scores[b], params) == 0, -torch.inf)
            found.append(warped)
        return torch.stack(found)


def _probs(scores: Tensor, params: SamplingParams) -> Tensor:
    """A greedy row beside sampling ones: all mass on the likeliest token."""
    if not params.greedy:
        return warped_probs(scores, params)
    return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)


def process(prefix: Tensor, scores: Tensor, processors: Sequence[Processor]) -> Tensor:
    """Run processors for one position: prefix [1, L], scores [1, V] -> [1, V].

    Raises:
        TypeError: naming a processor that returned something else.
    """
    for processor in processors:
        found = processor(prefix, scores)
        if not isinstance(found, Tensor) or found.shape != scores.shape:
            what = f"shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            name = getattr(processor, "__name__", type(processor).__name__)
            raise TypeError(f"logits_processor {name} returned {what}; it must return scores {list(scores.shape)}.")
        scores = found
    return scores
