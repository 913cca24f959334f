"""A tool that measures coverage sees the lines of compiled code that were run."""

from __future__ import annotations

import trace
from collections.abc import Callable
from typing import Any

import torch
from construct_cases import CountingBackend
from dovetail_capture import export, optimize

FILE = __file__


def _helper(x: Any, flag: bool) -> Any:
    y = x + 1
    if flag:
        y = y * 2
    else:
        y = y * 3
    return y


def _program(x: Any, flag: bool) -> Any:
    z = _helper(x, flag)
    if not flag:
        z = z - 1
    return [z, z.sin()]


def _broken(x: Any) -> Any:
    y = x.sin()
    if y.sum() > 100:
        y = y * 2
    return y.cos()


def _lines(run: Callable[[], Any]) -> set[int]:
    tracer = trace.Trace(count=1, trace=0)
    tracer.runfunc(run)
    return {line for file, line in tracer.results().counts if file == FILE}


def _of(function: Any) -> range:
    code = function.__code__
    return range(code.co_firstlineno + 1, max(line for *_, line in code.co_lines() if line) + 1)


def test_lines_are_those_of_eager() -> None:
    x = torch.ones(3)
    wanted = _lines(lambda: _program(x, True))
    backend = CountingBackend()
    compiled = optimize(_program, backend)
    for _ in range(2):  # (the call that compiles, and one of compiled code)
        seen = _lines(lambda: compiled(x, True))
        for function in (_program, _helper):
            assert seen & {*_of(function)} == wanted & {*_of(function)}
    assert len(backend.graphs) == 1
    untaken = _of(_program)[2]  # z = z - 1
    assert untaken not in seen
    assert untaken in _lines(lambda: compiled(x, False))


def test_lines_around_a_break() -> None:
    x = torch.ones(3)
    wanted = _lines(lambda: _broken(x)) & {*_of(_broken)}
    compiled = optimize(_broken, CountingBackend())
    for _ in range(2):
        assert _lines(lambda: compiled(x)) & {*_of(_broken)} == wanted


def test_what_is_compiled_without_a_tool_visits_nothing() -> None:
    x = torch.ones(3)
    compiled = optimize(_program, CountingBackend())
    compiled(x, True)
    assert not _lines(lambda: compiled(x, True)) & {*_of(_helper)}


def test_what_is_exported_visits_nothing() -> None:
    exported = []
    x = torch.ones(3)
    _lines(lambda: exported.append(export(_helper, (x, True))))
    assert torch.equal(exported[0](x, True), _helper(x, True))
