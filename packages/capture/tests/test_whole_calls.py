"""Functions allowed in the graph, which are given and give more than tensors and containers."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from dovetail_capture import GraphBreakError, allow_in_graph, nonstrict_trace, optimize, run_graph
from torch.utils import _pytree as pytree


class Point:
    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y


class Weighted:
    """Holds a point, and a number that is no part of the tree."""

    def __init__(self, point: Point, by: Any, power: int) -> None:
        self.point, self.by, self.power = point, by, power


pytree.register_pytree_node(Point, lambda p: ((p.x, p.y), None), lambda xy, _: Point(*xy))
pytree.register_pytree_node(
    Weighted, lambda w: ((w.point, w.by), w.power), lambda parts, power: Weighted(*parts, power)
)
Pair = collections.namedtuple("Pair", "first second")


@nonstrict_trace
def product(point: Point, table: dict[str, Any], *, times: int = 1) -> torch.Tensor:
    return point.x * point.y * times + table["a"]


@allow_in_graph
def weighed(weighted: Weighted) -> torch.Tensor:
    return (weighted.point.x * weighted.by + weighted.point.y) ** weighted.power


@allow_in_graph
def many(x: torch.Tensor) -> Any:
    return Point(x + 1, [x, {"q": x * 2}]), Pair(x, 3), 5, None, (x,)


@allow_in_graph
def scaled(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(x) * model.factor


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factor = torch.nn.Linear(2, 2), 3
        self.register_buffer("shift", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.shift


def targets(compiled: Any) -> list[str]:
    """What the newest graph calls."""
    return [getattr(node.target, "__name__", "") for node in GRAPHS[-1].graph.nodes]


GRAPHS: list[torch.fx.GraphModule] = []


def kept(gm: torch.fx.GraphModule, inputs: Any) -> Any:
    GRAPHS.append(gm)
    return run_graph(gm, inputs)


def test_objects_are_taken_apart() -> None:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        return product(Point(x, x + 1), {"a": n}, times=2) + 1

    compiled = optimize(program, kept, fullgraph=True)
    x = torch.arange(3.0)
    for n in (2, 3, 4):
        assert torch.equal(compiled(x, n), program(x, n))
    assert "product" in targets(compiled) and "mul" not in targets(compiled)


def test_objects_and_tables_that_existed_are_what_the_frame_made_of_them() -> None:
    def program(point: Point, table: dict[str, Any]) -> torch.Tensor:
        point.x = point.x + 1
        table["a"] = point.y * 2
        return product(point, table)

    results = []
    for run in (program, optimize(program, kept, fullgraph=True)):
        point, table = Point(torch.arange(3.0), torch.ones(3)), {"a": 0}
        results.append([run(point, table), point.x, table["a"], run(point, table), point.x])
    assert all(map(torch.equal, *results))


def test_objects_within_objects() -> None:
    def program(x: torch.Tensor, power: int) -> torch.Tensor:
        return weighed(Weighted(Point(x, x + 1), x, power))

    compiled = optimize(program, kept, fullgraph=True)
    x = torch.arange(3.0)
    for power in (2, 3):
        assert torch.equal(compiled(x, power), program(x, power))


def test_results_are_put_together() -> None:
    def program(x: torch.Tensor) -> Any:
        point, pair, number, none, (one,) = many(x)
        return point.x * 2, point.y[1]["q"], pair.first, pair.second, number, none, one, point

    x = torch.arange(3.0)
    got = optimize(program, kept, fullgraph=True)(x)
    assert pytree.tree_all(bool, pytree.tree_map(
        lambda a, b: torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b,
        got, program(x),
    ))  # fmt: skip
    assert type(got[-1]) is Point


def test_modules_get_gradients() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return scaled(model, x) + 1

    model = Model()
    compiled = optimize(program, kept, fullgraph=True)
    x = torch.ones(2, 2)
    gradients = []
    for run in (program, compiled):
        model.zero_grad()
        run(x).sum().backward()
        assert model.linear.weight.grad is not None
        gradients.append(model.linear.weight.grad.clone())
    assert torch.equal(*gradients)
    assert sum(node.op == "placeholder" for node in GRAPHS[-1].graph.nodes) == 4
    with torch.no_grad():
        model.shift.add_(2)
    assert torch.equal(compiled(x), program(x))
    model.linear.weight = torch.nn.Parameter(torch.zeros(2, 2))
    assert torch.equal(compiled(x), program(x))


def test_other_objects_are_refused() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return scaled(object(), x)

    with pytest.raises(GraphBreakError, match=r"allowed in the graph.*\n.*\n.*\n.*_pytree"):
        optimize(program, kept, fullgraph=True)(torch.ones(2))


class Total(Pair):
    def total(self) -> Any:
        return self.first + self.second


class Row(list[Any]):
    pass


class Fixed(tuple[Any, ...]):
    pass


@allow_in_graph
def classes(*given: Any, by_name: Any = None) -> Any:
    parts = [*given, by_name]
    found = [part for part in parts if isinstance(part, (tuple, list))]
    names = "".join(type(part).__name__ for part in parts)
    return found[0][0] * len(names) + sum(len(part) for part in found)


@allow_in_graph
def turned(table: collections.OrderedDict[str, Any]) -> Any:
    table = table.copy()
    table.move_to_end("a")
    return next(iter(table.values())) * 2


@pytest.mark.parametrize(
    "program",
    [
        lambda x: classes(Pair(x, 2), by_name=Pair(x, x)),
        lambda x: classes([x, Pair(x, x)], (x, Total(x, x))),
        lambda x: classes(Total(x, x)),
        lambda x: classes(Row([x, x]), Fixed((x, 1))),
        lambda x: classes((x, x.shape, slice(1, 2))),
        lambda x: turned(collections.OrderedDict(a=x, b=x + 1)),
    ],
)
def test_arguments_keep_their_classes(program: Any) -> None:
    x = torch.arange(3.0)
    assert torch.equal(optimize(program, kept, fullgraph=True)(x), program(x))


def test_a_sequence_with_attributes_is_refused() -> None:
    def program(x: torch.Tensor) -> Any:
        row = Row([x])
        row.more = 1  # type: ignore[attr-defined]
        return classes(row)

    with pytest.raises(GraphBreakError, match="is called with an object of type"):
        optimize(program, kept, fullgraph=True)(torch.ones(2))
