"""Run experiments: each writes CSV, pictures and a README under experiments/NN-name/, and resumes when interrupted.

    python scripts/experiment.py 01            # collects what bench and measure_drafters.py have written
    python scripts/experiment.py 02            # draft length on the bundled pair
    python scripts/experiment.py 03a 03b       # theory against the random toy pair
    python scripts/experiment.py 04 --texts BOOK.txt --model FOLDER     # text length, on your own texts and model
    python scripts/experiment.py --list

Measure on an otherwise idle machine: on two cores another computing process makes a forward look ten times slower.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab.experiments import EXPERIMENTS
from lab.runner import run

OF_04 = ("texts", "model", "drafter")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("experiments", nargs="*", choices=[[], *sorted(EXPERIMENTS)], metavar="NN")
    made.add_argument("--list", action="store_true", help="say what there is")
    made.add_argument("--texts", type=Path, nargs="+", help="04: plain text files to continue")
    made.add_argument("--model", help="04: hub name or folder of a model with a long context, beside the bundled pair")
    made.add_argument("--drafter", help="04: what drafts for that model (default suffix)")
    made.add_argument("--out", type=Path, default=Path("experiments"))
    return made


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    if options.list or not options.experiments:
        for number in sorted(EXPERIMENTS):
            print(f"{number}  {EXPERIMENTS[number]().question}")
        return 0
    given = {name: value for name in OF_04 if (value := getattr(options, name)) is not None}
    if given and "04" not in options.experiments:
        parser().error(f"--{next(iter(given))} is an option of experiment 04, which is not among those named")
    try:
        for number in options.experiments:
            own = {"01": {"root": options.out}, "04": given}.get(number, {})
            experiment = EXPERIMENTS[number](**own)
            print(run(experiment, options.out, progress=sys.stderr.isatty()))
    except ValueError as error:
        print(f"experiment.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
