"""What a graph raises: its traceback has the program's frames and those of a foreign backend."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_capture import optimize
from dovetail_capture.environment.callers import users_part

X = torch.ones(2)


def fails_when_run(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    def device_is_lost(*inputs: Any) -> Any:
        raise ValueError("device lost")

    return device_is_lost


def returns_too_much(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    return lambda *inputs: (X, X, X)


def plain(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def behind_a_break(x: torch.Tensor) -> torch.Tensor:
    print(end="")
    return x + 1


@pytest.mark.parametrize("program", [plain, behind_a_break], ids=lambda fn: fn.__name__)
def test_what_a_backends_graph_raises_has_no_entries_of_ours(program: Any) -> None:
    with pytest.raises(ValueError, match="device lost") as raised:
        optimize(program, backend=fails_when_run)(X)
    files = {entry.filename for entry in traceback.extract_tb(raised.value.__traceback__)}
    assert files == {__file__}
    assert raised.traceback[-1].name == "device_is_lost"
    assert program.__name__ in [entry.name for entry in raised.traceback]


@pytest.mark.parametrize("program", [plain, behind_a_break], ids=lambda fn: fn.__name__)
def test_a_refusal_of_a_backends_results_has_no_entries_of_ours(program: Any) -> None:
    with pytest.raises(RuntimeError, match="must return a tuple or list of 1") as raised:
        optimize(program, backend=returns_too_much)(X)
    assert [entry.name for entry in raised.traceback][1:] == [program.__name__]


def test_a_frame_at_an_instruction_without_a_line() -> None:
    code = compile("raise ValueError", __file__, "exec")
    without = code.replace(co_linetable=b"", co_firstlineno=7)
    with pytest.raises(ValueError) as raised:
        exec(without)
    entry = raised.value.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    assert entry is not None and entry.tb_lineno is None
    found = users_part(entry)
    assert found is not None and found.tb_lineno == 7
