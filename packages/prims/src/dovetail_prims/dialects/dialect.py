"""The dialects of the op language, and `verify`: their grammar, executable.

TORCH is what capture records. ATEN is functional. CORE_ATEN is ATEN in the small op set of
`opsets.py`. PRIMS is CORE_ATEN with nothing left implicit: pointwise operands have one shape and
one dtype, broadcasting and conversion are ops of their own.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from dovetail_prims.dialects import opsets
from dovetail_prims.fake_tensor import tensor_meta
from dovetail_prims.ops.card import Dialect as Dialect
from dovetail_prims.sizes.size_nodes import NUMBER_FUNCTIONS


class VerifyError(Exception):
    """A graph breaks its dialect's grammar. The message shows the node and its neighbours."""

    def __init__(self, node: Node | None, dialect: Dialect, problem: str) -> None:
        self.node = node
        self.dialect = dialect
        self.problem = problem
        where = "" if node is None else f"\n{neighbourhood(node)}"
        super().__init__(f"not {dialect.name}: {problem}{where}")


# Integer arithmetic on symbolic sizes, allowed in every dialect.
_SIZE_FUNCTIONS: frozenset[Any] = frozenset(
    {
        operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg,
        operator.truediv, operator.eq, operator.ne, operator.lt, operator.le, operator.gt,
        operator.ge, operator.pow, math.ceil, math.floor, min, max, torch.sym_max, torch.sym_min,
        torch.sym_not, torch.sym_float, torch.sym_int, torch.sym_ite, *NUMBER_FUNCTIONS.values(),
    }
)  # fmt: skip
_SIZE_OPS = frozenset(
    {
        "aten.sym_size.int", "aten.sym_stride.int", "aten.sym_numel.default",
        "aten.sym_storage_offset.default", "aten.sym_size.default", "aten.sym_stride.default",
    }
)  # fmt: skip

# Argument types that a schema knows, besides tensors and nodes.
_LITERALS = (
    type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout,
    torch.memory_format, torch.SymInt, torch.SymFloat, torch.SymBool, torch.Generator,
)  # fmt: skip

_CORE_OPS = frozenset(f"aten.{name}" for name in opsets.CORE_ATEN)
_SAME_SHAPE_OPS = frozenset(
    f"aten.{name}" for name in (*opsets.POINTWISE_UNARY, *opsets.POINTWISE_BINARY, "where.self")
)


def verify(gm: GraphModule, dialect: Dialect, *, extern: Collection[Any] = ()) -> None:
    """Check that `gm` is in `dialect`; raises `VerifyError` at the first offence.

    `extern` lists op overloads that may appear besides the dialect's op set (calls that the next
    stage hands to a library). Every dialect: the graph is well formed and every node that stands
    for a value has `meta["val"]`. ATEN and narrower: only functional op overloads with arguments
    that their schemas allow, and the recorded metadata is a tensor's, a size's or a constant's.
    """
    try:
        gm.graph.lint()
    except RuntimeError as error:
        raise VerifyError(None, dialect, f"malformed graph: {error}") from error
    allowed = frozenset(extern)
    for node in gm.graph.nodes:
        for problem in _problems(gm, node, dialect, allowed):
            raise VerifyError(node, dialect, problem)


def _problems(
    gm: GraphModule, node: Node, dialect: Dialect, extern: frozenset[Any]
) -> Iterator[str]:
    """What is wrong with a node, if anything."""
    if node.op == "output":
        return
    if "val" not in node.meta:
        yield "the node has no meta['val']"
    if node.op == "placeholder":
        return
    if node.op == "get_attr":
        yield from _attribute_problems(gm, node)
        return
    if dialect is Dialect.TORCH:
        if node.op == "call_function" and not callable(node.target):
            yield f"{node.target!r} cannot be called"
        return
    if node.op != "call_function":
        yield f"{node.op} nodes end with TORCH: here every computation is a call_function"
        return
    yield from _call_problems(node, dialect, extern)


def _attribute_problems(gm: GraphModule, node: Node) -> Iterator[str]:
    value: Any = gm
    for part in str(node.target).split("."):
        if not hasattr(value, part):
            yield f"the module has no attribute {node.target}"
            return
        value = getattr(value, part)


def _call_problems(node: Node, dialect: Dialect, extern: frozenset[Any]) -> Iterator[str]:
    target = node.target
    if target is operator.getitem:
        source = node.args[0]
        if not isinstance(source, Node) or not isinstance(source.meta.get("val"), (list, tuple)):
            yield "getitem of something that is not a multiple result"
        return
    if target in _SIZE_FUNCTIONS:
        if isinstance(node.meta.get("val"), Tensor):
            yield f"{target} may compute sizes, not tensors"
        return
    if not isinstance(target, OpOverload):
        yield f"{_name(target)} is not an ATen op overload"
        return
    name = str(target)
    if name in _SIZE_OPS:
        return
    if target._schema.is_mutable:
        yield f"{name} writes to an argument: the dialect is functional"
    yield from _schema_problems(node, target)
    if target in extern:
        return
    if dialect is Dialect.ATEN:
        return
    if name not in _CORE_OPS:
        yield f"{name} is not in the op set, and not listed as extern"
    if dialect is Dialect.PRIMS and name in _SAME_SHAPE_OPS:
        yield from _implicit_problems(node, name)


def _schema_problems(node: Node, target: OpOverload) -> Iterator[str]:
    """Arguments that the op's schema does not know, or of a type no op takes."""
    arguments = target._schema.arguments
    positional = [a for a in arguments if not a.kwarg_only]
    if len(node.args) > len(positional):
        yield f"{target} takes {len(positional)} positional arguments, not {len(node.args)}"
    given = {a.name for a in positional[: len(node.args)]} | set(node.kwargs)
    for a in arguments:
        if a.name not in given and not a.has_default_value():
            yield f"{target} lacks its argument '{a.name}'"
    unknown = set(node.kwargs) - {a.name for a in arguments}
    if unknown:
        yield f"{target} has no argument '{min(unknown)}'"
    by_name = {a.name: a for a in arguments}
    values = [*zip(positional, node.args, strict=False)]
    values += [(by_name[k], v) for k, v in node.kwargs.items() if k in by_name]
    for argument, value in values:
        for leaf in _leaves(value):
            if isinstance(leaf, Node):
                val = leaf.meta.get("val")
                wants_tensor = str(argument.type).startswith("Tensor")
                if wants_tensor and isinstance(val, (list, tuple)):
                    yield f"argument '{argument.name}' is a multiple result: getitem is missing"
            elif not isinstance(leaf, _LITERALS):
                yield f"argument '{argument.name}' is a {type(leaf).__name__}"


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _implicit_problems(node: Node, name: str) -> Iterator[str]:
    """PRIMS: tensors of one shape and one dtype, no bare numbers that would be promoted."""
    val = node.meta.get("val")
    if not isinstance(val, Tensor):
        yield "a pointwise op gives a tensor"
        return
    shape = tuple(tensor_meta(val).sizes)
    dtypes = set()
    for position, argument in enumerate(node.args):
        if not isinstance(argument, Node):
            if isinstance(argument, (bool, int, float, complex)) and name != "aten.div.Tensor_mode":
                yield f"argument {position} is the number {argument!r}: make it a `full`"
            continue
        operand = argument.meta.get("val")
        if not isinstance(operand, Tensor):
            yield f"argument {position} is a size: make it a `full`"
            continue
        if tuple(tensor_meta(operand).sizes) != shape:
            yield (
                f"operand {argument.name} of shape {list(tensor_meta(operand).sizes)} would be "
                f"broadcast to {list(shape)}: expand it"
            )
        if not (name == "aten.where.self" and position == 0):
            dtypes.add(tensor_meta(operand).dtype)
    if len(dtypes) > 1:
        yield f"operands of different dtypes {sorted(map(str, dtypes))}: convert them"


def _name(target: Callable[..., Any] | str) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", repr(target))


def neighbourhood(node: Node) -> str:
    """The node between its neighbours in the graph, as text; an arrow marks it."""
    nodes = list(node.graph.nodes)
    at = nodes.index(node)
    lines = []
    for other in nodes[max(0, at - 3) : at + 4]:
        mark = "-->" if other is node else "   "
        lines.append(f"{mark} {other.format_node()}  # {_describe(other.meta.get('val'))}")
    trace = node.meta.get("stack_trace")
    if trace:
        lines.append(trace)
    return "\n".join(lines)


def _describe(val: Any) -> str:
    if isinstance(val, Tensor):
        m = tensor_meta(val)
        return f"{str(m.dtype).removeprefix('torch.')}{list(m.sizes)} {m.device}"
    if isinstance(val, (list, tuple)):
        return f"({', '.join(_describe(v) for v in val)})"
    return repr(val)
