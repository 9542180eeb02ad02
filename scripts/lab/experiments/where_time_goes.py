"""Experiment 08: where an iteration's time goes, and what a drafted token costs beyond its bare forward.

Phases come from `spec.profile`, pooled over prompts. A draft forward is also timed by itself, again and again, and in
turn with the target's, which sweeps the processor's caches: the difference between these two is not the loop's to save.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decoder.api import SpeculativeDecoder
from decoder.measure.forwards import forward_cost, round_cost
from decoder.measure.phases import PHASES
from decoder.measure.prompts import OWN_PROMPTS, as_ids
from decoder.measure.statistics import median
from decoder.report.figures import filling, new_figure, save
from lab.runner import Row

SHOWN = [phase for phase in PHASES if phase != "prefill"]
GROUPS = (  # as many as there are fillings that differ
    *(("draft forwards",), ("drafting",), ("target forwards",), ("cache",)),
    *(("warping", "verification"), ("host", "controller")),
)


def _column(phase: str) -> str:
    return phase.replace(" ", "_") + "_ms"


class WhereTimeGoes:
    number, name = "08", "where-time-goes"
    question = (
        "Where does an iteration's time go, what does a drafted token cost beyond its bare forward, and how much of a "
        "forward is fixed? (Bundled pair.)"
    )
    columns = (
        *("overhead_percent", *map(_column, SHOWN)),
        *("draft_step_ms", "draft_alone_ms", "draft_in_turn_ms"),
        *("target_fixed_ms", "target_per_token_ms", "draft_fixed_ms", "draft_per_token_ms"),
    )
    hidden = (
        "dtype",
        "warping_ms",
        "controller_ms",
        "draft_step_ms",
        "draft_alone_ms",
        "draft_in_turn_ms",
        "target_fixed_ms",
        "target_per_token_ms",
        "draft_fixed_ms",
        "draft_per_token_ms",
    )

    def __init__(self, prompts: int = 3, tokens: int = 64, repeats: int = 1) -> None:
        self._prompts, self._tokens, self._repeats = prompts, tokens, repeats
        self._specs: dict[str, SpeculativeDecoder] = {}

    def points(self) -> list[Row]:
        return [{"dtype": "float32", "temperature": t, "k": k} for t in (0.0, 1.0) for k in (0, 4)]

    def _spec(self, dtype: str) -> SpeculativeDecoder:
        if dtype not in self._specs:
            self._specs[dtype] = SpeculativeDecoder(dtype=dtype, top_p=1.0)
        return self._specs[dtype]

    def measure(self, point: Row) -> Row:
        spec = self._spec(point["dtype"])
        prompts = as_ids(spec, OWN_PROMPTS[: self._prompts])
        options: dict[str, Any] = {
            "k": point["k"],
            "temperature": point["temperature"],
            "max_new_tokens": self._tokens,
            "eos_token_id": None,
        }
        phases: dict[str, float] = defaultdict(float)
        overheads, steps = [], []
        iterations = 0
        for repeat in range(self._repeats):
            for prompt in prompts:
                profile = spec.profile(list(prompt), widths=(1,), repeats=1, seed=repeat, **options)
                result = spec.generate(list(prompt), seed=repeat, **options)
                iterations += profile.iterations
                for phase in SHOWN:
                    phases[phase] += profile.seconds(phase)
                overheads.append(result.overhead_s / result.wall_s)
                if result.num_draft_tokens:
                    steps.append(result.draft_s / result.num_draft_tokens)
        row = {_column(phase): 1e3 * phases[phase] / iterations for phase in SHOWN}
        row["overhead_percent"] = 100 * median(overheads)
        return row | self._forwards(spec, prompts[0], point["k"], steps)

    def _forwards(self, spec: SpeculativeDecoder, prompt: Sequence[int], k: int, steps: Sequence[float]) -> Row:
        """The bare forwards, timed outside the loop; those of the draft only where it drafts."""
        assert spec.draft_model is not None, "the bundled pair has a draft"
        target = forward_cost(spec.target_model, prompt)
        row: Row = {"target_fixed_ms": 1e3 * target.fixed_s, "target_per_token_ms": 1e3 * target.per_token_s}
        if k:
            draft = forward_cost(spec.draft_model, prompt)
            in_turn_s = round_cost(spec.target_model, spec.draft_model, prompt, k, repeats=60).draft_s
            row |= {"draft_fixed_ms": 1e3 * draft.fixed_s, "draft_per_token_ms": 1e3 * draft.per_token_s}
            row |= {"draft_alone_ms": 1e3 * draft.seconds(1), "draft_in_turn_ms": 1e3 * in_turn_s}
            row["draft_step_ms"] = 1e3 * median(steps)
        return {name: row.get(name) for name in self.columns[-7:]}

    def draw(self, rows: Sequence[Row], folder: Path) -> list[str]:
        figure, (axes,) = new_figure(9.0, 4.2)
        places = range(len(rows))
        left = [0.0] * len(rows)
        for index, group in enumerate(GROUPS):
            widths = [sum(row[_column(phase)] for phase in group) for row in rows]
            axes.barh(places, widths, left=left, label=", ".join(group), **filling(index))
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.set_yticks(list(places), [f"{r['dtype']}, T = {r['temperature']:g}, k = {r['k']}" for r in rows])
        axes.invert_yaxis()
        axes.set(xlabel="time of an iteration by phase [ms]")
        axes.legend(fontsize=8, ncols=2)
        save(figure, folder / "phases.png")
        return ["phases.png"]

    def reading(self, rows: Sequence[Row]) -> str:
        lines = ["What was changed, what it gained and what did not work: [optimisations.md](optimisations.md).", ""]
        for row in rows:
            if not row["k"]:
                continue
            step, alone, in_turn = row["draft_step_ms"], row["draft_alone_ms"], row["draft_in_turn_ms"]
            lines.append(
                f"- {row['dtype']}, T = {row['temperature']:g}, k = {row['k']}: {row['overhead_percent']:.1f} % of the "
                f"wall time is outside both models. In a round the draft's forwards take "
                f"{row['draft_forwards_ms']:.2f} ms and choosing its tokens {row['drafting_ms']:.2f}. A draft forward "
                f"takes {alone:.2f} ms by itself and {in_turn:.2f} in turn with the target's, which sweep the "
                f"processor's caches; a drafted token took {step:.2f} in runs at other moments. Of a target forward "
                f"{row['target_fixed_ms']:.1f} ms are fixed and {row['target_per_token_ms']:.2f} a token; of the "
                f"draft's {row['draft_fixed_ms']:.2f} and {row['draft_per_token_ms']:.3f}."
            )
        return "\n".join(lines)
