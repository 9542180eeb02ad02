"""Advice as a value and in words. It holds what was measured and predicted; it measures nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from decoder.measure.forwards import ForwardCost
from decoder.measure.statistics import Interval

_APART = 1.25  # prediction and measurement differ by more than noise explains


@dataclass(frozen=True)
class Candidate:
    """One drafter at its best draft length.

    alpha: accepted / tested (None: it never proposed).  cost_ratio: c, a draft step / a plain target step.
    verify_ratio: t_v(k + 1) / t_v(1).  without_proposal: share of rounds in which it proposed nothing.
    without_obstacle: the predicted speed-up if the draft were free, verification flat, half of the rejections gone,
        no round without a proposal, or the loop's own time nothing.
    """

    drafter: str
    k: int
    predicted: float
    predicted_by_k: Mapping[int, float]
    alpha: float | None
    cost_ratio: float
    verify_ratio: float
    tokens_per_iteration: float
    without_proposal: float
    without_obstacle: Mapping[str, float]
    measured: Interval | None = None

    def obstacle(self) -> str:
        """What stands in the way most, in words."""
        if self.alpha is None:
            return f"{self.drafter!r} found nothing to propose in these prompts"
        worst, freed = next(iter(self.without_obstacle.items()))
        if worst == "supply":
            words = f"{self.drafter!r} had nothing to propose in {100 * self.without_proposal:.0f} % of the rounds"
        elif worst == "acceptance":
            words = (
                f"only {100 * self.alpha:.0f} % of the tested drafts were accepted, so a round with k={self.k} "
                f"brought {self.tokens_per_iteration:.2f} tokens"
            )
        elif worst == "draft":
            words = f"one draft step costs {self.cost_ratio:.2f} of a plain step of the target"
        elif worst == "verification":
            words = f"checking {self.k + 1} tokens at once costs {self.verify_ratio:.2f} times one token on this device"
        else:
            words = "the loop's own work between forwards weighs much beside a model this small"
        ideal = {
            "acceptance": "with half of the rejections gone",
            "supply": "with proposals in all of them",
            "draft": "with a free draft",
            "verification": "if that were free",
            "overhead": "without it",
        }[worst]
        return f"{words} ({ideal} the prediction would be {freed:.2f}×)"


def _times(interval: Interval | None, prompts: int) -> str:
    if interval is None:
        return "not measured"
    if interval.lower is None or interval.upper is None:
        return f"measured {interval.ratio:.2f}×, on one prompt only"
    return (
        f"measured {interval.ratio:.2f}×, {100 * interval.level:.0f} % interval {interval.lower:.2f} to "
        f"{interval.upper:.2f} over {prompts} prompts"
    )


@dataclass(frozen=True)
class Advice:
    """The answer, as values to pass on: `spec.generate(prompt, drafter=advice.drafter, k=advice.k)`.

    When speculation does not pay, `drafter` is None and `k` 0, which is plain decoding; `best` is the least bad
    candidate.
    """

    speculate: bool
    drafter: str | None
    k: int
    best: Candidate
    candidates: tuple[Candidate, ...]
    target: ForwardCost
    prompts: int
    plain_tokens_per_second: float

    @property
    def predicted_speedup(self) -> float:
        """Of the best candidate."""
        return self.best.predicted

    @property
    def measured_speedup(self) -> float:
        """Of the best candidate."""
        assert self.best.measured is not None
        return self.best.measured.ratio

    @property
    def reasons(self) -> tuple[str, ...]:
        """For each candidate, what limits it most."""
        return tuple(each.obstacle() for each in self.candidates)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, ready for JSON."""
        names = ("speculate", "drafter", "k", "prompts", "plain_tokens_per_second")
        return {name: getattr(self, name) for name in names} | {
            "best": self.best.drafter,
            "predicted_speedup": self.predicted_speedup,
            "measured_speedup": self.measured_speedup,
            "reasons": list(self.reasons),
            "candidates": [asdict(each) for each in self.candidates],
            "target": self.target.to_dict(),
        }

    def __str__(self) -> str:
        best = self.best
        if self.speculate:
            head = (
                f"Yes: speculate with drafter={best.drafter!r} and k={best.k}. Expect {self.measured_speedup:.2f} × "
                f"plain decoding ({self.plain_tokens_per_second:.1f} tokens/s): predicted {best.predicted:.2f}×, "
                f"{_times(best.measured, self.prompts)}."
            )
        else:
            head = (
                f"No: plain decoding ({self.plain_tokens_per_second:.1f} tokens/s) is as fast or faster here. The best "
                f"that was tried, drafter={best.drafter!r} with k={best.k}: predicted {best.predicted:.2f}×, "
                f"{_times(best.measured, self.prompts)}."
            )
        return "\n".join([head, *(f"- {line}" for line in self._lines())])

    def _lines(self) -> list[str]:
        lines = []
        for each in self.candidates:
            if each.alpha is not None:
                lines.append(
                    f"{each.drafter!r}: {100 * each.alpha:.0f} % of tested drafts accepted, "
                    f"{each.tokens_per_iteration:.2f} tokens per iteration at k={each.k}, a draft step costs "
                    f"{each.cost_ratio:.3f} of a target step; predicted {each.predicted:.2f}×, "
                    f"{_times(each.measured, self.prompts)}"
                )
            lines.append(f"{'what limits it' if self.speculate else 'why not'}: {each.obstacle()}")
        apart = self.measured_speedup / self.predicted_speedup
        if not 1 / _APART < apart < _APART:
            lines.append(
                f"the measured speed-up is {apart:.2f} of the predicted one: other work on this machine, or prompts "
                "too few and short; measure again, and trust the measured one"
            )
        one = 1e3 * self.target.seconds(1)
        steps = ", ".join(f"{m}: {1e3 * self.target.seconds(m) / one:.2f}×" for m in sorted(self.target.table) if m > 1)
        lines.append(f"a target forward of one token takes {one:.2f} ms here; of more tokens at once {steps}")
        return lines
