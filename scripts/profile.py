#!/usr/bin/env python
"""Where an iteration's time goes; see --help. The code is decoder/bench/profile_command.py.

The standard library has a module of this name, which `cProfile` (and through it torch) imports; a script started from
this folder finds this file first. Imported as a module it therefore hands over to the standard library's.
"""

import sys

if __name__ == "__main__":
    from decoder.bench.profile_command import main

    sys.exit(main())
elif __name__ == "profile":
    import importlib.util
    import sysconfig
    from pathlib import Path

    spec = importlib.util.spec_from_file_location("profile", Path(sysconfig.get_path("stdlib")) / "profile.py")
    assert spec is not None and spec.loader is not None
    sys.modules["profile"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["profile"])
