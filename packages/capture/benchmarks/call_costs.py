"""What the frame hook costs: nanoseconds per call.

python packages/capture/benchmarks/call_costs.py
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from dovetail_capture import _frame_hook
from dovetail_capture.api import optimize, run_graph


def _per_call(function: Callable[..., Any], argument: Any, count: int, rounds: int = 7) -> float:
    """Best of `rounds`, the empty loop subtracted, in nanoseconds."""
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(count):
            function(argument)
        middle = time.perf_counter()
        for _ in range(count):
            pass
        best = min(best, middle - started - (time.perf_counter() - middle))
    return best / count * 1e9


def _identity(x: Any) -> Any:
    return x


def _hooked(answer: Callable[[CodeType], Any]) -> _frame_hook.Switched:
    context = _frame_hook.Context(lambda code, func, args: answer(code))

    def loop(function: Callable[..., Any], argument: Any, count: int) -> float:
        return _per_call(function, argument, count)

    _frame_hook.skip_code(_per_call.__code__)
    _frame_hook.skip_code(loop.__code__)
    return _frame_hook.Switched(loop, context)


def main() -> None:
    """Print the table."""
    count = 300_000
    copy = _identity.__code__.replace(co_firstlineno=_identity.__code__.co_firstlineno + 1)
    rows = [("plain call", _per_call(_identity, 1, count))]
    skipping = _hooked(lambda code: _frame_hook.SKIP)
    rows.append(("hook on, code marked skip", skipping(_identity, 1, count)))
    hitting = _hooked(lambda code: (_always, copy))
    rows.append(("hook on, hit with a Python guard", hitting(_identity, 1, count)))
    _frame_hook.skip_code(_always.__code__)
    add = optimize(lambda x: x + 1, run_graph)
    x = torch.ones(4)
    add(x)
    rows.append(("x + 1, eager", _per_call(lambda x: x + 1, x, count // 10)))
    rows.append(
        ("x + 1, captured (wrapper, guards, graph.forward)", _per_call(add, x, count // 10))
    )
    same = optimize(_first_of_two, run_graph)
    same((x, x))
    rows.append(("no graph: wrapper, native guards, plain frame", _per_call(same, (x, x), count)))
    print(f"CPython {platform.python_version()}, torch {torch.__version__}: ns per call")
    for name, nanoseconds in rows:
        print(f"{nanoseconds:10.0f}  {name}")


def _always(args: tuple[Any, ...], func: Any) -> bool:
    return True


def _first_of_two(pair: Any) -> Any:
    return pair[0]


if __name__ == "__main__":
    main()
