"""Bad input gets an error that names the user's line and the way round; state stays as it was."""

from __future__ import annotations

import linecache

import pytest
import torch
from torch import Tensor, nn

import dovetail

HERE = "test_bad_input.py"


def line_with(marker: str) -> int:
    return next(
        i for i, line in enumerate(linecache.getlines(__file__), 1) if f"# {marker}" in line
    )


def test_graph_break_under_fullgraph_names_file_line_and_hint() -> None:
    state = {"calls": 0}

    @dovetail.compile(fullgraph=True)
    def f(x: Tensor) -> Tensor:
        state["calls"] += 1
        if x.sum() > 0:  # BRANCH
            return x + 1
        return x - 1

    with pytest.raises(Exception) as error:
        f(torch.ones(3))
    text = str(error.value)
    assert HERE in text and str(line_with("BRANCH")) in text and "hint" in text
    assert state["calls"] == 0


def test_unsupported_construct_names_the_construct() -> None:
    @dovetail.compile(fullgraph=True)
    def f(x: Tensor) -> Tensor:
        print("hello")  # PRINT
        return x + 1

    with pytest.raises(Exception) as error:
        f(torch.ones(3))
    text = str(error.value)
    assert "print" in text and f":{line_with('PRINT')}" in text


def test_break_without_fullgraph_runs_and_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    @dovetail.compile
    def f(x: Tensor) -> Tensor:
        y = x * 2
        print("between")
        return y + 1

    torch.testing.assert_close(f(torch.ones(3)), torch.full((3,), 3.0))
    assert capsys.readouterr().out == "between\n"
    report = dovetail.report(f)
    assert len(report.breaks) == 1 and report.graphs == 2


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("DOVETAIL_CXX", "/nonexistent/g++")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    net = nn.Linear(3, 3)
    before = {k: v.clone() for k, v in net.state_dict().items()}

    def f(x: Tensor) -> Tensor:
        return torch.exp(net(x)) + 1  # the only place where a kernel is needed

    compiled = dovetail.compile(f)
    with pytest.raises(Exception, match="compiler"):
        compiled(torch.ones(2, 3))
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_dtype_mismatch_is_eagers_error_at_the_users_line() -> None:
    linear = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1, momentum=0.9)

    @dovetail.compile
    def f(x: Tensor) -> Tensor:
        return linear(x) @ x.double()  # MISMATCH

    with pytest.raises(RuntimeError) as error:
        f(torch.ones(4, 4))
    text = "\n".join([str(error.value), *getattr(error.value, "__notes__", [])])
    assert f"{HERE}:{line_with('MISMATCH')}" in text
    assert optimizer.state == {} and linear.weight.grad is None


def test_dynamic_true_is_refused_with_the_way_round() -> None:
    with pytest.raises(NotImplementedError, match="leave dynamic unset"):
        dovetail.compile(lambda x: x, dynamic=True)
