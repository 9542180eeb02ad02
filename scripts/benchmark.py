#!/usr/bin/env python
"""Compare ways to generate on the same prompts; see --help. The code is decoder/bench/benchmark_command.py."""

import sys

from decoder.bench.benchmark_command import main

if __name__ == "__main__":
    sys.exit(main())
