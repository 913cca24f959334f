"""Whatever fails inside the compiler, the program runs on, as eager would, and is told of it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dovetail_capture.reporting.failures import InternalErrorWarning
from failing_compiler import Failing, profiled, torch_state, train

import dovetail
import dovetail.pipeline

RECOVERS = {"on_error": "run_uncompiled"}


def check(compile_with: Callable[..., Any], what: str) -> dovetail.Report:
    """Train by what may fail, and by eager; the report."""
    dovetail.reset()  # calls of `compile` for one class share what is compiled, or failed
    expected, others = train(lambda model: model)
    made = []
    before = torch_state()

    def compiled(model: torch.nn.Module) -> Any:
        made.append(compile_with(model))
        return made[0]

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        got, seen = train(compiled)
    assert torch_state() == before, what
    assert seen == others, what
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2, msg=what)
    report = dovetail.report(made[0])
    assert bool(report.failures) == any(
        issubclass(w.category, InternalErrorWarning) for w in told
    ), what
    return report


def mistake(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a mistake")


STAGES = {
    "tracing": (dovetail.pipeline, "aot_compile"),
    "cutting": (dovetail.pipeline, "cut"),
    "compiling": (dovetail.pipeline, "compile_graph"),
    "loading": (dovetail.pipeline, "load"),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_a_stage_that_fails(
    stage: str, dynamic: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*STAGES[stage], mistake)
    report = check(lambda m: dovetail.compile(m, dynamic=dynamic, options=RECOVERS), stage)
    assert report.failures and report.kernels == 0
    text = report.as_text()
    assert "internal error" in text and "a mistake" in text and "failing_compiler.py" in text
    assert "Traceback" in report.failures[0].in_full()


@pytest.mark.parametrize("stage", STAGES)
def test_it_is_raised_where_that_is_asked_for(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*STAGES[stage], mistake)
    with pytest.raises(Exception, match="a mistake"):
        train(lambda m: dovetail.compile(m, options={"on_error": "raise"}))


def test_a_backward_that_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is loaded at the first backward, though it may be planned: its graph runs by ATen's
    operators."""
    compiled = dovetail.compile(lambda x: (x * x.sin()).sum(), options=RECOVERS)
    x = torch.randn(5, requires_grad=True)
    result = compiled(x)
    monkeypatch.setattr(dovetail.pipeline, "load", mistake)
    with pytest.warns(InternalErrorWarning, match="at run time.*a mistake"):
        result.backward()
    torch.testing.assert_close(x.grad, (x.sin() + x * x.cos()).detach())
    report = dovetail.report(compiled)
    assert len(report.failures) == 1 and report.kernels >= 1


def test_a_whole_graph_runs_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dovetail.pipeline, "aot_compile", mistake)
    compiled = dovetail.compile(lambda x: x.sin() + 1, fullgraph=True, options=RECOVERS)
    x = torch.randn(5)
    with pytest.warns(InternalErrorWarning):
        assert torch.equal(compiled(x), x.sin() + 1)
    assert dovetail.report(compiled).graphs == 1


PROGRAM = """
import warnings
import torch, dovetail
def step(x, w):
    return torch.softmax(x @ w, -1).square().sum()
compiled = dovetail.compile(step, options={"on_error": "run_uncompiled"})
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for n in (3, 4, 5):
        x = torch.randn(n, 4)
        leaves = [torch.ones(4, 4, requires_grad=True) for _ in range(2)]
        for call, w in zip((compiled, step), leaves):
            call(x, w).backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
report = dovetail.report(compiled)
assert told and report.failures and report.kernels == 0
print(report.as_text())
"""


@pytest.mark.parametrize("compiler", ["/bin/false", "/no/such/compiler", "refuses"])
def test_a_cpp_compiler_that_refuses(compiler: str, tmp_path: Path) -> None:
    if compiler == "refuses":  # it tells its version, and takes no program
        script = tmp_path / "g++"
        script.write_text(
            '#!/bin/sh\ncase "$*" in *--version*|*-dump*|*-march*-E*) exec g++ "$@";; esac\n'
            "echo 'internal compiler error: Segmentation fault' >&2; exit 1\n"
        )
        script.chmod(0o755)
        compiler = str(script)
    env = {
        **os.environ,
        "DOVETAIL_CXX": compiler,
        "DOVETAIL_CACHE_DIR": str(tmp_path / "cache"),
        "DOVETAIL_ON_ERROR": "run_uncompiled",
    }
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert "internal error" in run.stdout


@pytest.mark.parametrize("points", [12, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_mistake_anywhere(points: int, dynamic: bool | None) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")

    def compiled(model: torch.nn.Module) -> Any:
        return dovetail.compile(model, dynamic=dynamic, options=RECOVERS)

    watching = Failing()
    profiled(watching, lambda: train(compiled))
    numbers = random.Random(seed)
    for _ in range(points):
        dovetail.reset()
        failing = Failing(numbers.randrange(1, watching.calls + 1))
        what = f"seed {seed}, dynamic={dynamic}, call {failing.at} of {watching.calls}"
        try:
            profiled(failing, lambda what=what: check(compiled, what))  # type: ignore[misc]
        except Exception as error:
            raise AssertionError(f"{what}: {failing.where}") from error


def test_the_option_is_checked() -> None:
    with pytest.raises(ValueError, match="did you mean 'raise'"):
        dovetail.compile(lambda x: x, options={"on_error": "raises"})


def test_behind_another_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.interop import dovetail_backend

    monkeypatch.setattr(dovetail.pipeline, "aot_compile", mistake)
    graph = torch.fx.symbolic_trace(lambda x: (x.sin() + 1,))
    with pytest.warns(InternalErrorWarning):
        run = dovetail_backend(graph, [torch.ones(2)], options=RECOVERS)
    assert torch.equal(run(torch.ones(2))[0], torch.ones(2).sin() + 1)
