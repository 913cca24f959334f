"""Small functions on graph values: nodes, the fakes they stand for, keys of operators, and
symbolic sizes as numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from dovetail_guards.sym_node import expr_of
from dovetail_prims.fake_tensor import FakeTensor, propagate
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from dovetail_autograd_aot.graph.fast_graph import WHOLE_STORAGE
from dovetail_autograd_aot.graph.op_info import OpKind, op_info
from dovetail_autograd_aot.trace import storage

aten = torch.ops.aten

# What they give lies as their first argument does, of which they copy all the memory.
_SCATTERS = frozenset(
    {
        aten.select_scatter.default, aten.slice_scatter.default, aten.diagonal_scatter.default,
        aten.as_strided_scatter.default,
    }
)  # fmt: skip
# They count from the beginning of their argument's memory.
_FROM_THE_BEGINNING = frozenset(
    {
        aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default,
    }
)  # fmt: skip


def values(value: Any) -> Any:
    """Fakes and symbolic sizes for nodes."""
    if type(value) is Node:
        return value.meta["val"]
    if type(value) is tuple:
        return tuple(values(v) for v in value)
    if isinstance(value, (list, tuple)):
        return [values(v) for v in value]
    return value


def attribute_of(gm: GraphModule, target: str) -> Any:
    """What a `get_attr` node reads."""
    value: Any = gm
    for part in target.split("."):
        value = getattr(value, part)
    return value


def values_of(kwargs: dict[str, Any]) -> dict[str, Any]:
    """`values` of keyword arguments."""
    return {k: values(v) for k, v in kwargs.items()} if kwargs else kwargs


def wrapped(value: Any) -> Any:
    """Traced tensors for nodes, so that a decomposition can be called on them."""
    if type(value) is Node:
        val = value.meta["val"]
        return storage.fresh(value) if isinstance(val, FakeTensor) else val
    if isinstance(value, (list, tuple)):
        return type(value)(wrapped(v) for v in value)
    return value


def wrapped_dict(kwargs: dict[str, Any]) -> dict[str, Any]:
    """`wrapped` of keyword arguments."""
    return {k: wrapped(v) for k, v in kwargs.items()}


def merge_key(value: Any) -> Any:
    """A hashable stand-in for arguments: equal only if they mean the same (1 is not 1.0 here)."""
    kind = type(value)
    if kind is Node:
        return value
    if kind is tuple or kind is list or isinstance(value, (list, tuple)):
        return tuple([merge_key(v) for v in value])
    if kind is float:
        return (float, value, math.copysign(1.0, value))
    if kind is int or kind is bool or kind is complex:
        return (kind, value)
    return value


def flatten(values: Sequence[Any]) -> list[Any]:
    """The values, with those of lists and tuples among them in their place."""
    flat: list[Any] = []
    for v in values:
        flat.extend(v) if isinstance(v, (list, tuple)) else flat.append(v)
    return flat


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal; asking assumes nothing about symbolic ones."""
    if a is b:
        return True
    if type(a) is int and type(b) is int:
        return a == b
    return expr_of(a) is expr_of(b)


def same_sizes(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether two shapes are known to be equal."""
    return len(a) == len(b) and all(map(same_size, a, b))


def same_metadata(a: FakeTensor, b: FakeTensor) -> bool:
    """Whether a tensor like `a` can stand for one like `b`: users see all strides, those of
    dimensions of one element too."""
    return (
        a._dtype is b._dtype
        and same_sizes(a._sizes, b._sizes)
        and same_sizes(a._strides, b._strides)
        and a._device == b._device
        and same_size(a._offset, b._offset)
    )


def same_strides(a: FakeTensor, b: FakeTensor) -> bool:
    """Whether two tensors of one shape have the same strides where they matter."""
    return all(
        same_size(x, y) or same_size(size, 1)
        for x, y, size in zip(a._strides, b._strides, a._sizes, strict=True)
    )


def hint(size: Any) -> int:
    """The example value of a size; a large one where only the data tells it."""
    return size if type(size) is int else int(size.node.hint_or_guess())


def is_contiguous(val: FakeTensor) -> bool:
    """Whether the strides are those of a dense tensor in row-major order."""
    expected: Any = 1
    for size, stride in zip(reversed(val._sizes), reversed(val._strides), strict=True):
        if same_size(size, 1):
            continue
        if not same_size(stride, expected):
            return False
        expected = expected * size
    return True


def viewable(val: FakeTensor, sizes: tuple[Any, ...]) -> bool:
    """Whether a tensor can be seen in another shape without a copy."""
    if is_contiguous(val):
        return True
    try:
        propagate(aten.view.default, (val, list(sizes)), {})
    except (RuntimeError, ValueError):
        return False
    return True


def value_bytes(value: object) -> int:
    """The bytes of a tensor (at hint sizes); 8 for a number; the sum over a tuple."""
    if isinstance(value, FakeTensor):
        return math.prod(hint(s) for s in value._sizes) * value._dtype.itemsize
    if isinstance(value, torch.Tensor):
        return value.numel() * value.dtype.itemsize
    if isinstance(value, (tuple, list)):
        return sum(value_bytes(v) for v in value)
    return 8


def example_values(gm: GraphModule) -> list[Any]:
    """The values that stand for a graph's inputs."""
    return [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]


# --- what values share memory with ----------------------------------------------------------------
# (A graph that writes to nothing needs no copy of an input, but the program may write to the input,
# a queue or a buffer, before the backward reads the copy.)


def views_memory(node: Node) -> bool:
    """Whether a node's result may share memory with its first argument."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return False
    kind = op_info(target).kind
    return kind in (OpKind.VIEW, OpKind.ALIAS) or target is aten._unsafe_view.default


def begins_its_memory(node: Node) -> bool:
    """Whether a node's value is known to begin where its memory does."""
    while same_size(node.meta["val"]._offset, 0):
        if node.op == "placeholder":
            return WHOLE_STORAGE.holds(node)
        if node.target not in _SCATTERS and not views_memory(node):
            return True
        node = node.args[0]  # type: ignore[assignment]
    return False


def copies_input(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Is it a copy of an input, or of a view of one, in the layout that it has?"""
    if func is not aten.clone.default:
        return False
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return False
    source = args[0]
    while type(source) is Node and views_memory(source):
        source = source.args[0]
    return type(source) is Node and source.op == "placeholder"


def is_copy_of_input(node: Node) -> bool:
    """`copies_input` of a node."""
    return node.op == "call_function" and copies_input(node.target, node.args, node.kwargs)


def can_be_read_from_input(node: Node) -> bool:
    """Whether everybody who reads a copy of an input can as well read what it is a copy of: its
    values alone, in the same layout. A copy that is written to, or counted in from the beginning of
    its memory, is needed as it is."""
    if not is_copy_of_input(node):
        return False
    source = node.args[0]
    assert isinstance(source, Node)
    return same_metadata(node.meta["val"], source.meta["val"]) and all(
        user.op == "output" or _reads_values(user.target) for user in node.users
    )


def _reads_values(target: Any) -> bool:
    functional = isinstance(target, OpOverload) and not target._schema.is_mutable
    return functional and target not in _FROM_THE_BEGINNING


class SizeReader:
    """What a graph's inputs tell of its symbols. `examples` are what is known of each input: a
    fake, a symbolic number, or anything else, which tells nothing."""

    def __init__(self, examples: Sequence[Any]) -> None:
        self.examples = examples

    def tell(self, sizes: Iterable[Any], count: int | None = None) -> bool:
        """Whether the first `count` inputs (all, if None) tell these sizes in every call."""
        told: set[str] = set()
        for example in self.examples[:count]:
            parts = example._sizes if isinstance(example, FakeTensor) else (example,)
            told.update(name for name in map(_symbol, parts) if name is not None)
        return all(expr_of(size).free_symbols() <= told for size in sizes)

    def read(self, actual: Sequence[Any]) -> dict[str, int]:
        """The symbols' values in a call with these inputs."""
        known: dict[str, int] = {}
        for example, value in zip(self.examples, actual, strict=True):
            if isinstance(example, FakeTensor) and isinstance(value, Tensor):
                pairs = zip(map(_symbol, example._sizes), value.shape, strict=True)
                known.update((name, size) for name, size in pairs if name is not None)
            elif (name := _symbol(example)) is not None:
                known[name] = value
        return known


def as_numbers(sizes: Iterable[Any], known: Mapping[str, int]) -> tuple[int, ...]:
    """Sizes where the symbols have these values."""
    return tuple(s if type(s) is int else expr_of(s).evaluate(known) for s in sizes)


def _symbol(value: Any) -> str | None:
    """The name of the symbol that this is, if it is one."""
    return expr_of(value).symbol_name if isinstance(value, torch.SymInt) else None
