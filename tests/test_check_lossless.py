"""`check_lossless` in the hands of somebody who writes a drafter: each mistake is found, and the message says which."""

from __future__ import annotations

import copy

import pytest
import torch

from decoder import Draft, Drafter
from decoder.testing import check_lossless


class Unigram(Drafter):
    """Right: draws from how often each token occurred so far, and says so."""

    name = "unigram"

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def start(self, contexts, warp, random, limit):
        run = copy.copy(self)
        run.random, run.greedy_target = random, warp.greedy
        return run

    def law(self, contexts, width):
        seen = torch.stack([torch.bincount(torch.tensor(list(c)), minlength=self.vocab_size) for c in contexts])
        return ((seen + 0.5) / (seen + 0.5).sum(-1, keepdim=True))[:, None].expand(-1, width, -1)  # [B, K, V]

    def drawn(self, q, contexts, counts):
        return q.argmax(-1) if self.greedy_target else self.random.draw(q, [len(c) for c in contexts], counts)

    def told(self, tokens, counts, q):
        return Draft(tokens, list(counts), None if self.greedy_target else q)

    def propose(self, contexts, counts):
        q = self.law(contexts, max(counts))
        return self.told(self.drawn(q, contexts, counts), counts, q)


class StaleLaw(Unigram):
    """Drawn from the text as it was a token ago, reported as of now."""

    name = "stale law"

    def propose(self, contexts, counts):
        old = self.law([context[:-1] for context in contexts], max(counts))
        return self.told(self.drawn(old, contexts, counts), counts, self.law(contexts, max(counts)))


class NotSelected(Unigram):
    """Keeps something per row and forgets `select`: after a row ends, the others are mixed up."""

    name = "rows not selected"

    def start(self, contexts, warp, random, limit):
        run = super().start(contexts, warp, random, limit)
        run.prompts = [list(context) for context in contexts]
        return run

    def propose(self, contexts, counts):
        mine = self.law(self.prompts[: len(contexts)], max(counts))
        theirs = self.law([context[: len(p)] for context, p in zip(contexts, self.prompts, strict=False)], max(counts))
        return self.told(self.drawn(mine, contexts, counts), counts, theirs)


class DropsAfterLooking(Unigram):
    """Ends the proposal before the first drawn token that it does not like."""

    name = "drops after looking"

    def propose(self, contexts, counts):
        draft = super().propose(contexts, counts)
        if draft.probs is None:
            return draft
        rows = [row[:n] for row, n in zip(draft.tokens.tolist(), draft.counts, strict=True)]
        return Draft(draft.tokens, [[*row, 0].index(0) for row in rows], draft.probs)


class OwnDice(Unigram):
    """Draws from torch's generator: the law is right, but a seed fixes nothing and neighbours share the stream."""

    name = "own dice"

    def drawn(self, q, contexts, counts):
        return torch.multinomial(q.flatten(0, 1), 1).view(q.shape[:2])


class SoftLaw(Unigram):
    """Takes the most frequent token and pretends to have drawn it."""

    name = "argmax with a soft law"

    def drawn(self, q, contexts, counts):
        return q.argmax(-1)


class Appends(Unigram):
    name = "appends"

    def propose(self, contexts, counts):
        draft = super().propose(contexts, counts)
        for context in contexts:
            context.append(0)
        return draft


class Pops(Unigram):
    name = "pops"

    def propose(self, contexts, counts):
        for context in contexts:
            context.pop()
        return super().propose(contexts, counts)


class Overwrites(Unigram):
    name = "overwrites"

    def propose(self, contexts, counts):
        draft = super().propose(contexts, counts)
        for context in contexts:
            context[0] = 0
        return draft


class TooMany(Unigram):
    name = "too many"

    def propose(self, contexts, counts):
        return super().propose(contexts, [k + 1 for k in counts])


class Unnormalised(Unigram):
    name = "unnormalised"

    def told(self, tokens, counts, q):
        return Draft(tokens, list(counts), None if self.greedy_target else 3 * q)


class NoChance(Unigram):
    name = "no chance"

    def told(self, tokens, counts, q):
        if self.greedy_target:
            return Draft(tokens, list(counts))
        other = torch.nn.functional.one_hot((tokens + 1) % self.vocab_size, self.vocab_size)
        return Draft(tokens, list(counts), other.double())


class WrongShape(Unigram):
    name = "wrong shape"

    def told(self, tokens, counts, q):
        return Draft(tokens.T, list(counts))


WRONG = [
    (StaleLaw, "not lossless, total variation"),
    (NotSelected, "not lossless|no chance|past"),
    (DropsAfterLooking, "not lossless, total variation"),
    (OwnDice, "past"),
    (SoftLaw, "not lossless|past"),
    (Appends, r"propose changed contexts\[0\].*take a copy"),
    (Pops, r"propose changed contexts\[0\]"),
    (Overwrites, r"propose changed contexts"),
    (TooMany, "at most"),
    (Unnormalised, "sum to"),
    (NoChance, "no chance"),
    (WrongShape, r"\[B, K\]"),
]


def test_a_right_one_passes() -> None:
    check_lossless(lambda target: Unigram(target.vocab_size), ks=(1, 2))


@pytest.mark.parametrize(("kind", "message"), WRONG, ids=[kind.name for kind, _ in WRONG])
def test_a_wrong_one_is_found(kind: type[Unigram], message: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=message) as caught:
        check_lossless(lambda target: kind(target.vocab_size), ks=(1, 2))
    assert kind.name in str(caught.value) or kind is OwnDice
