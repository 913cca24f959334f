"""Complex arithmetic as loops over real and imaginary parts: a pass over a functional graph.

Loops know no complex numbers. What computes or moves them point by point is written as two real
tensors here, so that it fuses with what comes before and after (`view_as_complex(x) * rotation`, a
rotary embedding, is a few real products), and no whole tensor is copied for a part that is
replaced. What else reads complex numbers (Fourier transforms, products of matrices) stays a library
call: it gets the parts put together in memory, and its result is read as pairs of real numbers.

Products are those of PyTorch's kernels: (a + bi)(c + di) = (ac - bd) + (ad + bc)i, where a real
factor has a zero for its imaginary part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor, is_lazy
from dovetail_prims.shape_rules.layout import contiguous, dense_order, is_canonical
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

from dovetail_inductor.fx_nodes import fake_of, is_given_out
from dovetail_inductor.loop_ir.loops import PART
from dovetail_inductor.options import InductorOptions

aten = torch.ops.aten

# (The library rounds products of halves once; parts would be rounded one by one.)
_COMPUTED_DTYPES = frozenset({torch.complex64, torch.complex128})
# What shows the same elements otherwise: of each part as of the whole.
_VIEWS = frozenset(
    {
        aten.view.default, aten.permute.default, aten.expand.default, aten.slice.Tensor,
        aten.select.int, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims,
        aten.squeeze.default, aten.t.default, aten.transpose.int, aten.diagonal.default,
    }
)  # fmt: skip
# What there is in either form without being computed.
_LAZY = _VIEWS | {aten.view_as_complex.default}
# What does to each part what it does to the whole, and how many of its arguments, from the first,
# are such wholes.
_APART: dict[Any, int] = {
    aten.clone.default: 1, aten.neg.default: 1, aten.cat.default: 1, aten.stack.default: 1,
    aten.flip.default: 1, aten.roll.default: 1, aten.triu.default: 1, aten.tril.default: 1,
    aten.index.Tensor: 1, aten.index_select.default: 1, aten.sum.default: 1,
    aten.sum.dim_IntList: 1, aten.slice_scatter.default: 2, aten.select_scatter.default: 2,
    aten.diagonal_scatter.default: 2, aten.add.Tensor: 2, aten.sub.Tensor: 2, aten.add.Scalar: 2,
    aten.sub.Scalar: 2,
}  # fmt: skip
_SCATTERS = (
    aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default,
)  # fmt: skip
# Keyword arguments that change nothing about that.
_PLAIN = frozenset({"memory_format", "layout", "device", "pin_memory"})

Parts = tuple[Any, Any]
"""Real and imaginary part: nodes, or numbers where an operand is one."""


def complex_parts(gm: GraphModule, options: InductorOptions) -> GraphModule:
    """The graph with such arithmetic on real tensors; `gm` itself if it has none, or is a CPU's:
    the library's loops there have vectors of pairs, and ours have not."""
    if not any(_is_computed(node) and _is_taken_apart(node, options) for node in gm.graph.nodes):
        return gm
    copier = _Copier(Graph())
    for node in gm.graph.nodes:
        copier.take(node)
    return GraphModule(gm, copier.graph)


def _is_taken_apart(node: Node, options: InductorOptions) -> bool:
    return not options.target_of(fake_of(node).device).library.has_complex_loops


def _is_complex(node: Any) -> bool:
    """Whether a node is a complex tensor whose parts lie in memory as they are."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, FakeTensor) and value.dtype in _COMPUTED_DTYPES and not is_lazy(value)


def _is_computed(node: Node) -> bool:
    """Whether a node computes complex numbers of parts."""
    if node.op != "call_function" or not _is_complex(node):
        return False
    if not all(map(_is_known, node.all_input_nodes)):
        return False
    # (What replaces a part of another tensor keeps the gaps that this one lies with.)
    if not _is_dense(fake_of(node)) and (node.target not in _SCATTERS or is_given_out(node)):
        return False
    if node.target is aten._to_copy.default:
        (source,) = node.all_input_nodes
        if source.meta["val"].device != fake_of(node).device:
            return False
    if any(isinstance(a, complex) for a in node.args[2:]):
        return False  # (a complex factor of what is added)
    if node.target in _APART:
        return node.kwargs.keys() <= _PLAIN
    if node.target is aten.rsub.Scalar and len(node.args) > 2:
        return False
    return node.target in _COMPUTED and node.kwargs.keys() <= {"dtype", *_PLAIN}


def _is_known(node: Node) -> bool:
    """Whether a node's values are what its memory holds, and its parts have a dtype."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return True
    known = value.dtype in _COMPUTED_DTYPES or not value.dtype.is_complex
    return known and not is_lazy(value)


def _is_dense(value: FakeTensor) -> bool:
    """Whether memory so laid out holds each element once and nothing between them."""
    numbers = (*value._sizes, *value._strides)
    if not all(type(n) is int for n in numbers):
        return is_canonical(value)
    return dense_order(value._sizes, value._strides) is not None


@dataclass
class _Number:
    """A complex tensor in the forms that it was asked for in."""

    whole: Node | None = None
    pairs: Node | None = None
    parts: Parts | None = None


class _Copier:
    """Copies a graph node by node; a complex one only in the forms that are asked for."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.copies: dict[Node, Node] = {}  # of what is not complex
        self.numbers: dict[Node, _Number] = {}

    def take(self, node: Node) -> None:
        """The next node."""
        if _is_complex(node):
            self.numbers[node] = number = _Number()
            if not (_is_computed(node) or node.target in _LAZY):
                number.whole = self.copy(node)
        elif node.target in _READ and _is_complex(node.args[0]) and not is_given_out(node):
            self.copies[node] = _READ[node.target](self, node.args[0])
        else:
            self.copies[node] = self.copy(node)

    def copy(self, node: Node) -> Node:
        """The node as it is."""
        return self.graph.node_copy(node, self.form)

    def form(self, node: Node) -> Node:
        """What a library call reads in a node's place."""
        return self.whole(node) if node in self.numbers else self.copies[node]

    def call(self, op: Any, *args: Any, **kwargs: Any) -> Node:
        """A new node, with its value."""
        node = self.graph.call_function(op, args, kwargs)
        values = map_aggregate(args, lambda a: a.meta["val"] if isinstance(a, Node) else a)
        node.meta["val"] = op(*values, **kwargs)
        return node

    def whole(self, node: Node) -> Node:
        """A complex node in memory."""
        number = self.numbers[node]
        if number.whole is None:
            if node.target in _LAZY:
                number.whole = self.copy(node)
            else:
                number.whole = self.call(aten.view_as_complex.default, self.pairs(node))
                number.whole.meta = dict(node.meta)
        return number.whole

    def pairs(self, node: Node) -> Node:
        """A complex node's parts side by side, as `view_as_real` shows them."""
        number = self.numbers[node]
        if number.pairs is None:
            number.pairs = self._pairs(node)
        return number.pairs

    def _pairs(self, node: Node) -> Node:
        if node.target is aten.view_as_complex.default:
            return self.copies[node.args[0]]  # type: ignore[index]
        if not self.is_apart(node):
            return self.call(aten.view_as_real.default, self.whole(node))
        each = [self.call(aten.unsqueeze.default, part, -1) for part in self.parts(node)]
        found = self.call(aten.cat.default, each, -1)
        value = fake_of(node)
        if _is_dense(value):
            strides = (*(2 * n for n in value._strides), 1)
            found.meta["val"] = _laid_out((*value._sizes, 2), strides, value)
        return found

    def is_apart(self, node: Any) -> bool:
        """Whether a complex node's parts are there without its being in memory."""
        if node.target in _VIEWS:
            return self.is_apart(node.args[0])
        return _is_computed(node) or node.target is aten.view_as_complex.default

    def parts(self, node: Node) -> Parts:
        """Real and imaginary part of a complex node."""
        number = self.numbers[node]
        if number.parts is None:
            number.parts = self._parts(node)
        return number.parts

    def _parts(self, node: Node) -> Parts:
        arguments: Any = node.args
        if node.target in _VIEWS:
            others: Any = map_aggregate(arguments[1:], self.other)
            real, imag = self.parts(arguments[0])
            return self.call(node.target, real, *others), self.call(node.target, imag, *others)
        if not _is_computed(node):
            pairs = self.pairs(node)
            return self.call(aten.select.int, pairs, -1, 0), self.call(
                aten.select.int, pairs, -1, 1
            )
        real, imag = (
            _each(self, node) if node.target in _APART else _COMPUTED[node.target](self, node)
        )
        value = fake_of(node)
        for part in (real, imag):
            part.meta["val"] = _laid_out(value._sizes, value._strides, value)
        return real, imag

    def other(self, argument: Any) -> Any:
        """An argument that is no complex number."""
        return self.copies[argument] if isinstance(argument, Node) else argument

    def operand(self, argument: Any, result: Node) -> Parts:
        """The parts of an operand, a number or a tensor, of the dtype of a result's."""
        if not isinstance(argument, Node) or not isinstance(argument.meta["val"], Tensor):
            argument = self.other(argument)
            number = isinstance(argument, complex)
            return (argument.real, argument.imag) if number else (argument, 0.0)
        wanted = PART[fake_of(result).dtype]
        apart = argument in self.numbers
        real, imag = self.parts(argument) if apart else (self.copies[argument], None)
        if real.meta["val"].dtype is not wanted:
            real = self.call(aten._to_copy.default, real, dtype=wanted)
            imag = imag and self.call(aten._to_copy.default, imag, dtype=wanted)
        return real, self.zero(real) if imag is None else imag

    def zero(self, like: Node) -> Node:
        """Zeros of a part's shape."""
        value = like.meta["val"]
        sizes = [
            size if type(size) is int else self.call(aten.sym_size.int, like, d)
            for d, size in enumerate(value._sizes)
        ]
        return self.filled(sizes, 0.0, value.dtype, value.device)

    def filled(self, sizes: Any, value: float, dtype: torch.dtype, device: torch.device) -> Node:
        """A part that is the same everywhere."""
        options: dict[str, Any] = {"dtype": dtype, "device": device}
        node = self.graph.call_function(aten.full.default, (sizes, value), options)
        known = [n.meta["val"] if isinstance(n, Node) else n for n in sizes]
        node.meta["val"] = FakeTensor.make(known, contiguous(tuple(known)), dtype, device)
        return node


def _laid_out(sizes: Any, strides: Any, like: FakeTensor) -> FakeTensor:
    return FakeTensor.make(tuple(sizes), tuple(strides), PART[like.dtype], like.device)


# --- what is computed -----------------------------------------------------------------------------


def _each(copier: _Copier, node: Node) -> Parts:
    """The operator on the real parts, and on the imaginary ones."""
    wholes, others = node.args[: _APART[node.target]], node.args[_APART[node.target] :]

    def of(part: int) -> Node:
        values: Any = map_aggregate(wholes, lambda a: copier.operand(a, node)[part])
        rest: Any = map_aggregate(others, copier.other)
        return copier.call(node.target, *values, *rest)

    return of(0), of(1)


def _product(copier: _Copier, node: Node) -> Parts:
    (a, b), (c, d) = (copier.operand(operand, node) for operand in node.args[:2])

    def times(x: Any, y: Any) -> Node:
        return copier.call(aten.mul.Tensor, *((x, y) if isinstance(x, Node) else (y, x)))

    return (
        copier.call(aten.sub.Tensor, times(a, c), times(b, d)),
        copier.call(aten.add.Tensor, times(a, d), times(b, c)),
    )


def _difference(copier: _Copier, node: Node) -> Parts:
    """What is subtracted comes first, then a number."""
    parts, numbers = (copier.operand(operand, node) for operand in node.args)

    def less(part: int) -> Node:
        negative = copier.call(aten.neg.default, parts[part])
        return copier.call(aten.add.Tensor, negative, numbers[part])

    return less(0), less(1)


def _conjugate(copier: _Copier, node: Node) -> Parts:
    real, imag = copier.operand(node.args[0], node)
    return copier.call(aten.clone.default, real), copier.call(aten.neg.default, imag)


def _where(copier: _Copier, node: Node) -> Parts:
    condition, *values = node.args
    (a, b), (c, d) = (copier.operand(value, node) for value in values)
    condition = copier.other(condition)
    return (
        copier.call(aten.where.self, condition, a, c),
        copier.call(aten.where.self, condition, b, d),
    )


def _converted(copier: _Copier, node: Node) -> Parts:
    real, imag = copier.operand(node.args[0], node)
    return copier.call(aten.clone.default, real), copier.call(aten.clone.default, imag)


def _filled(copier: _Copier, node: Node) -> Parts:
    sizes = map_aggregate(node.args[0], copier.other) if len(node.args) > 1 else []
    value = fake_of(node)
    real, imag = copier.operand(node.args[-1], node)
    kind = PART[value.dtype]
    return (
        copier.filled(sizes, real, kind, value.device),
        copier.filled(sizes, imag, kind, value.device),
    )


_COMPUTED: dict[Any, Callable[[_Copier, Node], Parts]] = {
    aten.mul.Tensor: _product,
    aten.mul.Scalar: _product,
    aten.rsub.Scalar: _difference,
    aten._conj_physical.default: _conjugate,
    aten.conj_physical.default: _conjugate,
    aten.where.self: _where,
    aten._to_copy.default: _converted,
    aten.full.default: _filled,
    aten.scalar_tensor.default: _filled,
}


# --- what reads complex numbers and gives real ones -----------------------------------------------

_READ: dict[Any, Callable[[_Copier, Any], Node]] = {
    aten.view_as_real.default: lambda copier, source: copier.pairs(source),
    aten.real.default: lambda copier, source: copier.parts(source)[0],
    aten.imag.default: lambda copier, source: copier.parts(source)[1],
}
