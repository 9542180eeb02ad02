"""Experiment 04: how long the text already is. Time per token, acceptance, and where speculation starts or stops
paying, for the bundled pair up to its context of 512 tokens and for any model with a longer one, with any drafter.

Prompts are stretches of natural text, read from files the caller names; the same stretches, cut from the left, at every
length, so that all lengths continue at the same place. Times are of the decoding after the prefill:

    seconds(text) = median over repeats of (wall_s - prefill_s)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from decoder.api import SpeculativeDecoder
from decoder.measure.methods import OwnMethod, Plan
from decoder.measure.statistics import bootstrap_ratio, median
from decoder.measure.timing import Counts, Sample, interleaved
from decoder.report.figures import EDGE, new_figure, save, series
from decoder.types import SamplingParams
from lab.runner import Row

BUNDLED = (32, 64, 128, 256, 448)
LONG = (128, 256, 512, 1024, 2048, 4096)
PLACE = 0.4  # where in a book its continuation begins, as a share of its characters


def decoding_s(samples: Sequence[Sample], method: str) -> list[float]:
    """Seconds after the prefill of each prompt, median over repeats."""
    seconds: dict[int, list[float]] = {}
    for each in samples:
        if each.method == method:
            assert each.counts is not None
            seconds.setdefault(each.prompt, []).append(each.wall_s - each.counts.prefill_s)
    return [median(seconds[prompt]) for prompt in sorted(seconds)]


class SequenceLength:
    number, name = "04", "sequence-length"
    question = "How do time per token, acceptance and the gain from speculation change with the length of the text?"
    columns = (
        *("plain_ms_per_token", "speculative_ms_per_token", "speedup", "lower", "upper"),
        *("alpha", "tokens_per_iteration", "draft_percent", "prefill_s"),
    )
    hidden = ("drafter", "k", "draft_percent", "prefill_s")

    def __init__(
        self,
        texts: Sequence[Path] = (),
        model: str | None = None,
        drafter: str = "suffix",
        tokens: int = 48,
        repeats: int = 1,
    ) -> None:
        """texts: files of plain text.  model: hub name or folder, measured behind `drafter` beside the bundled pair."""
        self._texts, self._model, self._drafter = tuple(texts), model, drafter
        self._tokens, self._repeats = tokens, repeats
        self._decoders: dict[str, SpeculativeDecoder] = {}
        self._ids: dict[str, list[list[int]]] = {}

    def points(self) -> list[Row]:
        found: list[Row] = [{"pair": "bundled pair", "drafter": "model", "k": 4, "context": c} for c in BUNDLED]
        if self._model is not None:
            name = Path(self._model).name
            found += [{"pair": name, "drafter": self._drafter, "k": 8, "context": c} for c in LONG]
        return found

    def _decoder(self, point: Row) -> SpeculativeDecoder:
        pair = point["pair"]
        if pair not in self._decoders:
            target = "tiny" if pair == "bundled pair" else self._model
            assert target is not None
            self._decoders[pair] = SpeculativeDecoder(target, drafter=point["drafter"], temperature=0.0)
        return self._decoders[pair]

    def prompts(self, point: Row) -> list[list[int]]:
        """The last `context` tokens before the place of continuation, of each text.

        Raises:
            ValueError: no texts, or one that is too short.
        """
        if not self._texts:
            raise ValueError("experiment 04 continues natural text and was given none; name files with --texts.")
        pair, context = point["pair"], point["context"]
        if pair not in self._ids:
            tokenizer = self._decoder(point).tokenizer
            longest = 12 * max(BUNDLED if pair == "bundled pair" else LONG)  # characters, more than a token has
            before = []
            for path in self._texts:
                text = path.read_text(encoding="utf-8")
                place = int(PLACE * len(text))
                before.append(text[max(0, place - longest) : place])
            self._ids[pair] = [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in before]
        for path, ids in zip(self._texts, self._ids[pair], strict=True):
            if len(ids) < context:
                raise ValueError(f"{path} holds {len(ids)} tokens before its continuation, fewer than {context}.")
        return [ids[-context:] for ids in self._ids[pair]]

    def measure(self, point: Row) -> Row:
        prompts, spec = self.prompts(point), self._decoder(point)
        plan = Plan(self._tokens, SamplingParams(temperature=0.0))
        methods = [OwnMethod("plain", spec, plan), OwnMethod("speculative", spec, plan, point["k"])]
        samples = interleaved(methods, prompts, repeats=self._repeats)
        plain, mine = decoding_s(samples, "plain"), decoding_s(samples, "speculative")
        ratio = bootstrap_ratio(plain, mine)
        counts = sum((s.counts for s in samples if s.method == "speculative" and s.counts), Counts())
        after = len(prompts) * (self._tokens - 1)  # the prefill gives the first
        return {
            "plain_ms_per_token": 1e3 * sum(plain) / after,
            "speculative_ms_per_token": 1e3 * sum(mine) / after,
            "speedup": ratio.ratio,
            "lower": ratio.lower,
            "upper": ratio.upper,
            "alpha": counts.accepted / max(1, counts.tested),
            "tokens_per_iteration": counts.emitted_after_prefill / counts.iterations,
            "draft_percent": 100 * counts.draft_s / (counts.draft_s + counts.target_s + counts.overhead_s),
            "prefill_s": median([s.counts.prefill_s for s in samples if s.method == "plain" and s.counts]),
        }

    def draw(self, rows: Sequence[Row], folder: Path) -> list[str]:
        figure, panels = new_figure(11.0, 3.8, 3)
        largest = max(row["context"] for row in rows)
        contexts = [context for context in (32, 64, 128, 256, 512, 1024, 2048, 4096) if context <= max(largest, 64)]
        for index, pair in enumerate(dict.fromkeys(row["pair"] for row in rows)):
            mine = [row for row in rows if row["pair"] == pair]
            xs, look = [row["context"] for row in mine], series(index)
            panels[0].plot(xs, [row["plain_ms_per_token"] for row in mine], label=f"{pair}, plain", **look)
            hollow = look | {"linestyle": "--", "markerfacecolor": "white"}
            speculative = [row["speculative_ms_per_token"] for row in mine]
            panels[0].plot(xs, speculative, label=f"{pair}, speculative ({mine[0]['drafter']})", **hollow)
            errors = [
                [max(0.0, row["speedup"] - (row["lower"] or row["speedup"])) for row in mine],
                [max(0.0, (row["upper"] or row["speedup"]) - row["speedup"]) for row in mine],
            ]
            panels[1].errorbar(xs, [row["speedup"] for row in mine], yerr=errors, capsize=3, label=pair, **look)
            panels[2].plot(xs, [row["alpha"] for row in mine], label=pair, **look)
        panels[1].axhline(1.0, color=EDGE, linewidth=1, linestyle=":", label="plain decoding")
        times = [row[f"{name}_ms_per_token"] for row in rows for name in ("plain", "speculative")]
        panels[0].set(ylabel="time per token after the prefill [ms]", yscale="log")
        ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if min(times) / 2 <= t <= 2 * max(times)]
        panels[0].set_yticks(ticks, [str(tick) for tick in ticks])
        panels[0].set_yticks([], minor=True)
        panels[1].set(ylabel="speed-up over plain decoding [×]", ylim=(0, None))
        panels[2].set(ylabel="alpha [share]", ylim=(0, 1))
        for axes in panels:
            axes.set(xlabel="tokens of text before [tokens]", xscale="log")
            axes.set_xticks(contexts, [str(c) for c in contexts], rotation=60, fontsize=8)
            axes.set_xticks([], minor=True)
            axes.legend(fontsize=7)
        save(figure, folder / "sequence-length.png")
        return ["sequence-length.png"]

    def reading(self, rows: Sequence[Row]) -> str:
        lines = []
        for pair in dict.fromkeys(row["pair"] for row in rows):
            mine = [row for row in rows if row["pair"] == pair]
            first, last = mine[0], mine[-1]
            gains = [row["context"] for row in mine if row["speedup"] > 1.0]
            lines.append(
                f"**{pair}**, drafter {first['drafter']}, k = {first['k']}, greedy: from {first['context']} to "
                f"{last['context']} tokens of text a plain token goes from {first['plain_ms_per_token']:.1f} to "
                f"{last['plain_ms_per_token']:.1f} ms, alpha from {first['alpha']:.2f} to {last['alpha']:.2f}, the "
                f"speed-up from {first['speedup']:.2f} to {last['speedup']:.2f}. {_crossover(mine)} Speculation was "
                f"faster at {', '.join(map(str, gains)) if gains else 'none of the lengths'}."
            )
        lines.append(
            f"{len(self._texts) or 'The same'} stretches of book text, the same place continued at every length, "
            f"{self._tokens} new tokens. Speed-ups: decoding only, without the prefill (its seconds are a column, the "
            "plain run's); intervals are over the texts, and few texts make them rough."
        )
        return "\n\n".join(lines)


def _crossover(rows: Sequence[Row]) -> str:
    """Between which neighbouring lengths the speed-up passes 1."""
    found = [
        f"between {low['context']} and {high['context']}"
        for low, high in pairwise(rows)
        if (low["speedup"] > 1.0) != (high["speedup"] > 1.0)
    ]
    return f"It crosses plain decoding {' and '.join(found)}." if found else "It does not cross plain decoding."
