"""Operations that raise for what is in their arguments, where the program handles it.

PYTEST_DONT_REWRITE: pytest would put code of its own into the assertions of the programs.
"""

from __future__ import annotations

import contextlib
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from construct_cases import CountingBackend
from dovetail_capture import export, optimize
from torch import Tensor

X = torch.arange(9.0).reshape(3, 3) + torch.eye(3)
INSIDE, OUTSIDE = torch.tensor([1, 2]), torch.tensor([1, 5])
EVENTS: list[str] = []


class Keeps:
    """A block that keeps the exceptions of places to itself."""

    def __enter__(self) -> Keeps:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        return kind is IndexError


class Notes:
    """A block that lets all pass."""

    def __enter__(self) -> None:
        EVENTS.append("enter")

    def __exit__(self, *raised: Any) -> None:
        EVENTS.append("leave")


@contextlib.contextmanager
def kept() -> Iterator[None]:
    try:
        yield
    except IndexError:
        EVENTS.append("kept")


def clause(x: Tensor, i: Tensor) -> Tensor:
    y = x * 2
    try:
        y = y[i] + 1
    except IndexError:
        y = y - 1
    return y * 3


def bare(x: Tensor, i: Tensor) -> Any:
    try:
        return F.embedding(i, x)
    except:  # noqa: E722
        return "no embedding"


def named(x: Tensor, i: Tensor) -> Any:
    try:
        return torch.index_select(x, 0, i).sum()
    except (ValueError, LookupError) as error:
        return str(error)


def factors(x: Tensor, i: Tensor) -> Any:
    try:
        return torch.linalg.cholesky(x - i.sum())
    except RuntimeError:
        return torch.linalg.cholesky(torch.eye(3))


def called(x: Tensor, i: Tensor) -> Any:
    def pick(table: Tensor) -> Tensor:
        with torch.no_grad():
            return table.gather(0, i[:, None])

    try:
        return pick(x)
    except Exception:
        return x.sum()


def own_block(x: Tensor, i: Tensor) -> Tensor:
    with Keeps():
        x = x[i] + 1
    return x * 2


def suppressed(x: Tensor, i: Tensor) -> Tensor:
    with contextlib.suppress(IndexError):
        x = x[i] + 1
    return x * 2


def generator_block(x: Tensor, i: Tensor) -> Tensor:
    with kept():
        x = x[i] + 1
    return x * 2


def asserted(x: Tensor, i: Tensor) -> Any:
    case = unittest.TestCase()
    try:
        case.assertRaises(IndexError, x.__getitem__, i)
    except AssertionError as error:
        return str(error)
    return "raised"


def finally_(x: Tensor, i: Tensor) -> Any:
    try:
        y = x[i]
    finally:
        EVENTS.append("finally")
    return y


def divided(x: Tensor, i: Tensor) -> Any:
    try:
        return i // (i - 5)
    except RuntimeError:
        return x


def unfit(x: Tensor, i: Tensor) -> Any:
    """No kernel for these types, which is known before it runs."""
    try:
        return torch.atan2(x * 1j, x * 1j) if len(i) else x
    except RuntimeError:
        return x


def too_large(x: Tensor, i: Tensor) -> Any:
    try:
        return x.expand(1 << 20, 1 << 20, 3, 3).exp()
    except RuntimeError:
        return x + i[0]


def no_kernel(x: Tensor, i: Tensor) -> Any:
    try:
        return F.adaptive_max_pool2d(i.view(1, 1, 2), 1)
    except NotImplementedError as error:
        return x, str(error)


def segments(x: Tensor, i: Tensor) -> Any:
    try:
        return torch.segment_reduce(x, "max", lengths=i, unsafe=False)
    except RuntimeError as error:
        return str(error)


PROGRAMS = [segments, clause, bare, named, factors, called, own_block, suppressed,
            generator_block, asserted, finally_, divided, too_large]  # fmt: skip


BREAKING = [no_kernel, unfit]  # before the operation that will raise


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    EVENTS.clear()
    try:
        result: Any = function(*args)
    except Exception as error:
        result = (type(error).__name__, str(error))
    return repr(result), list(EVENTS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_programs_handler_runs(program: Callable[..., Any]) -> None:
    """In one graph, which Python stands in for where it raises; without a warning."""
    captured = optimize(program, CountingBackend(), fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in (INSIDE, OUTSIDE, INSIDE):
            assert outcome(captured, X, i) == outcome(program, X, i)


def written(x: Tensor, i: Tensor) -> Tensor:
    x.add_(1)
    try:
        return x[i]
    except IndexError:
        return x


def written_inside(x: Tensor, i: Tensor) -> Tensor:
    try:
        x.mul_(2)
        x[i] = 1.0
    except IndexError:
        x.add_(1)
    return x + 1


def written_and_left(x: Tensor, i: Tensor) -> Tensor:
    try:
        x.add_(1)
        y = x[i]
        x.mul_(2)
        return y
    finally:
        EVENTS.append("left")
        x.sub_(3)


def written_and_restored(x: Tensor, i: Tensor) -> Tensor:
    def pick(table: Tensor) -> Tensor:
        table.mul_(2)
        return F.embedding(i, table)

    before = x.clone()
    try:
        with torch.no_grad():
            y = pick(x)
    finally:
        x.copy_(before)
    return y + 1


@pytest.mark.parametrize(
    "program", [written, written_inside, written_and_left, written_and_restored]
)
def test_what_writes_to_its_arguments_breaks_the_graph(program: Callable[..., Any]) -> None:
    backend = CountingBackend()
    captured = optimize(program, backend)
    for i in (INSIDE, OUTSIDE):
        x, y = X.clone(), X.clone()
        assert outcome(captured, x, i) == outcome(program, y, i)
        assert torch.equal(x, y)


def passed_on(x: Tensor, i: Tensor) -> Any:
    x.add_(1)
    with Notes(), torch.no_grad():
        return x[i]


def restored(x: Tensor) -> Any:
    print("entered")
    EVENTS.append("changed")
    print("changed")
    try:
        y = torch.floor(x * 1j)
    finally:
        EVENTS.append("restored")
        print("left")
    return y


def test_a_finally_runs_where_the_graph_raises() -> None:
    for function in (restored, optimize(restored, CountingBackend())):
        raised, events = outcome(function, X)
        assert "floor" in raised
        assert events == ["changed", "restored"]


def test_blocks_that_let_all_pass_break_nothing() -> None:
    backend = CountingBackend()
    captured = optimize(passed_on, backend, fullgraph=True)
    assert torch.equal(captured(X.clone(), INSIDE), (X + 1)[INSIDE])
    assert len(backend.graphs) == 1


def test_gradients_and_exports() -> None:
    x = X.clone().requires_grad_()
    captured = optimize(clause, CountingBackend(), fullgraph=True)
    captured(x, OUTSIDE).sum().backward()
    assert torch.equal(x.grad, torch.full((3, 3), 6.0))
    exported = export(clause, (X, INSIDE))
    assert torch.equal(exported(X, INSIDE), clause(X, INSIDE))


@pytest.mark.parametrize("program", BREAKING)
def test_what_is_known_to_raise_is_run_by_python(program: Callable[..., Any]) -> None:
    captured = optimize(program, CountingBackend())
    for i in (INSIDE, OUTSIDE, INSIDE):
        assert outcome(captured, X, i) == outcome(program, X, i)
    assert captured.capture_context.log.breaks
