"""The experiments of `scripts/experiment.py`, one file each."""

from collections.abc import Callable

from lab.experiments.batch import BatchSize
from lab.experiments.draft_length import DraftLength
from lab.experiments.quantised import QuantisedDrafts
from lab.experiments.sequence_length import SequenceLength
from lab.experiments.speedups import SpeedupTable
from lab.experiments.toy import ToyLength, ToyTemperature
from lab.experiments.verifiers import TokenAgainstBlock
from lab.experiments.where_time_goes import WhereTimeGoes
from lab.runner import Experiment

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
