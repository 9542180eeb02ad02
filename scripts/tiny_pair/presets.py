"""Sizes and training lengths, one named preset per machine: `tiny` (two cores), `large` (a GPU), `smoke` (tests)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The shape of one Llama: `width` is the hidden size, `inner` the size between the feed-forward matrices.

    tied: whether one matrix serves as input and as output embedding. A model of one layer gains from two, and a second
    input embedding costs bytes but no time.
    """

    layers: int
    width: int
    inner: int
    heads: int
    tied: bool = True


@dataclass(frozen=True)
class Stage:
    """Length and rates of one training stage.

    steps: optimizer steps. chunks: chunks of `context` tokens per step. short_share: the first share of the steps, in
    which every chunk is cut into rows of `short_length` tokens (cheaper attention). muon_rate, adam_rate: peak
    learning rates. warmup: steps of linear warm-up; then the rates fall linearly to zero at the last step.
    """

    steps: int
    chunks: int
    short_share: float
    short_length: int
    muon_rate: float
    adam_rate: float
    warmup: int
    evaluate_every: int


@dataclass(frozen=True)
class Preset:
    """Everything that the scale of a run decides. `generated` counts the chunks of text written by the target."""

    vocab_size: int
    context: int
    target: Shape
    draft: Shape
    target_stage: Stage
    draft_stage: Stage
    generated: int
    evaluation_windows: int


PRESETS = {
    "tiny": Preset(
        vocab_size=4096,
        context=512,
        target=Shape(layers=16, width=192, inner=512, heads=4),
        draft=Shape(layers=1, width=192, inner=304, heads=4, tied=False),
        target_stage=Stage(1200, 8, 0.88, 256, 0.02, 3e-3, 60, 100),
        draft_stage=Stage(1200, 8, 0.0, 512, 0.02, 3e-3, 40, 100),
        generated=512,
        evaluation_windows=24,
    ),
    "large": Preset(
        vocab_size=4096,
        context=512,
        target=Shape(layers=24, width=512, inner=1408, heads=8),
        draft=Shape(layers=1, width=512, inner=1408, heads=8),
        target_stage=Stage(2000, 32, 0.88, 256, 0.02, 2e-3, 100, 250),
        draft_stage=Stage(3000, 32, 0.0, 512, 0.02, 2e-3, 100, 250),
        generated=8192,
        evaluation_windows=64,
    ),
    "smoke": Preset(
        vocab_size=320,
        context=32,
        target=Shape(layers=2, width=32, inner=64, heads=2),
        draft=Shape(layers=1, width=32, inner=64, heads=2, tied=False),
        target_stage=Stage(12, 4, 0.75, 16, 0.02, 3e-3, 2, 4),
        draft_stage=Stage(8, 4, 0.0, 32, 0.02, 3e-3, 2, 4),
        generated=8,
        evaluation_windows=2,
    ),
}
