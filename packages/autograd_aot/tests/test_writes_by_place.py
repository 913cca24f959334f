"""Writes to parts of tensors that show elements of memory more than once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_testing import as_graph, run_fx
from dovetail_autograd_aot import TraceError, aot_compile
from torch import Tensor

Run = Callable[..., tuple[Any, ...]]


def _row(x: Tensor) -> tuple[Any, ...]:
    x[1] *= 2
    return x + 1, x[0], x


def _filled(x: Tensor) -> tuple[Any, ...]:
    x.fill_(3)
    return (x * 2,)


def _part_filled(x: Tensor) -> tuple[Any, ...]:
    x[:, 1:].zero_()
    return (x.sum(),)


def _rows(x: Tensor) -> tuple[Any, ...]:
    for row in x:
        row.add_(1)
    return (x.sum(), x[:2])


def _through_transposed(x: Tensor) -> tuple[Any, ...]:
    x.t()[:, 1].mul_(4)
    return (x + 0,)


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "expanded": lambda: torch.arange(4.0).expand(3, 4),
    "expanded part": lambda: torch.arange(12.0)[5:9].expand(3, 4),
    "both": lambda: torch.arange(2.0)[1:].expand(3, 4),
    "windows": lambda: torch.arange(6.0).unfold(0, 4, 1),
    "dense": lambda: torch.arange(12.0).view(3, 4),
    "transposed": lambda: torch.arange(12.0).view(4, 3).t(),
}


def _memory(x: Tensor) -> list[float]:
    return x.as_strided((x.untyped_storage().nbytes() // 4,), (1,), 0).tolist()


WRITES = (_row, _filled, _part_filled, _rows, _through_transposed)
FILLS = (_filled, _part_filled)
# Rows of "both" are refused by eager, too; filled windows by the tracer alone (see below).
LEFT_OUT = [*(("both", fn) for fn in WRITES if fn not in FILLS), *(("windows", fn) for fn in FILLS)]
CASES = [(layout, fn) for layout in LAYOUTS for fn in WRITES if (layout, fn) not in LEFT_OUT]


@pytest.mark.parametrize(("layout", "fn"), CASES)
def test_inputs(layout: str, fn: Run) -> None:
    """What eager writes is written: values, and what lies where."""
    ours, theirs = LAYOUTS[layout](), LAYOUTS[layout]()
    compiled = aot_compile(as_graph(fn, 1), [LAYOUTS[layout]()], forward_compiler=run_fx)
    found, expected = compiled(ours), fn(theirs)
    assert _memory(ours) == _memory(theirs) and ours._version == theirs._version
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()
        assert (a.data_ptr() == ours.data_ptr()) == (b.data_ptr() == theirs.data_ptr())


@pytest.mark.parametrize("fn", FILLS)
def test_windows_are_not_filled(fn: Run) -> None:
    x = LAYOUTS["windows"]()
    with pytest.raises(TraceError, match="refers to a single memory location"):
        aot_compile(as_graph(fn, 1), [x], forward_compiler=run_fx)


def _of_expanded(x: Tensor, w: Tensor) -> tuple[Any, ...]:
    base = x * 2
    wide = base.expand(3, 4)
    wide[1].mul_(w)
    return base * w, wide.exp()


def _of_windows(x: Tensor, w: Tensor) -> tuple[Any, ...]:
    base = x * 2
    windows = base.unfold(0, 2, 1)
    windows[1].mul_(w[:2])
    return base * w, windows.exp()


def _filled_windows(x: Tensor, w: Tensor) -> tuple[Any, ...]:
    base = x * w
    base.unfold(0, 2, 1)[0].zero_()
    return (base.exp(),)


@pytest.mark.parametrize("fn", [_of_expanded, _of_windows, _filled_windows])
def test_gradients(fn: Run) -> None:
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, dtype=torch.float64, requires_grad=True)
    compiled = aot_compile(as_graph(fn, 2), [x, w], forward_compiler=run_fx)
    ours, theirs = compiled(x, w), fn(x, w)
    torch.testing.assert_close(ours, theirs)
    found, expected = (
        torch.autograd.grad(sum(out.sum() for out in outputs), (x, w)) for outputs in (ours, theirs)
    )
    torch.testing.assert_close(found, expected)


def _by_strides(x: Tensor) -> tuple[Any, ...]:
    part = x.as_strided((2, 3), (3, 1), 2)
    part.mul_(2)
    return x + 1, part


def test_strides_of_an_input_that_begins_elsewhere() -> None:
    """Only what has a gradient is refused."""

    def given() -> Tensor:
        return torch.arange(16.0)[4:].view(3, 4)

    compiled = aot_compile(as_graph(_by_strides, 1), [given()], forward_compiler=run_fx)
    ours, theirs = given(), given()
    found, expected = compiled(ours), _by_strides(theirs)
    assert _memory(ours) == _memory(theirs)
    torch.testing.assert_close(found, expected)
    leaf = torch.arange(16.0, requires_grad=True)
    with pytest.raises(TraceError, match="does not begin where its storage does, with gradients"):
        inner = (leaf * 1)[4:].view(3, 4)
        aot_compile(as_graph(_by_strides, 1), [inner], forward_compiler=run_fx)


LISTS: dict[str, Callable[[Tensor], Any]] = {
    "twice": lambda x: torch._foreach_mul_([x, x], 2.0),
    "pieces that overlap": lambda x: torch._foreach_mul_([x[:2], x[1:]], [2.0, 3.0]),
    "pieces that do not": lambda x: torch._foreach_mul_([x[2:], x[:2]], 2.0),
    "rows of one": lambda x: torch._foreach_add_(list(x[:1].expand(3, *x.shape[1:])), 1.0),
    "read later": lambda x: torch._foreach_add_([x[:1], x[2:3]], [x[1:2], x[:1]], alpha=2),
    "three lists": lambda x: torch._foreach_addcmul_([x[:1], x[1:2]], [x[2:3]] * 2, [x[3:], x[:1]]),
    "copies": lambda x: torch._foreach_copy_([x[1:2], x[2:3]], [x[:1], x[1:2]]),
    "copies of another dtype": lambda x: torch._foreach_copy_([x, x[0]], [x.int() + 1, x[2]]),
    "a copy of itself": lambda x: torch._foreach_copy_([x], [x]),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_tensors_in_one_memory(name: str) -> None:
    """Eager goes through them one after another."""

    def fn(x: Tensor) -> tuple[Any, ...]:
        copy = x * 1
        LISTS[name](copy)
        LISTS[name](x)
        return copy, x + 1

    ours, theirs = (torch.arange(1.0, 13).view(4, 3) for _ in range(2))
    compiled = aot_compile(as_graph(fn, 1), [ours.clone()], forward_compiler=run_fx)
    torch.testing.assert_close(compiled(ours), fn(theirs))
    assert torch.equal(ours, theirs) and ours._version == theirs._version
