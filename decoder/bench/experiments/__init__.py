"""L5: the experiments of `scripts/sweep.py`, one file each."""

from collections.abc import Callable

from decoder.bench.experiments.batch import BatchSize
from decoder.bench.experiments.draft_length import DraftLength
from decoder.bench.experiments.quantised import QuantisedDrafts
from decoder.bench.experiments.sequence_length import SequenceLength
from decoder.bench.experiments.speedups import SpeedupTable
from decoder.bench.experiments.toy import ToyLength, ToyTemperature
from decoder.bench.experiments.verifiers import TokenAgainstBlock
from decoder.bench.experiments.where_time_goes import WhereTimeGoes
from decoder.bench.sweep import Experiment

EXPERIMENTS: dict[str, Callable[..., Experiment]] = {
    "01": SpeedupTable,
    "02": DraftLength,
    "03a": ToyLength,
    "03b": ToyTemperature,
    "04": SequenceLength,
    "05": QuantisedDrafts,
    "06": TokenAgainstBlock,
    "07": BatchSize,
    "08": WhereTimeGoes,
}

__all__ = ["EXPERIMENTS"]
