"""What a user reads: errors of arguments that do not fit, guards, recompilations, reports."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from dovetail_capture.errors import GraphBreakError
from torch import Tensor, nn

import dovetail


class Layers(nn.Module):
    """Two layers that do not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 8), nn.Linear(9, 2)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def _reduced(x: Tensor) -> Tensor:
    return x.sum(5)


def _joined(x: Tensor) -> Tensor:
    return torch.cat([x, x[0]])


def _reshaped(x: Tensor) -> Tensor:
    return x.view(3, 5)


@pytest.mark.parametrize("function", [Layers(), _reduced, _joined, _reshaped])
def test_arguments_that_do_not_fit_raise_eagers_error(function: Callable[..., Any]) -> None:
    x = torch.ones(2, 4)
    with pytest.raises((RuntimeError, IndexError)) as eager:
        function(x)
    for fullgraph in (False, True):
        with pytest.raises(type(eager.value)) as ours:
            dovetail.compile(function, fullgraph=fullgraph)(x)
        assert type(ours.value) is type(eager.value)
        # (An operator's name may be put before the text by the kernel alone.)
        text = str(eager.value).splitlines()[0].removeprefix("addmm: ")
        assert text in str(ours.value)
    assert f"at {__file__}:" in str(ours.value)


def test_a_layer_of_a_wrong_size_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"\(2x8 and 9x2\)") as raised:
        dovetail.compile(Layers(), fullgraph=True)(torch.ones(2, 4))
    assert "Linear.forward of self.layers[1]" in str(raised.value)
    assert "x = layer(x)" in str(raised.value)


def test_an_error_that_the_program_handles_is_a_break() -> None:
    def function(x: Tensor) -> Tensor:
        try:
            return x.sum(5)
        except IndexError:
            return x + 1

    x = torch.ones(2)
    assert torch.equal(dovetail.compile(function)(x), function(x))
    with pytest.raises(GraphBreakError, match="`sum` raises IndexError"):
        dovetail.compile(function, fullgraph=True)(x)


def test_an_operator_without_fake_kernel_names_the_way_round() -> None:
    @torch.library.custom_op("dovetail_test_messages::plain", mutates_args=())
    def plain(x: Tensor) -> Tensor:
        return x.clone()

    with pytest.raises(GraphBreakError, match=r"hint: register one with `register_fake`"):
        dovetail.compile(lambda x: plain(x) + 1, fullgraph=True)(torch.ones(2))


SCALE = 3.0


class Scaled(nn.Module):
    """Scales by a global and by its own parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x) * SCALE
        n = y.abs().max().item()
        return torch.cos(y) / n


def test_guards_speak_the_users_names() -> None:
    compiled = dovetail.compile(Scaled())
    compiled(torch.ones(1, 2))
    text = dovetail.explain_guards(compiled)
    assert "y.abs().max().item() == " in text
    assert "\n  SCALE == 3.0" in text
    assert "torch.cos is" in text
    for private in (".s0", ".s1", "globals.", "closure.", "._modules[", "module torch["):
        assert private not in text, private


def test_a_marked_dimension_that_is_fixed_is_named() -> None:
    x = torch.ones(8)
    dovetail.mark_dynamic(x, 0)
    with pytest.raises(dovetail.CaptureError, match=r"needs it to be 8: x.size\(0\) == 8"):
        dovetail.compile(lambda x: x.view(2, 4), fullgraph=True)(x)


def test_a_storm_of_recompilations_is_one_paragraph() -> None:
    def storm(x: Tensor) -> Tensor:
        return (x * 2).relu().sum()

    compiled = dovetail.compile(storm, dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for size in range(3, 13):
            compiled(torch.ones(size))
    report = dovetail.report(compiled)
    (line,) = (line for line in report.as_text().splitlines() if "recompiled: " in line)
    assert "9 values of x.size(0) (3, 4, 5, 6, 7, ..., 11)" in line and "limit" in line
    assert report.as_text().count("mark_dynamic(x, 0)") == 1
    in_full = report.as_text(verbose=True)
    assert in_full.count("mark_dynamic(x, 0)") == 8
    for text in (report.as_text(), in_full, *dovetail.recompiles(compiled)):
        assert "recompile: recompile:" not in text and "limit: limit" not in text
        assert text.count("storm (") <= text.count("\n") + 1


def _broken(x: Tensor, flag: bool) -> Tensor:
    y = torch.sin(x) * 2
    print("loss so far")
    y = y + 1
    if y.sum() > 0:
        y = y * 3
    if flag:
        y = y.cos() + y.sin()
    z = [y * i for i in range(3)]
    print("still here")
    y = sum(z)
    y = torch.nn.functional.softmax(y, -1)
    if y.max() > 0.5:
        y = y - 1
    n = y.abs().max().item()
    y = y / n
    print("the end")
    return torch.cos(y)


def test_reports_are_short_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    found = dovetail.explain(_broken)(torch.ones(8), True)
    assert found.as_text().count("\n") < 60
    assert "\nreplacement 0" in found.as_text(verbose=True)
    assert "verbose=True" in str(found)
    compiled = dovetail.compile(_broken)
    compiled(torch.ones(8), True)
    assert dovetail.report(compiled).as_text().count("\n") < 60


def _fails(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
    raise KeyError("no such operator")


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (_broken, {"fullgraph": True}),
        (_reduced, {"fullgraph": True}),
        (lambda x: x + 1, {"backend": _fails}),
    ],
)
def test_tracebacks_end_in_the_users_line(
    function: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    compiled = dovetail.compile(function, **arguments)
    given = (torch.ones(3), True)[: function.__code__.co_argcount]
    with pytest.raises((RuntimeError, IndexError)) as raised:
        compiled(*given)
    files = {entry.filename for entry in traceback.extract_tb(raised.value.__traceback__)}
    assert files == {__file__}


def _values(x: Tensor) -> Iterator[Tensor]:
    yield x + 1


async def _later(x: Tensor) -> Tensor:
    return x + 1


@pytest.mark.parametrize("function", [_values, _later])
def test_what_is_suspended_is_no_whole_graph(function: Callable[..., Any]) -> None:
    with pytest.raises(dovetail.CaptureError, match=f"{function.__name__} .* is a "):
        dovetail.compile(function, fullgraph=True)
    x = torch.ones(2)
    made = dovetail.compile(function)(x)
    if function is _values:
        assert torch.equal(next(made), x + 1)
        return
    with pytest.raises(StopIteration) as ended:
        made.send(None)
    assert torch.equal(ended.value.value, x + 1)
