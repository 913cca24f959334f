"""Small graphs of ATen operators as text, which an operator of ours can take as an argument.

A text is a list in JSON of the graph's calls, in order, and of what it gives. A value is named by
its number: first those of the inputs, then one for each call.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node


class NoText(ValueError):
    """The graph holds something that has no text."""


def text_of(graph: Graph) -> str:
    """The text of a graph. Raises `NoText` for anything but calls of ATen operators that give one
    tensor, on tensors and plain values."""
    numbers: dict[Node, int] = {}
    calls: list[list[Any]] = []
    results: Any = None
    for node in graph.nodes:
        if node.op == "placeholder":
            if calls:
                raise NoText("an input after a call")
            numbers[node] = len(numbers)
        elif node.op == "output":
            results = _written(list(node.args[0]), numbers)
        elif node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            if node.target.namespace != "aten" or len(node.target._schema.returns) != 1:
                raise NoText(f"a call of {node.target}")
            args, kwargs = _written(list(node.args), numbers), _written(node.kwargs, numbers)
            calls.append([str(node.target).removeprefix("aten."), args, kwargs])
            numbers[node] = len(numbers)
        else:
            raise NoText(f"{node.op} {node.target}")
    inputs = len(numbers) - len(calls)
    return json.dumps({"inputs": inputs, "calls": calls, "results": results})


def _written(value: Any, numbers: dict[Node, int]) -> Any:
    if isinstance(value, Node):
        return {"value": numbers[value]}
    if isinstance(value, list | tuple):
        return [_written(v, numbers) for v in value]
    if isinstance(value, dict):
        return {"options": {k: _written(v, numbers) for k, v in value.items()}}
    if value is None or type(value) in (bool, int, float, str):
        return value
    for kind in (torch.dtype, torch.layout, torch.memory_format):
        if isinstance(value, kind):
            return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    raise NoText(f"{type(value).__name__} as an argument")


def _read(value: Any, values: Sequence[Any]) -> Any:
    if isinstance(value, list):
        return [_read(v, values) for v in value]
    if isinstance(value, dict):
        ((kind, held),) = value.items()
        if kind == "value":
            return values[held]
        if kind == "options":
            return {k: _read(v, values) for k, v in held.items()}
        return torch.device(held) if kind == "device" else getattr(torch, held)
    return value


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    return json.loads(text)


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def run_text(text: str, inputs: Sequence[Tensor], results: int | None = None) -> list[Any]:
    """What the graph gives for some inputs; with `results` only so many of its first results, for
    which the inputs after those that they need may be left out."""
    parsed = _parsed(text)
    values: list[Any] = [*inputs, *[None] * (parsed["inputs"] - len(inputs))]
    wanted = parsed["results"][:results]
    needed = _needed(parsed, wanted)
    for number, (name, args, kwargs) in enumerate(parsed["calls"], parsed["inputs"]):
        found = None
        if number in needed:
            found = _operator(name)(*_read(args, values), **_read(kwargs, values))
        values.append(found)
    return [_read(result, values) for result in wanted]


def _needed(parsed: Any, wanted: Any) -> set[int]:
    """The numbers of the values that some results are made of."""
    needed = set(_numbers_in(wanted))
    first = parsed["inputs"]
    for number in range(first + len(parsed["calls"]) - 1, first - 1, -1):
        if number in needed:
            needed.update(_numbers_in(parsed["calls"][number - first][1:]))
    return needed


def _numbers_in(value: Any) -> list[int]:
    if isinstance(value, list):
        return [n for v in value for n in _numbers_in(v)]
    if isinstance(value, dict):
        if "value" in value:
            return [value["value"]]
        return _numbers_in(list(value["options"].values())) if "options" in value else []
    return []


def graph_of(text: str, fakes: Sequence[Tensor]) -> GraphModule:
    """The graph that a text holds, with `meta["val"]` as for inputs like `fakes` (fakes of
    `dovetail_prims`)."""
    from dovetail_prims.fake_tensor import propagate

    parsed = _parsed(text)
    graph = Graph()
    nodes: list[Node] = []
    for number, fake in enumerate(fakes):
        node = graph.placeholder(f"in{number}")
        node.meta["val"] = fake
        nodes.append(node)
    for name, args, kwargs in parsed["calls"]:
        operator = _operator(name)
        node = graph.call_function(operator, tuple(_read(args, nodes)), _read(kwargs, nodes))
        vals = [n.meta["val"] for n in nodes]
        node.meta["val"] = propagate(operator, tuple(_read(args, vals)), _read(kwargs, vals))
        nodes.append(node)
    graph.output(tuple(_read(parsed["results"], nodes)))
    return GraphModule({}, graph)
