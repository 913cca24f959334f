"""Logs by name: what is shown, to whom, and that nothing is made where nobody asks."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from dovetail_capture.captured_frame import GraphBreak
from dovetail_capture.reporting.compile_log import Event
from dovetail_inductor import DeviceTuner
from dovetail_inductor.products.choose_products import Choice
from dovetail_prims.artifact_log import ArtifactText, tell
from dovetail_runtime import Plan, load
from dovetail_runtime.cuda_graphs import GraphedArtifact, GraphPool, _Shapes
from torch import Tensor

import dovetail
from dovetail import logs


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    dovetail.set_logs()


def _program(x: Tensor) -> Tensor:
    y = torch.sin(x) * 2
    print("a break")
    return torch.softmax(y.relu() @ y.t(), -1).sum()


def _run() -> None:
    compiled = dovetail.compile(_program)
    compiled(torch.ones(3, 4, requires_grad=True)).backward()
    compiled(torch.ones(5, 4, requires_grad=True))


def _told(caplog: pytest.LogCaptureFixture) -> dict[str, list[logging.LogRecord]]:
    found: dict[str, list[logging.LogRecord]] = {}
    for record in caplog.records:
        if record.name.startswith("dovetail."):
            found.setdefault(record.name.removeprefix("dovetail."), []).append(record)
    return found


# What this program gives nothing to tell of.
_SILENT = ("perf_hints", "cudagraphs", "autotuning", "compiled_autograd")


@pytest.mark.parametrize("name", [name for name in logs.ARTIFACTS if name not in _SILENT])
def test_each_artifact_alone(name: str, caplog: pytest.LogCaptureFixture) -> None:
    dovetail.set_logs(**{name: True})
    _run()
    told = _told(caplog)
    assert set(told) == {name}
    for record in told[name]:
        assert record.artifact == name and record.getMessage().strip()  # type: ignore[attr-defined]
        kinds = {"graph_breaks": GraphBreak, "recompiles": Event}
        assert isinstance(record.payload, kinds.get(name, ArtifactText))  # type: ignore[attr-defined]


def test_a_record_for_each_compiled_backward(caplog: pytest.LogCaptureFixture) -> None:
    dovetail.set_logs(compiled_autograd=True)
    backward = dovetail.compiled_autograd(backend="eager")
    weight = torch.ones(3, requires_grad=True)
    for _ in range(2):
        weight.grad = None
        with backward:
            (weight * torch.ones(3)).sum().backward()
    (record,) = _told(caplog)["compiled_autograd"]
    assert record.getMessage().startswith("# backward 1, for these sizes, with 0 calls of Python")
    assert "def forward" in record.getMessage()


def test_a_record_for_each_measured_choice(caplog: pytest.LogCaptureFixture) -> None:
    """All candidates with their times."""
    dovetail.set_logs(autotuning=True)
    choice = Choice("mm of (8, 8)", 2, 1, ("library", "64x64", "32x32"), (3e-6, 2e-6, None))
    DeviceTuner().note(choice)
    (record,) = _told(caplog)["autotuning"]
    assert record.payload is choice  # type: ignore[attr-defined]
    assert record.getMessage().splitlines() == [
        "2 x mm of (8, 8): 64x64 (2.0 us, library 3.0 us)",
        "  library: 3.0 us",
        "  64x64: 2.0 us",
        "  32x32: does not run",
    ]


def test_a_record_for_what_is_not_recorded_as_a_cuda_graph(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dovetail.set_logs(cudagraphs=True)
    dovetail.compile(lambda x: x * 2, backend="cudagraphs")(torch.ones(3))
    (record,) = _told(caplog)["cudagraphs"]
    assert record.getMessage() == "not recorded: a graph on the CPU"


def test_a_recording_tells_of_itself() -> None:
    """Why a plan is not recorded, once for each reason."""
    told: list[str] = []
    plan = Plan("empty", "cpu", (), (), (), (), (), (), ())
    pool = GraphPool.__new__(GraphPool)  # (which needs a GPU to be of use)
    graphed = GraphedArtifact(load(plan), pool, told=told.append)
    for _ in range(2):
        graphed._refuse(_Shapes({}), "inputs move")
    reasons = ["the plan does not run on a GPU", "inputs move"]
    assert told == [f"empty: not recorded: {reason}" for reason in reasons]
    assert graphed.skips() == [f"empty: {reason}" for reason in reasons]


def test_texts_are_those_of_the_stages(caplog: pytest.LogCaptureFixture) -> None:
    dovetail.set_logs(graph_breaks=True, output_code=True, aot_graphs=True, guards=True)
    _run()
    told = {name: "\n".join(r.getMessage() for r in rs) for name, rs in _told(caplog).items()}
    assert "print()" in told["graph_breaks"] and __file__ in told["graph_breaks"]
    assert "# backward" in told["aot_graphs"] and "x is a torch.Tensor" in told["guards"]
    compile(told["output_code"].split('"""Plan')[0], "plan", "exec")


def test_nothing_is_made_where_nobody_asks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)  # of the root logger

    def text() -> str:
        raise AssertionError("nobody asked")

    tell("guards", "here", text)
    _run()
    assert not _told(caplog)


def test_levels_of_components(caplog: pytest.LogCaptureFixture) -> None:
    logs.set_logs_by_text("+dynamo,-guards,output_code")
    _run()
    told = _told(caplog)
    assert {"dynamo", "graph_breaks", "recompiles", "graph", "output_code"} <= set(told)
    assert "guards" not in told and "aot_graphs" not in told
    dovetail.set_logs(all=logging.ERROR)
    assert not logging.getLogger("dovetail.graph_breaks").level


@pytest.mark.parametrize("text", ["graph_brekas", "+induktor"])
def test_an_unknown_name_raises(text: str) -> None:
    with pytest.raises(ValueError, match=r"did you mean '(graph_breaks|inductor)'"):
        logs.set_logs_by_text(text)
    with pytest.raises(ValueError, match="unknown log"):
        dovetail.set_logs(graph_brekas=True)
    with pytest.raises(ValueError, match="takes a level"):
        dovetail.set_logs(dynamo=True)


def test_what_torch_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    before = torch._logging._internal.log_state
    try:
        with dovetail.installed():
            torch._logging.set_logs(graph_breaks=True, aot=logging.DEBUG, sym_node=True)
            _run()
    finally:
        torch._logging.set_logs()
        torch._logging._internal._set_log_state(before)
    assert set(_told(caplog)) == {"graph_breaks", "aot_graphs", "aot_joint_graph"}


_CHILD = """
import torch, dovetail
dovetail.install()
def f(x):
    y = x + 1
    print("a break")
    return y * 2
torch.compile(f)(torch.ones(2))
"""


@pytest.mark.parametrize("variable", ["DOVETAIL_LOGS", "TORCH_LOGS"])
def test_the_environment(variable: str) -> None:
    import os

    env = {**os.environ, variable: "graph_breaks"}
    run = subprocess.run(
        [sys.executable, "-c", _CHILD], env=env, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert "[dovetail.graph_breaks] print()" in run.stderr
