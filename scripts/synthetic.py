#!/usr/bin/env python
"""The measuring commands of `specdec` on SYNTHETIC models: real shapes, random weights, a dialled acceptance.

    python scripts/synthetic.py bench --geometry gpt2-large:distilgpt2 --acceptance 0.71 --k 4,auto --temperature 0
    python scripts/synthetic.py profile --geometry gpt2-large:distilgpt2 --acceptance 0.71 --picture profile.png

Parser, commands and accounts are the product's; only where models and prompts come from is this laboratory's
(`lab.setup`), so that the product need not know of models that nobody has.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from decoder.arguments import build_parser
from decoder.cli import run
from lab.setup import SOURCE, set_up


def parser() -> argparse.ArgumentParser:
    return build_parser("synthetic.py", __doc__ or "", SOURCE, ("bench", "sweep", "profile", "advise"))


def main(argv: Sequence[str] | None = None) -> int:
    return run(parser(), argv, set_up)


if __name__ == "__main__":
    sys.exit(main())
