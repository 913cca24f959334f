"""Runs one of CPython's own test modules with every eligible frame swapped for a copy of its code.

`python swap_every_frame.py test_call [--plain]` prints the names of the tests that failed, and on
standard error how many ran and how many code objects were swapped.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import sys
import unittest

# The hook alone, without the package around it: torch takes long to import.
found = importlib.util.find_spec("dovetail_capture")
sys.path.insert(0, found.submodule_search_locations[0])
hook = importlib.import_module("_frame_hook")


def always(args, func):
    return True


def main(name, plain):
    module = importlib.import_module(f"test.{name}")
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    hook.skip_code(always.__code__)
    swapped = []

    def miss(code, func, args):
        swapped.append(code)
        return always, code.replace(co_stacksize=code.co_stacksize + 7)

    def run():
        return unittest.TextTestRunner(stream=io.StringIO(), verbosity=0).run(suite)

    result = run() if plain else hook.Switched(run, hook.Context(miss))()
    bad = {str(test).split(" ")[0] for test, _ in [*result.failures, *result.errors]}
    print(*sorted(bad))
    print(f"{result.testsRun} tests, {len(swapped)} code objects swapped", file=sys.stderr)
    return 0 if plain or len(swapped) > 20 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--plain" in sys.argv[2:]))
