"""Texts of numbers that depend on sizes: messages fix no size; code that looks at a text gets
Python's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import dovetail_capture as capture
import pytest
import torch
from torch import Tensor

LOG = logging.getLogger("texts_of_sizes")


def asserted(x: Tensor, f: float) -> Any:
    torch._assert(x.dim() == 2, f"got {x.shape}, that is {x.dim()=} and {tuple(x.shape)!r:>20}")
    return x * 2


def checked(x: Tensor, f: float) -> Any:
    torch._check(x.shape[0] >= 2, f"{x.shape[0]} {{rows}}")
    torch._check(x.shape[1] >= 2, lambda: f"{x.shape[1]} columns")
    return x + 1


def never_raised(x: Tensor, f: float) -> Any:
    error = ValueError(f"{x.shape[0]} rows of {x.shape}")
    name = f"layer{x.shape[0]}"
    if x.dim() > 3:
        raise error
    return x * f, len(error.args), name is not None


def logged(x: Tensor, f: float) -> Any:
    LOG.warning(f"{x.shape} by {f:.3f}")
    return x * f


def returned(x: Tensor, f: float) -> Any:
    return x * f, f"{x.shape[0]:>4}|{f:.2e}|{{}}|{f!r}|{x.shape}", {"shape": f"{tuple(x.shape)!s}"}


def behind_a_break(x: Tensor, f: float) -> Any:
    text = f"{x.shape[1]} x {f}"
    if x.sum() > 1e9:
        return x
    return x + 1, text


def looked_at(x: Tensor, f: float) -> Any:
    text = f"{x.shape[0]}"
    table = {text: 1}
    return (
        x * len(text), text == "3", text + "!", text * 2, "4" in text, text.zfill(5), list(text),
        bool(text), isinstance(text, str), table.get("4"), text in table, int(text) + 1,
        "%s" % (text,), f"<{text}>", ",".join([text, text]), sorted([text, "1"]), text[0],  # noqa: UP031
        text < "9", hash(text) == 0, max(text, "2"), {text} | {"7"}, str(text), repr(text),
        text.encode(), type(text),
    )  # fmt: skip


ONE_GRAPH: dict[Callable[[Tensor, float], Any], int] = {
    asserted: 2, checked: 2, never_raised: 2, logged: 2, returned: 2,
    behind_a_break: 7,  # a text that a frame is given is guarded
}  # fmt: skip


def same(got: Any, wanted: Any) -> None:
    if isinstance(wanted, Tensor):
        torch.testing.assert_close(got, wanted)
    elif isinstance(wanted, tuple):
        for one, other in zip(got, wanted, strict=True):
            same(one, other)
    else:
        assert got == wanted and type(got) is type(wanted)


@pytest.mark.parametrize("program", [*ONE_GRAPH, looked_at])
def test_equals_python(
    program: Callable[[Tensor, float], Any], caplog: pytest.LogCaptureFixture
) -> None:
    graphs: list[Any] = []
    run = capture.optimize(program, backend=lambda gm, _: graphs.append(gm) or gm.forward)
    for rows, columns, f in ((3, 4, 0.5), (4, 5, 0.25), (5, 3, 0.125), (12, 7, 3.0), (3, 9, 2.0)):
        x = torch.ones(rows, columns)
        caplog.clear()
        wanted, said = program(x, f), caplog.messages.copy()
        caplog.clear()
        same(run(x, f), wanted)
        assert caplog.messages == said
    if program in ONE_GRAPH:
        assert len(graphs) <= ONE_GRAPH[program]


def test_the_message_of_what_fails() -> None:
    run = capture.optimize(asserted, backend=lambda gm, _: gm.forward)
    for sizes in ((3, 4), (4, 5), (5, 5, 5), (6, 5, 5)):
        messages = []
        for function in (asserted, run):
            try:
                function(torch.ones(sizes), 1.0)
            except AssertionError as error:
                messages.append(str(error))
        assert len(messages) in (0, 2) and len(set(messages)) <= 1
