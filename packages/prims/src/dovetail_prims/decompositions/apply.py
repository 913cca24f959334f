"""Rewrite a graph by a decomposition table: each op that has an entry becomes the ops it calls.

Ops without an entry are copied; nothing is computed for them. An entry is run on the fakes that the
nodes carry as `meta["val"]`, under a mode that records what it calls. Every recorded node has its
`val`, and the `stack_trace` of the node it came from.

The tables are made of the cards. An entry has its op's signature. It is called with tensors of any
kind, fake ones too, under the mode that records; the ops it calls are either in CORE_ATEN or have
entries themselves. An entry that returns NotImplemented leaves the op as it is. Arithmetic on
complex numbers is left as it is (see `_real_only`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from types import MappingProxyType
from typing import Any

import torch
from dovetail_guards.expr import Atom, Expr
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from dovetail_prims.decompositions.operand_layouts import laid_out
from dovetail_prims.dialects.dialect import Dialect
from dovetail_prims.fake.fake_mode import DispatchMode
from dovetail_prims.fake.from_real import from_real
from dovetail_prims.fake_tensor import FakeTensor, propagate
from dovetail_prims.ops import catalog
from dovetail_prims.ops.common import resolve


def _real_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """An entry for real numbers alone: no kernel of ours takes complex ones, and formulas for real
    numbers (derivatives without a conjugate, norms, comparisons) are wrong for them."""

    @wraps(function)
    def entry(*args: Any, **kwargs: Any) -> Any:
        for arg in args:
            if isinstance(arg, Tensor):
                if arg.dtype.is_complex:
                    return NotImplemented
            elif isinstance(arg, (list, tuple)):
                if any(isinstance(a, Tensor) and a.dtype.is_complex for a in arg):
                    return NotImplemented
            elif isinstance(arg, complex):
                return NotImplemented
        dtype = kwargs.get("dtype")
        if dtype is not None and dtype.is_complex:
            return NotImplemented
        return function(*args, **kwargs)

    return entry


@cache
def core_aten_table() -> Mapping[OpOverload, Callable[..., Any]]:
    """Every decomposition to CORE_ATEN, keyed by op; ops that this torch lacks are left out."""
    of_complex = catalog.of_complex()
    guarded = {
        name: entry if name in of_complex else _real_only(entry)
        for name, entry in catalog.to_core_aten().items()
    }
    return MappingProxyType({op: laid_out(op, entry) for op, entry in resolve(guarded).items()})


@cache
def prims_table() -> Mapping[OpOverload, Callable[..., Any]]:
    """Every decomposition from CORE_ATEN to PRIMS, keyed by op."""
    return MappingProxyType(resolve(catalog.to_prims()))


Table = Mapping[OpOverload, Callable[..., Any]]
# Questions about a fake of symbolic sizes reach a mode as ops; they are answered, not recorded.
QUERIES = frozenset(
    f"aten::{name}"
    for name in (
        *("dim", "size", "stride", "numel", "sym_size", "sym_stride", "sym_numel"),
        *("sym_storage_offset", "is_contiguous", "sym_is_contiguous"),
        *("is_strides_like_format", "is_non_overlapping_and_dense"),
    )
)
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class DecomposeError(RuntimeError):
    """A graph that cannot be rewritten: a node without a value, a size nothing computes."""


class _Sizes:
    """Nodes for symbolic sizes: those of the graph, or new ones built from the inputs' sizes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.known: dict[str, Node] = {}  # printed expression -> node
        self.readable: dict[str, tuple[Node, int]] = {}  # the same -> (tensor input, dimension)

    def learn(self, node: Node, value: Any) -> None:
        """Note what an input, or a node that computes a size, tells."""
        if isinstance(value, torch.SymInt):
            self.known.setdefault(str(value), node)
        elif type(value) is FakeTensor and node.op == "placeholder":
            for dim, size in enumerate(value._sizes):
                if type(size) is not int:
                    self.readable.setdefault(str(size), (node, dim))

    def node(self, size: Any) -> Any:
        """The node (or number) for a symbolic size."""
        found = self._lookup(str(size))
        if found is not None:
            return found
        expr = getattr(size.node, "expr", None)
        if not isinstance(expr, Expr):
            raise DecomposeError(f"no node of the graph computes the size {size}")
        return self.of_expr(expr)

    def of_expr(self, expr: Expr) -> Any:
        """A sum of products of atoms"""
        found = self._lookup(str(expr))
        if found is not None:
            return found
        total: Any = None
        for monomial, factor in expr.terms:
            product: Any = None
            for atom, power in monomial:
                for _ in range(power):
                    product = self._combine(operator.mul, product, self._atom(atom))
            if product is None:
                product = factor
            elif factor != 1:
                product = self._combine(operator.mul, product, factor)
            total = self._combine(operator.add, total, product)
        return 0 if total is None else total

    def _lookup(self, text: str) -> Node | None:
        node = self.known.get(text)
        if node is None and text in self.readable:
            source, dim = self.readable[text]
            node = self.graph.call_function(torch.ops.aten.sym_size.int, (source, dim))
            node.meta["val"] = source.meta["val"]._sizes[dim]
            self.known[text] = node
        return node

    def _atom(self, atom: Atom) -> Any:
        found = self._lookup(atom.text)
        if found is not None:
            return found
        functions: dict[str, Callable[..., Any]] = {
            "floordiv": operator.floordiv,
            "mod": operator.mod,
            "min": torch.sym_min,
            "max": torch.sym_max,
        }
        if atom.kind not in functions:
            raise DecomposeError(f"no input of the graph tells the size {atom.text}")
        args = [self.of_expr(a) for a in atom.args]
        out = args[0]
        for other in args[1:]:
            out = self._combine(functions[atom.kind], out, other)
        return out

    def _combine(self, function: Callable[..., Any], a: Any, b: Any) -> Any:
        if a is None:
            return b
        if not isinstance(a, Node) and not isinstance(b, Node):
            return function(a, b)
        node = self.graph.call_function(function, (a, b))
        values = [x.meta.get("val") if isinstance(x, Node) else x for x in (a, b)]
        if None not in values:
            node.meta["val"] = function(*values)
        return node


class _Recorder(DispatchMode):  # type: ignore[no-untyped-call]
    """Appends a node for each op called; a fake's node is found by the fake's identity."""

    def __init__(self, graph: Graph, table: Table) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = graph
        self.table = table
        self.sizes = _Sizes(graph)
        self.stack_trace: str | None = None
        self.nodes: dict[int, tuple[Any, Node]] = {}  # id -> (the fake, kept alive; its node)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        entry = self.table.get(func)
        if entry is not None:
            with self:
                result = entry(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = propagate(func, args, kwargs)
        if func._schema.name in QUERIES:
            return result
        node_args = tuple(self.argument(a) for a in args)
        node_kwargs = {k: self.argument(v) for k, v in kwargs.items()}
        self.call(func, node_args, node_kwargs, result)
        return result

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Node:
        """One node, and the nodes of its parts where it gives several tensors"""
        node = self.graph.create_node("call_function", func, args, kwargs)
        node.meta["val"] = result
        if self.stack_trace is not None:
            node.meta["stack_trace"] = self.stack_trace
        if isinstance(result, (list, tuple)):
            for i, part in enumerate(result):
                if isinstance(part, Tensor):
                    self.call(operator.getitem, (node, i), {}, part)
        elif isinstance(result, Tensor):
            self.nodes[id(result)] = (result, node)
        return node

    def argument(self, value: Any) -> Any:
        """An argument as the graph holds it: nodes for tensors and symbolic sizes."""
        kind = type(value)
        if kind is FakeTensor:
            entry = self.nodes.get(id(value))
            if entry is None:
                raise DecomposeError("a decomposition used a fake tensor the graph did not make")
            return entry[1]
        if kind is list or kind is tuple:
            return kind(self.argument(v) for v in value)
        if isinstance(value, SYMBOLIC):
            return self.sizes.node(value)
        if isinstance(value, (list, tuple)):
            return [self.argument(v) for v in value]
        if isinstance(value, Tensor):
            raise DecomposeError("a decomposition used a real tensor; constants go through aten")
        return value


def decompose(gm: GraphModule, to: Dialect = Dialect.CORE_ATEN) -> GraphModule:
    """An ATEN graph in CORE_ATEN, or (by way of it) in PRIMS. The placeholders carry fakes as
    `meta["val"]`; so does every node of the result."""
    if to is Dialect.CORE_ATEN:
        return apply_table(gm, core_aten_table())
    if to is Dialect.PRIMS:
        return apply_table(apply_table(gm, core_aten_table()), prims_table())
    raise DecomposeError(f"decompose goes to CORE_ATEN or PRIMS, not to {to.name}")


def apply_table(gm: GraphModule, table: Table) -> GraphModule:
    """`gm` with every op that has an entry in `table` taken apart, and what that calls, in turn."""
    graph = Graph()
    recorder = _Recorder(graph, table)
    made: dict[Node, Any] = {}  # old node -> new node, or a list of them where it gave several
    with torch.no_grad():
        for node in gm.graph.nodes:
            recorder.stack_trace = node.meta.get("stack_trace")
            made[node] = _rewrite(gm, node, recorder, made)
    graph.eliminate_dead_code(_has_effect)
    rewritten = GraphModule(gm, graph)
    rewritten.meta.update(gm.meta)
    return rewritten


def _rewrite(gm: GraphModule, node: Node, recorder: _Recorder, made: dict[Node, Any]) -> Any:
    """The new node (or nodes) that stand for an old one"""
    if node.op == "call_function":
        if node.target is operator.getitem and not isinstance(made[_first(node)], Node):
            return made[_first(node)][node.args[1]]
        if isinstance(node.target, OpOverload) and node.target in recorder.table:
            expanded = _expand(node, recorder, made)
            if expanded is not None:
                return expanded
    copy = recorder.graph.node_copy(node, lambda old: made[old])
    if node.op == "get_attr" and "val" not in copy.meta:
        attribute = operator.attrgetter(str(node.target))(gm)
        if isinstance(attribute, Tensor):
            copy.meta["val"] = from_real(attribute)
    value = copy.meta.get("val")
    if isinstance(value, Tensor):
        recorder.nodes[id(value)] = (value, copy)
    recorder.sizes.learn(copy, value)
    return copy


def _first(node: Node) -> Node:
    """The node whose part a getitem takes"""
    source = node.args[0]
    assert isinstance(source, Node)
    return source


def _expand(node: Node, recorder: _Recorder, made: dict[Node, Any]) -> Any:
    """The nodes of an entry's results; None if the entry leaves the op whole"""

    def value(old: Node) -> Any:
        new = made[old]
        if not isinstance(new, Node):
            return [None if n is None else n.meta["val"] for n in new]
        if "val" not in new.meta:
            raise DecomposeError(f"node {old.name} carries no meta['val']")
        return new.meta["val"]

    args = map_arg(node.args, value)
    kwargs = map_arg(node.kwargs, value)
    assert isinstance(node.target, OpOverload)
    with recorder:
        result = recorder.table[node.target](*args, **kwargs)
    if result is NotImplemented:
        return None
    if isinstance(result, (list, tuple)):
        return [recorder.argument(part) for part in result]
    return recorder.argument(result)


def _has_effect(node: Node) -> bool:
    """Whether a node nobody uses must stay: it writes to an argument, draws random
    numbers, or is there for what it checks (it gives nothing)."""
    if node.op in ("placeholder", "output"):
        return True
    if not isinstance(node.target, OpOverload):
        return False
    random = torch.Tag.nondeterministic_seeded in node.target.tags
    schema = node.target._schema
    return random or bool(schema.is_mutable) or not schema.returns
