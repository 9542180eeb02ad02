"""L5: `python -m decoder`."""

import sys

from decoder.cli import main

if __name__ == "__main__":
    sys.exit(main())
