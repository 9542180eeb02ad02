"""Run experiments: each writes CSV, pictures and a README under experiments/NN-name/, and resumes when interrupted.

    python scripts/sweep.py 02            # draft length on the bundled pair
    python scripts/sweep.py 03a 03b       # theory against the random toy pair
    python scripts/sweep.py --list

Measure on an otherwise idle machine: on two cores another computing process makes a forward look ten times slower.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from decoder.bench.experiments import EXPERIMENTS
from decoder.bench.sweep import sweep


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", choices=[[], *sorted(EXPERIMENTS)], metavar="NN")
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--out", type=Path, default=Path("experiments"))
    options = parser.parse_args(argv)
    if options.list or not options.experiments:
        for number in sorted(EXPERIMENTS):
            print(f"{number}  {EXPERIMENTS[number]().question}")
        return 0
    for number in options.experiments:
        print(sweep(EXPERIMENTS[number](), options.out, progress=sys.stderr.isatty()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
