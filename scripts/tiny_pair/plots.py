"""The learning curves as one picture."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from .loop import Row


def plot_curves(path: Path, target: list[Row], draft: list[Row]) -> None:
    """Write a PNG: bits per byte of the target on the left, acceptance rates of the draft on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    tokens = [row["tokens"] / 1e6 for row in target]
    left.plot(tokens, [row["bits_per_byte"] for row in target], marker=".", color="tab:blue")
    left.set(title="Target", xlabel="million tokens", ylabel="bits per byte, held-out books", yscale="log")
    left.yaxis.set_major_formatter("{x:.2f}")
    left.yaxis.set_minor_formatter("{x:.2f}")
    tokens = [row["tokens"] / 1e6 for row in draft]
    for key, label in (("alpha_sampled", "temperature 1: sum of min(p, q)"), ("alpha_greedy", "greedy: same token")):
        right.plot(tokens, [row[key] for row in draft], marker=".", label=label)
    right.set(title="Draft", xlabel="million tokens", ylabel="acceptance rate, held-out prompts", ylim=(0, 1))
    right.legend(loc="lower right")
    for axes in (left, right):
        axes.grid(alpha=0.3, which="both")
    figure.savefig(path, dpi=110)
    plt.close(figure)
