"""L2: results are folds over steps, so no two metrics can disagree.

Definitions (the field's):
    accepted                     drafted tokens that the verifier kept *and that are in the text*: where EOS, a stop or
                                 the length ends the text within a draft, what was drafted beyond counts as drafted only
    acceptance_rate              accepted / drafted, pooled over rounds
    alpha                        accepted / positions really tested (a round stops testing at its first rejection, or
                                 where the text ends)
    tokens_per_iteration         tokens emitted after the prefill / target forwards after the prefill
    acceptance_per_position[i]   rounds that accepted at least i + 1 tokens / rounds (vLLM's, unconditional)
So `num_accepted_tokens` is the number of tokens whose fate is "accepted".
Of a tree every node is verified and counts as drafted: its acceptance_rate is low by nature. A position is a depth.
`prefill_s + draft_s + target_s + overhead_s == wall_s`; overhead is the remainder, reported and never hidden.
"""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from decoder.text import token_pieces
from decoder.trees import depths_of
from decoder.types import RowStep, Step

FATES = ("accepted", "recovered", "bonus", "plain")


@dataclass(frozen=True)
class RowRound:
    """One row's share of one round, with the times of the whole round in seconds.

    accepted: how many leading drafted tokens are in the text.
    """

    index: int
    drafted: tuple[int, ...]
    accepted: int
    emitted: tuple[int, ...]
    wall_s: float
    draft_s: float
    target_s: float
    parents: tuple[int, ...] = ()  # of a tree: each drafted token's parent, -1 for the committed text
    path: tuple[int, ...] = ()  # of a tree: the nodes accepted

    @property
    def depth(self) -> int:
        """Tokens of the longest path proposed."""
        return max(depths_of(self.parents), default=0) if self.parents else len(self.drafted)

    @property
    def exhausted(self) -> bool:
        """Whether nothing was proposed beyond what was accepted."""
        if self.parents:
            return (self.path[-1] if self.path else -1) not in self.parents
        return self.accepted == len(self.drafted)

    def fates(self) -> list[str]:
        """What each emitted token was: accepted, recovered (after a rejection), bonus (full acceptance) or plain."""
        names = ["accepted"] * self.accepted
        if len(self.emitted) > len(names):
            if not self.drafted:
                names.append("plain")
            else:
                names.append("bonus" if self.exhausted else "recovered")
        return names

    @property
    def tested(self) -> int:
        """Positions of the text at which a drafted token was judged: the accepted ones and the first rejected one."""
        return self.accepted + (len(self.emitted) > self.accepted and not self.exhausted)


def row_rounds(steps: Sequence[Step], row: int) -> tuple[RowRound, ...]:
    """The rounds in which this row was live."""
    found = []
    for step in steps:
        mine: RowStep | None = next((part for part in step.rows if part.row == row), None)
        if mine is not None:
            accepted = min(mine.accepted, len(mine.emitted))  # the text may have ended among the accepted ones
            times, tree = (step.wall_s, step.draft_s, step.target_s), (mine.parents, mine.path[:accepted])
            found.append(RowRound(step.index, mine.drafted, accepted, mine.emitted, *times, *tree))
    return tuple(found)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


@dataclass(frozen=True)
class TokenLogprobs:
    """One emitted token and what the target gave it: natural logarithms of its probability before processors and
    warpers. top: (id, log-probability) of the likeliest tokens, likeliest first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class GenerationResult:
    """One finished text and the account of how it came about. Unpacks as `text, seconds`.

    Times are seconds. In a batch the times are those of the shared rounds in which this row was live, not a share of
    them. Rates that divide by zero (no draft, no round) are NaN. `logprobs`, `scores` and `logits` hold one entry for
    each new token where the call asked for them (`decoder.outputs`), else None.
    """

    text: str
    full_text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    finish_reason: str
    wall_s: float
    steps: tuple[RowRound, ...]
    lossless: bool
    tokenizer: Any = field(default=None, repr=False, compare=False)
    cache: Any = field(default=None, repr=False, compare=False)
    logprobs: tuple[TokenLogprobs, ...] | None = field(default=None, repr=False)
    scores: tuple[Tensor, ...] | None = field(default=None, repr=False, compare=False)
    logits: tuple[Tensor, ...] | None = field(default=None, repr=False, compare=False)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.text, self.wall_s))

    def __str__(self) -> str:
        return self.text

    @property
    def _rounds(self) -> tuple[RowRound, ...]:
        return self.steps[1:]

    @property
    def prefill_s(self) -> float:
        """Both models' pass over the prompt."""
        return sum(step.target_s + step.draft_s for step in self.steps[:1])

    @property
    def draft_s(self) -> float:
        """All time in the drafter after the prefill: its forwards and its sampling."""
        return sum(step.draft_s for step in self._rounds)

    @property
    def target_s(self) -> float:
        """The target's forwards after the prefill."""
        return sum(step.target_s for step in self._rounds)

    @property
    def overhead_s(self) -> float:
        return self.wall_s - self.prefill_s - self.draft_s - self.target_s

    @property
    def tokens_per_second(self) -> float:
        """New tokens / wall_s."""
        return _ratio(len(self.token_ids), self.wall_s)

    @property
    def num_iterations(self) -> int:
        """Target forwards after the prefill."""
        return len(self._rounds)

    @property
    def num_draft_tokens(self) -> int:
        return sum(len(step.drafted) for step in self._rounds)

    @property
    def num_accepted_tokens(self) -> int:
        return sum(step.accepted for step in self._rounds)

    @property
    def acceptance_rate(self) -> float:
        return _ratio(self.num_accepted_tokens, self.num_draft_tokens)

    @property
    def alpha(self) -> float:
        return _ratio(self.num_accepted_tokens, sum(step.tested for step in self._rounds))

    @property
    def tokens_per_iteration(self) -> float:
        return _ratio(sum(len(step.emitted) for step in self._rounds), self.num_iterations)

    @property
    def acceptance_per_position(self) -> tuple[float, ...]:
        depth = max((step.depth for step in self._rounds), default=0)
        return tuple(_ratio(sum(step.accepted > i for step in self._rounds), self.num_iterations) for i in range(depth))

    @property
    def fates(self) -> tuple[str, ...]:
        """For each new token: "accepted", "recovered", "bonus" or "plain"."""
        return tuple(fate for step in self.steps for fate in step.fates())

    @property
    def token_texts(self) -> tuple[str, ...]:
        """One piece of text per new token; a token that ends inside a character has "" and the next one the rest.

        What the last token holds beyond a stop string is left out, as in `text`.
        """
        if not self.tokenizer:
            return ()
        pieces = token_pieces(self.tokenizer, self.prompt_token_ids, self.token_ids)
        if self.finish_reason != "stop":
            return pieces
        surplus = max(0, sum(map(len, pieces)) - len(self.text))
        return (*pieces[:-1], pieces[-1][: max(0, len(pieces[-1]) - surplus)])

    METRICS = (
        "wall_s prefill_s draft_s target_s overhead_s tokens_per_second acceptance_rate alpha tokens_per_iteration "
        "num_draft_tokens num_accepted_tokens num_iterations"
    ).split()

    def to_dict(self) -> dict[str, Any]:
        """Everything but the cache, in plain types; NaN becomes None so that it is valid JSON."""

        def plain(value: Any) -> Any:
            return None if isinstance(value, float) and math.isnan(value) else value

        out: dict[str, Any] = {name: getattr(self, name) for name in ("text", "full_text", "finish_reason", "lossless")}
        out |= {name: plain(getattr(self, name)) for name in self.METRICS}
        out |= {name: list(getattr(self, name)) for name in ("token_ids", "prompt_token_ids", "fates")}
        if self.logprobs is not None:
            out["logprobs"] = [
                {"token_id": each.token_id, "logprob": each.logprob, "top": [list(pair) for pair in each.top]}
                for each in self.logprobs
            ]
        out["acceptance_per_position"] = [plain(value) for value in self.acceptance_per_position]
        out["steps"] = [
            {
                "index": step.index,
                "drafted": list(step.drafted),
                "accepted": step.accepted,
                "emitted": list(step.emitted),
                **({"parents": list(step.parents), "path": list(step.path)} if step.parents else {}),
                "wall_s": step.wall_s,
                "draft_s": step.draft_s,
                "target_s": step.target_s,
            }
            for step in self.steps
        ]
        return out

    def _repr_html_(self) -> str:
        """For notebooks: the text coloured by fate, the numbers beside it. Model output is escaped."""
        return notebook_html(self)


_STYLES = {
    "accepted": "background:#cfe8d5;color:#111",
    "recovered": "background:#f6d6c9;color:#111;text-decoration:underline",
    "bonus": "background:#cfdcf3;color:#111;font-weight:600",
    "plain": "",
}


def _escaped(text: str) -> str:
    """A model can emit tags and escape codes: the first become text, the second lose their control characters."""
    return html.escape("".join(letter for letter in text if letter in "\n\t" or unicodedata.category(letter) != "Cc"))


def notebook_html(result: GenerationResult) -> str:
    """A self-contained HTML fragment for one result."""
    pieces = []
    for fate, text in zip(result.fates, result.token_texts, strict=False):
        shown = _escaped(text).replace("\n", "<br>")
        pieces.append(f'<span title="{fate}" style="{_STYLES[fate]}">{shown}</span>')
    rows = []
    for name in GenerationResult.METRICS:
        value = getattr(result, name)
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        rows.append(f"<tr><td>{name}</td><td style='text-align:right'>{shown}</td></tr>")
    legend = " ".join(
        f'<span style="{_STYLES[fate]};padding:0 .4em">{fate}</span>' for fate in ("accepted", "recovered", "bonus")
    )
    body = "".join(pieces) or _escaped(result.text)
    return (
        '<div style="display:flex;gap:2em;flex-wrap:wrap;align-items:flex-start">'
        f'<div style="flex:1 1 24em;line-height:1.6"><div>{legend}</div><p>{body}</p></div>'
        f"<table>{''.join(rows)}</table></div>"
    )
