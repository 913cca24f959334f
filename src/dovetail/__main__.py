"""`python -m dovetail SCRIPT [ARGUMENT ...]`: run a program, or `-m MODULE`, with its torch.compile
being Dovetail's (`dovetail.install()`). Under `DOVETAIL=0` it runs as it is."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

_USAGE = "usage: python -m dovetail (SCRIPT | -m MODULE) [ARGUMENT ...]"


def main() -> None:
    """Run the program named by the arguments as `__main__`."""
    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"]
    if is_module:
        arguments = arguments[1:]
    if not arguments:
        raise SystemExit(_USAGE)
    if os.environ.get("DOVETAIL") != "0":
        from dovetail.install import install

        install()
    sys.argv = arguments
    if is_module:
        sys.path[0] = str(Path.cwd())
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


main()
