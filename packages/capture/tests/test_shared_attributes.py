"""Objects that have one `__dict__` in common, as Borg's do: what one is given, all have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from construct_cases import CountingBackend
from dovetail_capture import graph_break, optimize
from torch import Tensor


class Shared:
    """All objects with one namespace have the same attributes."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.__dict__ = namespace


class Holder:
    def __init__(self, state: Shared, module: torch.nn.Module | None = None) -> None:
        self.state = state


def written(x: Tensor, a: Shared, b: Shared) -> Any:
    a.flag = True
    return x + 1 if b.flag else x - 1


def read_first(x: Tensor, a: Shared, b: Shared) -> Any:
    before = b.count
    a.count += 1
    return x * b.count, before, a.count - b.count


def deleted(x: Tensor, a: Shared, b: Shared) -> Any:
    del a.count
    had = hasattr(b, "count")
    b.new = x + 1
    return x * 2, had, a.new


def through_holders(x: Tensor, a: Shared, b: Shared) -> Any:
    first, second = Holder(a), Holder(b)
    first.state.flag = not second.state.flag
    graph_break()
    second.state.count = 7
    return x + first.state.count, second.state.flag


def by_name(x: Tensor, a: Shared, b: Shared) -> Any:
    setattr(a, "flag", x.ndim)  # noqa: B010
    vars(b)["count"] = 3
    return x + a.count + b.flag, [*a.__dict__], [*b.__dict__]


def outcome(program: Callable[..., Any], one: bool) -> Any:
    namespace = {"flag": False, "count": 2}
    a, b = Shared(namespace), Shared(namespace if one else dict(namespace))
    try:
        result: Any = program(torch.ones(2), a, b)
    except AttributeError as error:
        result = str(error)
    return repr(result), repr(vars(a)), repr(vars(b))


@pytest.mark.parametrize("program", [written, read_first, deleted, through_holders, by_name])
@pytest.mark.parametrize("order", [(True, True), (True, False, True), (False, True, False)])
def test_shared_or_not(program: Callable[..., Any], order: tuple[bool, ...]) -> None:
    captured = optimize(program, CountingBackend())
    for one in order:
        assert outcome(captured, one) == outcome(program, one)


class Stepping(torch.nn.Module):
    """Modules whose attributes are those of another."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.layer = 0, torch.nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return self.layer(x) * self.steps


def test_modules() -> None:
    def program(x: Tensor, first: Stepping, second: Stepping) -> Tensor:
        return first(x) + second(x)

    captured, first, second = optimize(program, CountingBackend()), Stepping(), Stepping()
    second.__dict__ = first.__dict__
    x = torch.ones(1, 2)
    for steps in (0, 2):
        wanted = program(x, first, second)
        first.steps = steps
        wanted = program(x, first, second)
        first.steps = steps
        assert torch.equal(captured(x, first, second), wanted)
        assert second.steps == steps + 2
