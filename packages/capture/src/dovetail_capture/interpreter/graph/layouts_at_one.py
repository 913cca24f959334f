"""Which open sizes may be 1: those for which results lie in memory as eager's do.

A captured graph answered questions on layouts as if open sizes were 2 or more. Here it is run again
on fake tensors of plain sizes, each combination of open sizes being 1, and what it gives is
compared with what the captured graph tells of its results at these sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import torch
from dovetail_guards import expr as e
from dovetail_guards.computed import ComputedSource
from dovetail_guards.shape_env import ShapeEnv
from dovetail_guards.sym_node import expr_of
from dovetail_prims.fake.fake_mode import FakeMode
from dovetail_prims.fake_tensor import FakeStorage, FakeTensor, make
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves

from dovetail_capture.environment.torch_state import torch_state_kept
from dovetail_capture.interpreter.graph.aliasing import writes_unseen

_MOST_OPEN = 3  # sizes, each combination of which is tried


def close_sizes(module: GraphModule | None, env: ShapeEnv) -> None:
    """Close the open sizes that answers on layouts took for 2 or more and for which a result of the
    graph, or what shares memory with it, is another at size 1 than in eager.

    The layout of gradients is not known here: for sizes of inputs that have some, answers on
    layouts are guarded, those of the backend too.
    """
    exact = set() if module is None else set(_with_gradients(module, env))
    reason = "results lie otherwise in memory at size 1"
    asked = env.open.asked()
    kept = [] if module is None else sorted(asked - exact)[:_MOST_OPEN]
    env.close(asked.difference(kept), reason)
    env.open.names -= exact
    for count in range(1, len(kept) + 1):
        for ones in combinations(kept, count):
            if env.open.names.issuperset(ones) and not _agrees(module, env, ones):
                env.close(ones, reason)


def _with_gradients(module: GraphModule, env: ShapeEnv) -> Iterator[str]:
    """The symbols of inputs whose gradients somebody else is given."""
    for node in module.graph.find_nodes(op="placeholder"):
        val = node.meta["val"]
        if isinstance(val, torch.Tensor) and val.requires_grad:
            for size in val.shape:
                yield from env.replace(expr_of(size)).free_symbols()


def _agrees(module: Any, env: ShapeEnv, ones: Sequence[str]) -> bool:
    """Whether the graph's results are what the captured graph says of them where these sizes are 1,
    or guards leave no such call."""
    placeholders = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    (output,) = module.graph.find_nodes(op="output")
    told_of = {node: node.meta.get("val") for node in module.graph.nodes}
    told = [told_of[node] if isinstance(node, Node) else node for node in output.args[0]]
    run = Interpreter(module, garbage_collect_values=False)
    try:
        if any(isinstance(source, ComputedSource) for source in env.sources.values()):
            return False  # (what is computed of these sizes is another number then)
        chosen = {**env.hints, **dict.fromkeys(ones, 1)}
        values = {name: env.replace(e.symbol(name)).evaluate(chosen) for name in env.hints}
        if not all(decision.relation.evaluate(values) for decision in env.decisions):
            return True
        at = _Sizes(values)
        # (Writes to inference tensors are not counted.)
        with torch_state_kept(), torch.inference_mode(False), torch.no_grad():
            given = [at.plain(val) for val in placeholders]
            expected = _description([*given, *map(at.plain, told)])
            with FakeMode():
                results = run.run(*given)
    except Exception:  # (what is refused at these sizes, a graph of their own is to refuse)
        return False
    if expected != _description([*given, *results]):
        return False
    written = any(isinstance(v, torch.Tensor) and v._version for v in run.env.values())
    if not (written or any(map(writes_unseen, module.graph.nodes))):
        return True
    # What is written to shows wherever its memory is read.
    nodes = [node for node in run.env if node.op != "output"]
    shared = (_memories([env[node] for node in nodes]) for env in (told_of, run.env))
    return len({*map(tuple, shared)}) == 1


class _Sizes:
    """What stands for values over symbols at some sizes, storages being kept apart as they are."""

    def __init__(self, values: dict[str, int]) -> None:
        self._values = values
        self._storages: dict[int, FakeStorage] = {}

    def _number(self, number: Any) -> Any:
        return number if type(number) is int else expr_of(number).evaluate(self._values)

    def plain(self, val: Any) -> Any:
        """A tensor or number of these sizes."""
        if isinstance(val, torch.SymInt):
            return self._number(val)
        if type(val) is not FakeTensor:
            if isinstance(val, (torch.Tensor, torch.SymFloat, torch.SymBool)):
                raise TypeError("a tensor that wraps others, or a number that is no size")
            return val
        sizes, strides = (tuple(map(self._number, n)) for n in (val._sizes, val._strides))
        storage = self._storages.setdefault(id(val._storage), FakeStorage())
        return make(sizes, strides, val._dtype, val._device, self._number(val._offset), storage)


def _description(values: Sequence[Any]) -> list[Any]:
    """Numbers, and of tensors what they are like and which of them share memory."""
    found: list[Any] = [_memories(values)]
    for value in values:
        if isinstance(value, FakeTensor):
            found.append((value._sizes, value._strides, value._offset, value._dtype, value._device))
        else:
            found.append(value)
    return found


def _memories(values: Sequence[Any]) -> list[int]:
    """Which tensors among these share memory: equal numbers."""
    first: dict[int, int] = {}
    tensors = [value for value in tree_leaves(values) if isinstance(value, FakeTensor)]
    return [first.setdefault(id(tensor._storage), len(first)) for tensor in tensors]
