"""torch.compile's own switches are honoured wherever they are set."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from dovetail_capture import CaptureError, optimize
from torch import Tensor
from torch.fx import GraphModule

Count = list[GraphModule]


@pytest.fixture
def graphs() -> Iterator[Count]:
    yield []
    torch.compiler.set_stance("default")


def counted(function: Callable[..., Any], graphs: Count) -> Any:
    def backend(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    return optimize(function, backend)


def program(x: Tensor) -> Tensor:
    return torch.sin(x) + x.shape[0]


def test_force_eager(graphs: Count) -> None:
    run, x = counted(program, graphs), torch.randn(4)
    with torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(run(x), program(x))
    assert not graphs
    run(x)
    assert len(graphs) == 1


def test_a_front_end_that_was_another_for_a_while(
    graphs: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.set_stance("default")  # (loads it)
    run, x = counted(program, graphs), torch.randn(4)
    with monkeypatch.context() as stub:
        stub.setitem(sys.modules, "torch._dynamo.eval_frame", ModuleType("eval_frame"))
        counted(program, graphs)
    counted(program, graphs)
    with torch.compiler.set_stance("force_eager"):
        run(x)
    assert not graphs


def test_fail_on_recompile(graphs: Count) -> None:
    run = counted(program, graphs)
    run(torch.ones(4))
    with torch.compiler.set_stance("fail_on_recompile"):
        run(torch.ones(4))
        with pytest.raises(CaptureError, match="fail_on_recompile"):
            run(torch.ones(5))
    run(torch.ones(5))
    assert len(graphs) == 2


def test_eager_on_recompile(graphs: Count) -> None:
    run = counted(program, graphs)
    with torch.compiler.set_stance("eager_on_recompile"):
        run(torch.ones(4))
    assert not graphs


@pytest.mark.parametrize("reset", ["torch.compiler.reset", "torch._dynamo.reset"])
def test_reset(reset: str, graphs: Count) -> None:
    torch.compiler.set_stance("default")  # (loads the front end: a first use of it tells nothing)
    run, x = counted(program, graphs), torch.randn(4)
    run(x)
    for expected in (2, 3):
        eval(reset, {"torch": torch})()
        run(x)
        run(x)
        assert len(graphs) == expected


def test_graph_break(graphs: Count) -> None:
    def broken(x: Tensor) -> Tensor:
        x = x + 1
        torch._dynamo.graph_break()  # noqa: TID251
        return x * 2

    torch.testing.assert_close(counted(broken, graphs)(torch.ones(2)), torch.full((2,), 4.0))
    assert len(graphs) == 2


@pytest.mark.parametrize("inside", [False, True])
def test_error_on_graph_break(inside: bool, graphs: Count) -> None:
    def prints(x: Tensor) -> Tensor:
        print()
        return x + 1

    def strict(x: Tensor) -> Tensor:
        with torch._dynamo.error_on_graph_break(True):  # noqa: TID251
            return prints(x)

    x = torch.ones(2)
    with pytest.raises(CaptureError, match=r"print\(\)"):
        if inside:
            counted(strict, graphs)(x)
        else:
            with torch._dynamo.error_on_graph_break(True):  # noqa: TID251
                counted(prints, graphs)(x)
    counted(prints, graphs)(x)


def test_disabled_without_what_it_calls(graphs: Count) -> None:
    def inner(x: Tensor) -> Tensor:
        return x.sin()

    @torch.compiler.disable(recursive=False)
    def plain(x: Tensor) -> Tensor:
        return inner(x) * 3

    run = counted(lambda x: plain(x), graphs)
    torch.testing.assert_close(run(torch.ones(2)), torch.ones(2).sin() * 3)
    (graph,) = graphs
    assert [n.name for n in graph.graph.nodes if n.op.startswith("call")] == ["sin"]


_FIRST_SET_LATER = """
import sys, torch
from dovetail_capture import optimize

graphs = []
run = optimize(torch.nn.Linear(2, 2), lambda gm, inputs: graphs.append(gm) or gm.forward)
run(torch.ones(1, 2))
assert "torch._dynamo" not in sys.modules
torch.compiler.set_stance("force_eager")
run(torch.ones(2, 2))
assert len(graphs) == 1
torch.compiler.set_stance("default")
run(torch.ones(2, 2))
assert len(graphs) == 2
"""


@pytest.mark.parametrize("name", ["", "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_in_a_fresh_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stance may be set when functions are compiled already; and the environment may say that
    nothing is compiled."""
    text = _FIRST_SET_LATER
    if name:
        monkeypatch.setenv(name, "1")
        text = text.split("assert")[0] + "assert not graphs"
    subprocess.run([sys.executable, "-c", text], check=True)
