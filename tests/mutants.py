"""The faults the suite must catch, each as a change to the real code with the name of the check that must object.

`python tests/mutants.py` prints `docs/mutants.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

# Each has been shipped by somebody.
FAULTS = (
    "no residual",
    "p/q swapped",
    "residual not clamped",
    "acceptance by p alone",
    "bonus from the previous position",
    "target logits off by one",
    "accepted count instead of leading run",
    "one uniform for the whole block",
    "tokens discarded by confidence",
    "greedy draft with a soft q",
    "top-p on one side only",
    "q warped but reported unwarped",
    "processors on the committed prefix only",
    "stale KV after a rejection",
    "block acceptance with the token residual",
    "block verification that stops at the first failure",
    "tokens kept after EOS",
    "unguarded 0/0",
    "`<=`",
    "tree q not renormalised",
    "tree: elder sibling forgotten",
    "tree: wrong parent",
    "tree: wrong position",
    "tree: sibling leak",
    "tree: wrong path kept",
    "row b using row b' length",
    "temperature applied twice to the draft",
)


@dataclass(frozen=True)
class Mutant:
    """fault: its name in `FAULTS`.   what: the change in words.   killer: the check that must object."""

    fault: str
    what: str
    module: str
    changes: tuple[tuple[str, str], ...]
    killer: str


TOKEN, BLOCK, CHAIN = "decoder.verify.token", "decoder.verify.block", "decoder.verify.chain"
TREE, TREES, INPUTS = "decoder.verify.tree", "decoder.trees", "decoder.models.inputs"
BRANCHING = "decoder.drafters.branching"
MODEL, LOOP, CACHE = "decoder.drafters.model", "decoder.loop", "decoder.models.cache"
WARPERS, RANDOM = "decoder.warpers", "decoder.randomness"


def _mutant(fault: str, what: str, module: str, killer: str, *changes: tuple[str, str]) -> Mutant:
    return Mutant(fault, what, module, changes, killer)


MUTANTS = [
    _mutant("no residual", "after a rejection draws from p", TOKEN, "enumeration: token, poor draft",
            ("law = residual(rows_at(p, accepted), q_next)", "law = rows_at(p, accepted)")),
    _mutant("p/q swapped", "accepts with q(x) / p(x)", TOKEN, "enumeration: token, poor draft",
            ("random.accept(p_x, q_x,", "random.accept(q_x, p_x,")),
    _mutant("p/q swapped", "draws from (q - p)+ after a rejection", CHAIN,
            "direct: the first token has p's law (token)",
            ("rest = (scaled - q)", "rest = (q - scaled)")),
    _mutant("residual not clamped", "normalises p - q with its negative entries", CHAIN,
            "enumeration: token, poor draft",
            (".clamp_(min=0.0)\n    mass", "\n    mass")),
    _mutant("residual not clamped", "normalises |p - q|", CHAIN, "enumeration: block, poor draft",
            (".clamp_(min=0.0)\n    mass", ".abs_()\n    mass")),
    _mutant("acceptance by p alone", "accepts with probability p(x)", TOKEN, "enumeration: token, good draft",
            ("random.accept(p_x, q_x,", "random.accept(p_x, torch.ones_like(q_x),")),
    _mutant("bonus from the previous position", "draws the bonus from the last drafted token's p", TOKEN,
            "enumeration: token, good draft",
            ("residual(rows_at(p, accepted), q_next)",
             "residual(rows_at(p, (accepted - bonus.long()).clamp(min=0)), q_next)")),
    _mutant("target logits off by one", "judges each drafted token by the law after it", LOOP,
            "enumeration: match, n-gram draft",
            ("scores = parts.warp.scores(logits, contexts, tokens)",
             "scores = parts.warp.scores(logits.roll(-1, 1), contexts, tokens)")),
    _mutant("target logits off by one", "feeds the target one position early", LOOP,
            "greedy parity: ragged batch, llama",
            ("return target.feed(fed, starts)", "return target.feed(fed, [max(start - 1, 0) for start in starts])")),
    _mutant("accepted count instead of leading run", "keeps as many tokens as passed anywhere", CHAIN,
            "enumeration: token, poor draft", ("cumprod(-1).sum(-1)", "sum(-1)")),
    _mutant("one uniform for the whole block", "tests every position against the first uniform", RANDOM,
            "direct: accepts at two positions are independent",
            ("return u * denominator < numerator", "return u[:, :1] * denominator < numerator")),
    _mutant("tokens discarded by confidence", "drops a drafted last token whose q(x) is below 0.4", MODEL,
            "enumeration: token, good draft",
            ("tokens.append(token)",
             "counts = list(counts) if q is None else [min(n, i) if float(q[b, 0, token[b, 0]]) < 0.4 else n "
             "for b, n in enumerate(counts)]; tokens.append(token)")),
    _mutant("greedy draft with a soft q", "takes q's argmax and reports q", MODEL, "enumeration: token, good draft",
            ("token = self._random.draw(q, [len(context) + i for context in contexts], [int(i < k) for k in counts])",
             "token = q.argmax(-1)")),
    _mutant("top-p on one side only", "does not warp the target", LOOP, "enumeration: token, good draft, top-p",
            ("else parts.warp.probs(scores)\n    verdict", "else torch.softmax(scores, -1)\n    verdict")),
    _mutant("top-p on one side only", "does not warp the draft (its q is honest: only acceptance suffers)", MODEL,
            "acceptance of draft = target: all warpers",
            ("else self._warp.probs(scores)", "else torch.softmax(scores, -1)")),
    _mutant("q warped but reported unwarped", "draws from the warped q, reports the softmax", MODEL,
            "enumeration: token, good draft, temperature",
            ("laws.append(q)", "laws.append(torch.softmax(scores, -1))")),
    _mutant("processors on the committed prefix only", "for the target", WARPERS,
            "enumeration: token, good draft, processors",
            ("process(prefix[:, : len(context) + i],", "process(prefix[:, : len(context)],")),
    _mutant("processors on the committed prefix only", "for the draft (q is honest: only acceptance suffers)", MODEL,
            "acceptance of draft = target: processors",
            ("drafted = torch.cat(tokens, dim=1) if tokens and self._remembers else None", "drafted = None")),
    _mutant("stale KV after a rejection", "the first token of a round keeps the entry its slot had", CACHE,
            "greedy parity: ragged batch, llama",
            ("self.keys.narrow(2, start, write.count).copy_(key_states)",
             "skip = int(1 < write.count < end); "
             "self.keys[:, :, start + skip : end] = key_states[:, :, skip:]"),
            ("self.keys.scatter_(2, slots.expand_as(key_states), key_states)",
             "skip = int(write.count > 1); "
             "self.keys.scatter_(2, slots[:, :, skip:].expand_as(key_states[:, :, skip:]), key_states[:, :, skip:])")),
    _mutant("stale KV after a rejection", "draft: takes its last drafted token for cached", MODEL,
            "enumeration: token, good draft", ("have + min(n, fed) for have, n", "have + n for have, n")),
    _mutant("stale KV after a rejection", "draft: writes one slot early (q is honest: only acceptance suffers)", MODEL,
            "acceptance is the overlap: partly agreeing draft",
            ("feed(tokens[-1], [len(context) + i - 1 for", "feed(tokens[-1], [max(len(context) + i - 2, 0) for")),
    _mutant("block acceptance with the token residual", "draws from (p - q)+ instead of (P p - q)+", BLOCK,
            "enumeration: block, ten tables",
            ("residual(rows_at(p, tau), q_tau, scale)", "residual(rows_at(p, tau), q_tau)")),
    _mutant("block verification that stops at the first failure", "tau is the leading run", BLOCK,
            "enumeration: block, ten tables",
            ("(position * passed).amax(-1)", "passed.long().cumprod(-1).sum(-1)")),
    _mutant("tokens kept after EOS", "commits the whole round", LOOP, "enumeration: token, good draft",
            ("            if self.finish_reason:\n                return tuple(tokens[:n])",
             "            if self.finish_reason:\n                self.tokens += tokens[n:]; return tuple(tokens)")),
    _mutant("unguarded 0/0", "normalises a residual without mass", CHAIN, "direct: residual without mass",
            ("torch.where(mass > 0, rest / mass.clamp(min=torch.finfo(rest.dtype).tiny), p)", "rest / mass")),
    _mutant("`<=`", "accepts when u q <= p", RANDOM, "direct: a zero never passes at u = 0",
            ("return u * denominator < numerator", "return u * denominator <= numerator")),
    _mutant("row b using row b' length", "counts every row's proposals as the first row's", TOKEN,
            "enumeration: token, wavering draft, ragged pair",
            ("bonus = accepted == torch.tensor(draft.counts, device=p.device)", "bonus = accepted == draft.counts[0]")),
    _mutant("row b using row b' length", "commits the first row's acceptance for every row", LOOP,
            "enumeration: match, greedy draft, ragged pair",
            ("[_emit(row, host[b],", "[_emit(row, host[0],")),
    _mutant("row b using row b' length", "masks every row by the shortest row's position", INPUTS,
            "greedy parity: ragged batch, gpt2",
            ("seen = slots <= positions[..., None]", "seen = slots <= positions.amin(0)[None, :, None]")),
    _mutant("temperature applied twice to the draft",
            "warps the draft's own law again (q is honest: only acceptance suffers)", MODEL,
            "acceptance of draft = target: T = 0.8",
            ("else self._warp.probs(scores)", "else self._warp.probs(self._warp.probs(scores).log())")),
    _mutant("tree q not renormalised", "draws a sibling from q without its elders and reports q", BRANCHING,
            "enumeration: siblings",
            ("laws.append(left)", "laws.append(q)")),
    _mutant("tree: elder sibling forgotten", "tries every sibling against p itself", TREE, "enumeration: siblings",
            ("rest = residual(left, q[:, i])", "rest = left")),
    _mutant("tree: elder sibling forgotten", "takes no residual after a sibling that is a function of the past", TREE,
            "enumeration: token, trees of best tokens",
            ("rest = residual(left, q[:, i])", "rest = left")),
    _mutant("tree: wrong parent", "goes on at the first node below that is right, whoever its parent is", TREE,
            "enumeration: match, trees of best tokens",
            ("if parents[b][i] == at[b] and tokens", "if tokens")),
    _mutant("tree: wrong parent", "tries the children of any node", TREE, "enumeration: token, trees of best tokens",
            ("and parents[b][i] == at[b] for b", "and parents[b][i] >= min(at[b], 0) for b")),
    _mutant("tree: wrong parent", "a node sees the node before it instead of its parent", TREES,
            "greedy parity: trees, llama",
            ("lines[parents[node] + 1 if node < len(parents) else 0]", "lines[node]")),
    _mutant("tree: wrong parent", "draws the bonus after the last node instead of the last one kept", TREE,
            "enumeration: token, trees of best tokens",
            ("torch.where(below[:, None], p[:, i + 1],", "torch.where(below[:, None], p[:, -1],")),
    _mutant("tree: wrong position", "a node's position is its slot", INPUTS, "greedy parity: trees, llama",
            ("positions = tree.depths.to(self._device)",
             "positions = torch.arange(tree.width + 1, device=self._device)")),
    _mutant("tree: wrong position", "a window ends by slots", INPUTS, "greedy parity: trees, windows",
            ("seen &= depth[:, None] > depths[..., None] - window",
             "seen &= fed[:, None] > torch.arange(count, device=device)[:, None] - window")),
    _mutant("tree: sibling leak", "a node sees all nodes before it", INPUTS, "greedy parity: trees, llama",
            ("seen = sees.gather(2, node[:, None].expand(-1, count, -1))",
             "seen = sees.new_ones(count, count).tril().expand_as(sees).gather(2, "
             "node[:, None].expand(-1, count, -1))")),
    _mutant("tree: wrong path kept", "keeps the keys of the first nodes", TREES, "greedy parity: trees, llama",
            ("sources.append([root + 1 + node for node in path] + padding)",
             "sources.append([root + 1 + i for i in range(len(path))] + padding)")),
    _mutant("tree: wrong path kept", "keeps the first row's path in every row", LOOP, "greedy parity: trees, llama",
            ("paths = [part.path for part in record]", "paths = [record[0].path for part in record]")),
    _mutant("tree: wrong path kept", "emits the leading nodes", LOOP, "enumeration: match, trees of best tokens",
            ("kept = [read.drafted[node] for node in path]", "kept = read.drafted[: read.accepted]")),
    _mutant("processors on the committed prefix only", "in a tree, on the nodes before instead of the path", WARPERS,
            "enumeration: token, trees of best tokens, processors",
            ("drafted[:, path].to", "drafted[:, : len(path)].to")),
]  # fmt: skip

HEADER = """# Faults the suite was seen to catch

Each fault has been shipped by somebody. `tests/test_mutants.py` puts it into the real code, one at a time, and the
check named here must then fail; on the real code it passes. `enumeration` walks every outcome of the real loop on
table models (`tests/test_enumeration.py`), `acceptance` and `greedy parity` run tiny random Hugging Face models with
real caches (`tests/test_monte_carlo.py`, `tests/mutant_checks.py`), `direct` calls one function (`tests/verify`,
`tests/test_randomness.py`).

This file is made by `python tests/mutants.py`; a test compares them.

| fault | mutant | in | killed by |
|---|---|---|---|"""


def document() -> str:
    """The text of docs/mutants.md."""
    lines = [HEADER]
    for mutant in MUTANTS:
        what = mutant.what.replace("|", "\\|")
        lines.append(f"| {mutant.fault} | {what} | `{mutant.module}` | {mutant.killer} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(document(), end="")
