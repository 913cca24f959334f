"""Errors inside the compiler: a frame, or a graph, runs uncompiled, with a warning, and nothing of
the program's state is changed; errors of the program stay errors."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable
from typing import Any

import dovetail_capture.frames.context as context_module
import pytest
import torch
from dovetail_capture import BackendError, BackendTraits, optimize, skip
from dovetail_capture.errors import InternalError
from dovetail_capture.reporting.failures import InternalErrorWarning, UncompiledWarning
from dovetail_guards.guard_set import GuardSet
from dovetail_prims.node_facts import Refusal
from torch.fx import GraphModule

SEEN: list[int] = []


def function(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    SEEN.append(len(SEEN))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.nn.functional.dropout(x @ x, 0.5)
    return y.float() * scale


class Compiler:
    """A backend that is part of the compiler, and fails so."""

    backend_traits = BackendTraits(symbolic=True, compiler=True)

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        torch.set_grad_enabled(False)
        torch.autocast("cpu").__enter__()
        torch.rand(3)
        raise self.error


def breaks(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a mistake")


def broken_at(stage: str, patch: pytest.MonkeyPatch) -> Any:
    """A backend, and one stage that fails."""
    if stage == "backend":
        return Compiler(AssertionError("a mistake"))
    if stage == "capture":
        from dovetail_capture.interpreter.attempts import finished

        patch.setattr(finished, "relate_inputs", breaks)
    elif stage == "guards":
        patch.setattr(GuardSet, "compile", breaks)
    elif stage == "replacement":
        patch.setattr(context_module, "build_replacement", breaks)
    else:
        known, ours = skip.is_skipped, function.__code__
        patch.setattr(skip, "is_skipped", lambda code: breaks() if code is ours else known(code))
    return lambda gm, inputs: gm.forward


STAGES = ["backend", "capture", "guards", "replacement", "answer"]


def state() -> tuple[Any, ...]:
    nesting = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        nesting,
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        torch._C._is_torch_function_enabled(),
    )


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_fails_costs_speed_only(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = broken_at(stage, monkeypatch)
    x = torch.randn(4, 4)
    results = []
    before = state()
    compiled = optimize(function, backend, on_error="run_uncompiled")
    for call in (function, compiled):
        SEEN.clear()
        torch.manual_seed(0)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = [call(x), call(x, 3.0), call(x)]
        results.append((found, torch.get_rng_state(), [*SEEN]))
        assert state() == before
    for ours, theirs in zip(results[1][0], results[0][0], strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(results[0][1], results[1][1]) and results[0][2] == results[1][2]
    (warning,) = [w for w in told if issubclass(w.category, InternalErrorWarning)]
    assert warning.filename == __file__
    text = str(warning.message)
    assert "function" in text and __file__ in text and "a mistake" in text and "torch 2" in text
    failures = compiled.capture_context.log.failures
    full = failures[0].in_full()
    assert "Traceback" in full and "AssertionError: a mistake" in full and "Python 3" in full
    assert ("def forward" in full) == (stage == "backend")


@pytest.mark.parametrize("stage", STAGES)
def test_it_is_raised_where_that_is_asked_for(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = optimize(function, broken_at(stage, monkeypatch), on_error="raise")
    before = state()
    SEEN.clear()
    with pytest.raises((InternalError, BackendError), match="a mistake"):
        compiled(torch.randn(4, 4))
    assert not SEEN and state() == before


@pytest.mark.parametrize("stage", STAGES)
def test_a_whole_graph_that_was_asked_for(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured graph runs uncompiled; without one, there is nothing to give."""
    backend = broken_at(stage, monkeypatch)
    compiled = optimize(function, backend, fullgraph=True, on_error="run_uncompiled")
    x = torch.randn(4, 4)
    if stage == "backend":
        torch.manual_seed(0)
        with pytest.warns(InternalErrorWarning):
            got = compiled(x)
        torch.manual_seed(0)
        assert torch.equal(got, function(x))
    else:
        with pytest.raises(InternalError, match="a mistake"):
            compiled(x)


def test_each_kind_is_told_once() -> None:
    compiled = optimize(
        lambda x: x * 2, Compiler(KeyError("k")), dynamic=False, on_error="run_uncompiled"
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n in (2, 3, 4):
            x = torch.ones(n)
            assert torch.equal(compiled(x), x * 2)
    assert len(told) == 1 and len(compiled.capture_context.log.failures) == 3


def test_a_backend_of_others_raises() -> None:
    def backend(gm: GraphModule, example_inputs: list[Any]) -> Any:
        raise ValueError("no")

    with pytest.raises(BackendError, match="no"):
        optimize(lambda x: x + 1, backend, on_error="run_uncompiled")(torch.ones(2))


class Late(Exception):
    """What a signal's handler raises."""


@pytest.mark.parametrize("on_error", ["run_uncompiled", "raise"])
@pytest.mark.parametrize("stage", ["capture", "backend"])
def test_what_a_signal_handler_raises_reaches_the_caller(
    stage: str, on_error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handler(*_: Any) -> None:
        raise Late("time is up")

    def fires(*_: Any, **__: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)

    backend: Any = lambda gm, inputs: gm.forward  # noqa: E731
    if stage == "backend":

        class Firing(Compiler):
            def __call__(self, gm: GraphModule, example_inputs: list[Any]) -> Any:
                try:
                    fires()
                except Late as error:
                    raise RuntimeError("compiling failed") from error

        backend = Firing(Late())
    else:
        from dovetail_capture.interpreter.attempts import finished

        monkeypatch.setattr(finished, "relate_inputs", fires)
    known = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Late, match="time is up"):
            optimize(lambda x: x + 1, backend, on_error=on_error)(torch.ones(2))
    finally:
        signal.signal(signal.SIGUSR1, known)


@pytest.mark.parametrize("error", [MemoryError("full"), torch.OutOfMemoryError("full")])
def test_memory_that_ran_out_is_the_program_s(error: Exception) -> None:
    with pytest.raises(type(error), match="full"):
        optimize(lambda x: x + 1, Compiler(error), on_error="run_uncompiled")(torch.ones(2))
    assert not torch.is_autocast_enabled("cpu")


def test_an_error_that_the_program_handles_is_not_taken_for_the_compiler_s_cause() -> None:
    compiled = optimize(lambda x: x + 1, Compiler(KeyError("k")), on_error="run_uncompiled")
    try:
        raise MemoryError("handled")
    except MemoryError:
        with pytest.warns(InternalErrorWarning):
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


def test_what_a_guard_filter_raises_is_the_program_s() -> None:
    def keep(entries: Any) -> Any:
        raise ZeroDivisionError("of the filter")

    with pytest.raises(ZeroDivisionError, match="of the filter"):
        optimize(
            lambda x: x + 1,
            lambda gm, _: gm,
            guard_filter_fn=keep,
            on_error="run_uncompiled",
        )(torch.ones(2))


def test_what_a_compiler_refuses_is_told_as_such() -> None:
    """Of a whole graph: another would end before what is refused."""

    error = Refusal("a sparse gradient; leave it out")
    error.__cause__ = ValueError("no storage")
    backend = Compiler(error)
    x = torch.randn(4, 4)
    compiled = optimize(function, backend, fullgraph=True, on_error="run_uncompiled")
    torch.manual_seed(0)
    with pytest.warns(UncompiledWarning, match="runs uncompiled.*a sparse gradient") as told:
        got = compiled(x)
    assert not any(issubclass(w.category, InternalErrorWarning) for w in told)
    torch.manual_seed(0)
    assert torch.equal(got, function(x))
    (failure,) = compiled.capture_context.log.failures
    assert failure.refused == "a sparse gradient; leave it out"
