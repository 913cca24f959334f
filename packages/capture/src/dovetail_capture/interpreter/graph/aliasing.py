"""Guards on memory: where a graph writes to an input, no other input may come to share its storage;
and which open sizes may be 1: those for which results lie in memory as eager's do.

A compiler that knows two inputs as apart may read one before or after it writes to the other.

A captured graph answered questions on layouts as if open sizes were 2 or more. Here it is run again
on fake tensors of plain sizes, each combination of open sizes being 1, and what it gives is
compared with what the captured graph tells of its results at these sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

import torch
from dovetail_guards import clauses as c
from dovetail_guards import expr as e
from dovetail_guards.float_expr import ComputedSource
from dovetail_guards.shape_env import ShapeEnv
from dovetail_guards.source import Source
from dovetail_guards.sym_node import expr_of
from dovetail_prims.fake.fake_mode import FakeMode
from dovetail_prims.fake_tensor import FakeStorage, FakeTensor, make
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves

from dovetail_capture.environment.torch_state import torch_state_kept

# Functions that write to running statistics: the flag that makes them do so, its place, default.
_STATISTICS = {"batch_norm": ("training", 5, False), "instance_norm": ("use_input_stats", 5, True)}

_IN_PLACE = {"setitem", "__setitem__"} | {
    f"{prefix}i{name}{suffix}"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
    for prefix, suffix in (("", ""), ("__", "__"))
}
# Of module `operator`, whose names only look like those of functions that write.
_IN_NO_PLACE = {"and_", "or_", "not_", "is_"}


def writes(graph: Graph, fakes: Iterable[Any]) -> bool:
    """May the graph write to one of its inputs? `fakes` stand for them.

    Autograd's version counters tell of most writes. What they do not see (what kernels do inside,
    `.data`, inference mode, operators of the user) is told by names and schemas, rather once too
    often.
    """
    inference = False
    for fake in fakes:
        if fake.is_inference():
            inference = True
        elif fake._version:
            return True
    seen_otherwise = _is_in_place if inference else writes_unseen
    return any(seen_otherwise(node) or writes_unseen(node) for node in graph.nodes)


def writes_to_inputs(graph: Graph, inputs: Iterable[tuple[Any, Any]]) -> bool:
    """Of a graph that `writes`: is it to what it was given, for all that is known? (`copy_` is how
    an array that the graph made is written to; the versions tell of all others.)"""
    if any(fake.is_inference() or fake._version for _, fake in inputs):
        return True
    return any(writes_unseen(node) and node.target != "copy_" for node in graph.nodes)


def _name(node: Node) -> str:
    if isinstance(node.target, str):
        return node.target
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.split("::")[-1]
    return str(getattr(node.target, "__name__", node.target))


def writes_unseen(node: Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    name = _name(node)
    if name in _STATISTICS:
        return _is_in_training(node)
    if name == "set_grad_enabled" or name == "_set_grad_enabled":
        return False
    if isinstance(node.target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return _schema_writes(node.target)
    if name in _IN_NO_PLACE:
        return False
    return "out" in node.kwargs or (name.endswith("_") and not name.endswith("__"))


def _is_in_training(node: Node) -> bool:
    flag, place, default = _STATISTICS[_name(node)]
    given = node.kwargs.get(flag, node.args[place] if len(node.args) > place else default)
    return given is not False


def updates_statistics(node: Node) -> bool:
    """Does this node write to running statistics that it is given?"""
    if node.op != "call_function" or _name(node) not in _STATISTICS or not _is_in_training(node):
        return False
    mean = node.kwargs.get("running_mean", node.args[1] if len(node.args) > 1 else None)
    return mean is not None


def may_write(node: Node) -> bool:
    """May this node write to a tensor?"""
    return writes_unseen(node) or _is_in_place(node)


def written_by(node: Node) -> list[Node]:
    """What a node writes to, for all that is known, of what it is given."""
    if not may_write(node):
        return []
    out: Any = node.kwargs.get("out")
    found: list[Any] = list(out) if isinstance(out, (tuple, list)) else [out]
    if _name(node) in _STATISTICS:
        means = ("running_mean", "running_var")
        found += [*node.args[1:3], *(node.kwargs.get(name) for name in means)]
    elif isinstance(node.target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        found += node.all_input_nodes
    elif out is None or _is_in_place(node):
        found += node.args[:1]
    return [one for one in found if isinstance(one, Node)]


def _is_in_place(node: Node) -> bool:
    """By its looks, where no version is counted; a flag that is on may be `inplace`."""
    if node.op not in ("call_function", "call_method"):
        return False
    if getattr(node.target, "__module__", None) == "torch.nn.functional":
        return any(value is True for value in (*node.args, *node.kwargs.values()))
    return _name(node) in _IN_PLACE


def _schema_writes(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return bool(target._schema.is_mutable)
    return any(getattr(target, name)._schema.is_mutable for name in target.overloads())


def storage_guards(inputs: Sequence[tuple[Source, torch.Tensor]]) -> list[c.Clause]:
    """Inputs whose storages are different stay so; those that share one are not spoken of among
    themselves."""
    groups: dict[int, list[Source]] = {}
    for source, tensor in inputs:
        if tensor.layout == torch.strided:
            groups.setdefault(tensor.untyped_storage()._cdata, []).append(source)
    firsts = [sources[0] for sources in groups.values()]
    found: list[c.Clause] = []
    if len(firsts) < 2:
        return found
    found.append(c.DistinctStorage(tuple(firsts)))
    for sources in groups.values():
        others = [first for first in firsts if first is not sources[0]]
        found += [c.DistinctStorage((source, *others)) for source in sources[1:]]
    return found


class InputLayouts:
    """How inputs lie in memory when the graph begins: what it calls may change that in place (`t_`,
    `squeeze_`, `resize_`), and the same fakes are what it is then traced with."""

    def __init__(self) -> None:
        self._noted: list[tuple[Node, FakeTensor, tuple[Any, ...], tuple[Any, ...], Any]] = []

    def note(self, node: Node, fake: FakeTensor) -> None:
        """`fake` stands for a placeholder; nothing has been called on it yet."""
        self._noted.append((node, fake, fake._sizes, fake._strides, fake._offset))

    def have_changed(self) -> bool:
        """Does an input lie otherwise than it did at first?"""
        return any(
            fake._sizes is not sizes or fake._strides is not strides or fake._offset is not offset
            for _, fake, sizes, strides, offset in self._noted
        )

    def restore(self) -> None:
        """Let the placeholders whose layouts have changed stand for what was given."""
        for node, fake, sizes, strides, offset in self._noted:
            # (Compared as objects: asking symbolic sizes whether they are equal would guard them.)
            same = fake._sizes is sizes and fake._strides is strides and fake._offset is offset
            if not same:
                node.meta["val"] = FakeTensor.make(
                    sizes,
                    strides,
                    fake._dtype,
                    fake._device,
                    offset=offset,
                    storage=fake._storage,
                    requires_grad=fake.requires_grad,
                )


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
