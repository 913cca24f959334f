"""Warnings of a captured program name the lines that they name in eager, as often."""

# ruff: noqa: B028  (programs as users write them)

from __future__ import annotations

import sys
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_capture import optimize, run_graph
from dovetail_capture.environment.callers import warn_caller
from dovetail_capture.reporting.program_warnings import OperatorWarnings


def of_the_caller(x: torch.Tensor, text: str, level: int = 2) -> torch.Tensor:
    warnings.warn(text, DeprecationWarning, stacklevel=level)
    return x + 1


def here(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    warnings.warn("careful")
    return y * 2


def in_a_helper(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y = of_the_caller(y, "old")
    return of_the_caller(y, "older", level=1)


def above(x: torch.Tensor) -> torch.Tensor:
    y = of_the_caller(x, "of whoever calls", level=3)
    warnings.warn("of him, too", stacklevel=2)
    return y * 2


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for place in range(3):
        x = x + place
        warnings.warn(f"turn {place % 2}")
    return x


def given_an_object(x: torch.Tensor) -> torch.Tensor:
    warnings.warn(FutureWarning("soon"), stacklevel=1)
    return x + 1


def behind_a_break(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    print(end="")
    x = x * 2
    warnings.warn("behind")
    return x - 1


def skips_a_file(x: torch.Tensor) -> torch.Tensor:
    named: Any = {"skip_file_prefixes": (__file__[:-3],)} if sys.version_info >= (3, 12) else {}
    warnings.warn("elsewhere", stacklevel=2, **named)
    return x + 1


PROGRAMS = [here, in_a_helper, above, in_a_loop, given_an_object, behind_a_break, skips_a_file]


def said(fn: Callable[..., Any], action: Any) -> list[tuple[Any, ...]]:
    """What three calls warn of."""
    globals().pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter(action)
        for _ in range(3):
            fn(torch.ones(2))
    return [(w.category, str(w.message), w.filename, w.lineno) for w in found]


@pytest.mark.parametrize("action", ["default", "always", "once", "ignore", "module"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_a_warning_is_for_the_line_that_it_is_for_in_eager(program: Any, action: str) -> None:
    compiled = optimize(program, backend=run_graph)
    assert said(compiled, action) == said(program, action)


def test_a_module_that_is_not_loaded_by_its_name_warns_once_for_a_line() -> None:
    module = types.ModuleType("not_loaded")
    vars(module).update(warnings=warnings)
    exec("def helper(x):\n    warnings.warn('inner')\n    return x + 1", vars(module))
    helper = vars(module)["helper"]

    def program(x: torch.Tensor) -> torch.Tensor:
        return helper(x) * 2

    compiled = said(optimize(program, backend=run_graph), "default")
    assert compiled == said(program, "default")


def handled(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    try:
        warnings.warn("refused")
    except UserWarning:
        return y * 3
    return y * 2


def test_a_warning_that_is_an_error_is_raised_where_the_program_handles_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = optimize(handled, backend=run_graph)
        assert torch.equal(compiled(torch.ones(2)), handled(torch.ones(2)))
        with pytest.raises(UserWarning, match="careful") as raised:
            optimize(here, backend=run_graph)(torch.ones(2))
        assert [entry.name for entry in raised.traceback][1:] == ["here"]
        assert raised.traceback[-1].lineno == here.__code__.co_firstlineno + 1
        with pytest.raises(UserWarning, match="careful"):
            optimize(here, backend=run_graph, fullgraph=True)(torch.ones(2))


def compiled_quietly(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """Operators that ran on fake tensors do not warn again where kernels run."""

    def run(*inputs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return gm.forward(*inputs)

    return run


def old_softmax(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return torch.nn.functional.softmax(y) * 2


def of_other_sizes(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(x, x[:1]) + 1


def output_of_another_size(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(3)
    torch.add(x, 1, out=out)
    return out + 1


def old_behind_a_break(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    print(end="")
    return torch.nn.functional.softmax(x) * 2


def old_twice(x: torch.Tensor) -> torch.Tensor:
    x = torch.nn.functional.softmax(x)
    return torch.nn.functional.softmax(x) * 2


OPERATORS = [old_softmax, of_other_sizes, output_of_another_size, old_behind_a_break, old_twice]


@pytest.mark.parametrize("action", ["default", "once", "ignore", "module"])
@pytest.mark.parametrize("program", OPERATORS, ids=lambda fn: fn.__name__)
def test_torchs_own_warnings_are_for_the_programs_line(program: Any, action: str) -> None:
    compiled = optimize(program, backend=compiled_quietly)
    filters, show = warnings.filters, warnings.showwarning
    places, asked = ([w[:1] + w[2:] for w in said(fn, action)] for fn in (compiled, program))
    assert places == asked  # (of an output that is resized, fake tensors tell in other words)
    assert (warnings.filters, warnings.showwarning) == (filters, show)


@pytest.mark.parametrize("program", OPERATORS, ids=lambda fn: fn.__name__)
def test_an_operators_warning_that_is_an_error_is_raised_at_its_line(program: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lines = []
        for fn in (program, optimize(program, backend=compiled_quietly)):
            with pytest.raises(UserWarning) as raised:
                fn(torch.ones(2))
            lines.append([t.lineno for t in raised.traceback if t.name == program.__name__])
    assert lines[0] == lines[1]


def test_threads_that_do_not_capture_keep_their_filters() -> None:
    noticed: list[str] = []

    def elsewhere() -> None:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("ignore", DeprecationWarning)
            with OperatorWarnings():
                other = threading.Thread(target=lambda: (warnings.warn("seen"), quiet()))
                other.start()
                other.join()
        noticed.extend(str(w.message) for w in found)

    def quiet() -> None:
        warnings.warn("not seen", DeprecationWarning)

    elsewhere()
    assert noticed == ["seen"]


def test_what_a_compiler_says_for_the_programs_line_is_said() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with OperatorWarnings():
            warn_caller("a graph runs uncompiled", RuntimeWarning)
            torch.nn.functional.softmax(torch.ones(2))
    assert [(str(w.message), w.filename) for w in found][:1] == [
        ("a graph runs uncompiled", __file__)
    ]


def test_a_block_that_an_interrupt_left_open_ends_with_the_capture() -> None:
    """A handler of signals may raise between the beginning of a block and what ends it."""

    def interrupted(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        OperatorWarnings().__enter__()
        raise KeyboardInterrupt

    before = warnings.filters, warnings.showwarning
    with pytest.raises(KeyboardInterrupt):
        optimize(old_softmax, backend=interrupted)(torch.ones(2))
    assert (warnings.filters, warnings.showwarning) == before
    places = [said(f, "once") for f in (optimize(old_softmax, compiled_quietly), old_softmax)]
    assert places[0] == places[1]
