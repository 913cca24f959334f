"""One graph for several sizes.

A program is recorded with the numbers of its call. Where two programs are alike but for numbers,
each number that differs becomes an expression over input sizes, or an input itself, and the graph
is compiled once more, for all such numbers. Nothing is taken on trust: a pass with new numbers is
recorded like any other, and uses the graph only if the graph's expressions give every number that
was recorded, and what the compiler assumed of the sizes holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import Any

from dovetail_guards.expr import Expr
from dovetail_guards.float_expr import FloatExpr, key_of
from dovetail_guards.shape_env import Dim, ShapeEnv
from dovetail_guards.source import LocalSource
from dovetail_guards.sym_node import to_symfloat, to_symint
from dovetail_prims.fake_tensor import make
from dovetail_prims.graphs.backend_traits import runs_graph_itself, traits_of
from dovetail_prims.sizes.size_nodes import SizeNodes
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from dovetail_autograd_aot.compiled_backward.program import Program

Run = Callable[..., Sequence[Any]]
Compiler = Callable[[GraphModule, list[Any]], Run]
Vector = tuple[Any, ...]  # one number, as it was in each program


@dataclass(frozen=True)
class Recorded:
    """A program as a shape (`skeleton`) and numbers: of its operators, and of its inputs."""

    skeleton: tuple[Any, ...]
    numbers: Vector
    layouts: tuple[tuple[Vector, Vector], ...]  # sizes and strides of each input


class _Number:
    """Stands for a number in a skeleton."""


def take_apart(program: Program, tensors: Sequence[Tensor]) -> Recorded:
    """A program's skeleton and numbers."""
    order: dict[Node, int] = {}
    numbers: list[Any] = []

    def shape(value: Any) -> Any:
        if isinstance(value, Node):
            return order[value], "node"
        if type(value) is int or type(value) is float:
            numbers.append(value)
            return _Number, type(value)
        if isinstance(value, (tuple, list)):
            return tuple([shape(v) for v in value])
        if isinstance(value, dict):
            return tuple([(k, shape(v)) for k, v in value.items()])
        return value

    nodes = []
    for node in program.graph.nodes:
        order[node] = len(order)
        nodes.append((node.op, node.target, shape(node.args), shape(node.kwargs)))
    told = program.returned, program.leaves, tuple(sorted(program.opaque.items()))
    storages: dict[int, int] = {}
    kinds = tuple(
        (
            t.ndim,
            t.dtype,
            t.device,
            t.is_conj(),
            t.is_neg(),
            storages.setdefault(t.untyped_storage()._cdata, len(storages)),
        )
        for t in tensors
    )
    layouts = tuple((tuple(t.shape), t.stride()) for t in tensors)
    return Recorded((*nodes, *told, kinds), tuple(numbers), layouts)


@dataclass
class Compiled:
    """A compiled graph, the numbers that it is for, and those that it takes as inputs."""

    run: Run
    skeleton: tuple[Any, ...]
    numbers: tuple[Any, ...]  # numbers and expressions
    layouts: tuple[tuple[Vector, Vector], ...]
    readers: dict[str, tuple[int, int]] = field(default_factory=dict)  # symbol: (input, dimension)
    lifted: dict[str, int] = field(default_factory=dict)  # symbol: number
    env: ShapeEnv | None = None

    def match(self, found: Recorded) -> tuple[Any, ...] | None:
        """The numbers to call this with, if it computes the program `found`."""
        if found.skeleton != self.skeleton:
            return None
        values = {n: found.layouts[i][0][d] for n, (i, d) in self.readers.items()}
        for name, position in self.lifted.items():
            number = found.numbers[position]
            values[name] = key_of(number) if type(number) is float else number
        pairs = list(zip(self.numbers, found.numbers, strict=True))
        for own, other in zip(self.layouts, found.layouts, strict=True):
            pairs += [*zip(own[0], other[0], strict=True), *zip(own[1], other[1], strict=True)]
        for expected, number in pairs:
            if isinstance(expected, (Expr, FloatExpr)):
                expected = expected.evaluate(values)
            if not _same(expected, number):
                return None
        if self.env is not None:
            if any(not d.relation.evaluate(values) for d in self.env.decisions):
                return None
        return tuple(found.numbers[position] for position in self.lifted.values())


class Family:
    """The programs of one skeleton, and their graphs."""

    def __init__(self, skeleton: tuple[Any, ...]) -> None:
        self.skeleton = skeleton
        self.recorded: list[Recorded] = []
        self.compiled: list[Compiled] = []

    def find(self, found: Recorded) -> Compiled | None:
        """A graph that computes the program."""
        return next((c for c in self.compiled if c.match(found) is not None), None)

    def compile(
        self, program: Program, found: Recorded, tensors: Sequence[Tensor], compiler: Compiler
    ) -> tuple[Compiled, GraphModule]:
        """A graph for the program: for more numbers than its own, if others were recorded."""
        alike = list(self.recorded)
        self.recorded.append(found)
        examples: list[Any] = [t.detach() for t in tensors]
        # (Lazy conjugates are left to single sizes.)
        if alike and not any(t.is_conj() or t.is_neg() for t in tensors):
            made = _generalise(program, tensors, [*alike, found])
            if made is not None:
                compiled, module = made
                numbers = [found.numbers[p] for p in compiled.lifted.values()]
                compiled.run = compiler(module, [*examples, *numbers])
                assert compiled.env is not None
                compiled.env.freeze()
                general = traits_of(compiler).symbolic or runs_graph_itself(compiled.run, module)
                if general and compiled.match(found) is not None:
                    self.compiled.append(compiled)
                    return compiled, module
        module = program.module()
        run = compiler(module, examples)
        compiled = Compiled(run, found.skeleton, found.numbers, found.layouts)
        self.compiled.append(compiled)
        return compiled, module


def _same(a: Any, b: Any) -> bool:
    if type(a) is float and type(b) is float:
        return a.hex() == b.hex()
    return type(a) is type(b) and bool(a == b)


# --- numbers as expressions -----------------------------------------------------------------------


class _Expressions:
    """What expression gives a number in all the programs."""

    def __init__(self) -> None:
        self.env = ShapeEnv()
        self.known: dict[Vector, Expr] = {}
        self.symbols: list[tuple[Vector, Expr]] = []
        self.readers: dict[str, tuple[int, int]] = {}
        self.lifted: dict[str, int] = {}

    def size(self, vector: Vector, tensor: int, dim: int) -> Any:
        """The expression for an input's size: maybe a new symbol."""
        found = self.find(vector, ())
        if found is None:
            source = LocalSource(f"input_{tensor}.shape[{dim}]")
            found = self.env.create_size(vector[-1], source, Dim.DYNAMIC)
            if found.value is not None:
                return found.value
            assert found.symbol_name is not None
            self.readers[found.symbol_name] = tensor, dim
            self._add(vector, found)
        return found

    def number(self, vector: Vector, position: int) -> Any:
        """The expression for a number of an operator: maybe an input of its own."""
        if _constant(vector):
            return vector[-1]
        source = LocalSource(f"number_{position}")
        if type(vector[-1]) is float:
            if any(v != v or v == 0 for v in vector):
                return None
            known = self.known.get(vector)
            if known is not None:
                return known
            made = self.env.create_float(vector[-1], source)
            if not isinstance(made, FloatExpr) or made.input_name() is None:
                return None
            self.lifted[str(made.input_name())] = position
            self.known[vector] = made  # type: ignore[assignment]
            return made
        found = self.find(vector, (1, -1, 2, -2))
        if found is not None:
            return found
        made_int = self.env.create_int(vector[-1], source)
        if made_int.symbol_name is None:
            return None
        self.lifted[made_int.symbol_name] = position
        self._add(vector, made_int)
        return made_int

    def find(self, vector: Vector, shifts: Sequence[int]) -> Any:
        """A known expression: a symbol, a product, a multiple, or a symbol and a small number."""
        if _constant(vector):
            return vector[-1]
        known = self.known.get(vector)
        if known is not None:
            return known
        bases = [(1,) * len(vector)]
        found: list[tuple[Vector, Any]] = [(bases[0], 1)]
        found += self.symbols
        for (v, a), (w, b) in combinations_with_replacement(self.symbols, 2):
            found.append((tuple(x * y for x, y in zip(v, w, strict=True)), a * b))
        for values, expr in found[1:]:
            if all(n % v == 0 if v else False for n, v in zip(vector, values, strict=True)):
                factors = {n // v for n, v in zip(vector, values, strict=True)}
                if len(factors) == 1:
                    return expr * factors.pop()
            for shift in shifts:
                if all(n == v + shift for n, v in zip(vector, values, strict=True)):
                    return expr + shift
        return None

    def _add(self, vector: Vector, expr: Expr) -> None:
        self.known[vector] = expr
        self.symbols.append((vector, expr))


def _constant(vector: Vector) -> bool:
    return all(_same(v, vector[0]) for v in vector)


def _generalise(
    program: Program, tensors: Sequence[Tensor], recorded: Sequence[Recorded]
) -> tuple[Compiled, GraphModule] | None:
    """The program's graph over symbols, not compiled yet."""
    expressions = _Expressions()
    sizes = [
        list(zip(*[r.layouts[i][0] for r in recorded], strict=True)) for i in range(len(tensors))
    ]
    # The smallest first: larger ones may be products of them.
    places = [(vector, i, d) for i, own in enumerate(sizes) for d, vector in enumerate(own)]
    for vector, i, d in sorted(places, key=lambda place: place[0][-1]):
        expressions.size(vector, i, d)
    layouts = [
        tuple(expressions.size(v, i, d) for d, v in enumerate(sizes[i])) for i in range(len(sizes))
    ]
    strides = [
        tuple(
            expressions.find(v, ()) for v in zip(*[r.layouts[i][1] for r in recorded], strict=True)
        )
        for i in range(len(tensors))
    ]
    numbers = tuple(
        expressions.number(vector, position)
        for position, vector in enumerate(zip(*[r.numbers for r in recorded], strict=True))
    )
    if any(s is None for group in strides for s in group) or any(n is None for n in numbers):
        return None
    compiled = Compiled(
        lambda *_: (),
        recorded[-1].skeleton,
        numbers,
        tuple(zip(layouts, strides, strict=True)),
        expressions.readers,
        expressions.lifted,
        expressions.env,
    )
    if not expressions.readers and not expressions.lifted:
        return None
    return compiled, _symbolic_module(program, tensors, compiled)


def _symbolic_module(
    program: Program, tensors: Sequence[Tensor], compiled: Compiled
) -> GraphModule:
    """The graph with expressions for numbers."""
    env = compiled.env
    assert env is not None
    graph = Graph()
    sizes = SizeNodes(graph)
    new: dict[Node, Node] = {}
    old = [n for n in program.graph.nodes if n.op == "placeholder"]
    for node, t, (shape, strides) in zip(old, tensors, compiled.layouts, strict=True):
        new[node] = graph.placeholder(node.name)
        new[node].meta["val"] = make(
            tuple(_symbolic(env, s) for s in shape),
            tuple(_symbolic(env, s) for s in strides),
            t.dtype,
            t.device,
        )
    for position in compiled.lifted.values():
        node = graph.placeholder(f"number_{position}")
        node.meta["val"] = _symbolic(env, compiled.numbers[position])
        sizes.bind(node.meta["val"], node)
    for node in old:
        sizes.bind_sizes(new[node], new[node].meta["val"])
    numbers = iter(compiled.numbers)

    def mapped(value: Any) -> Any:
        if isinstance(value, Node):
            return new[value]
        if type(value) is int or type(value) is float:
            number = _symbolic(env, next(numbers))
            return number if type(number) is type(value) else sizes.node(number)
        if isinstance(value, (tuple, list)):
            return type(value)([mapped(v) for v in value])
        if isinstance(value, dict):
            return {k: mapped(v) for k, v in value.items()}
        return value

    for node in program.graph.nodes:
        if node.op == "placeholder":
            continue
        args, kwargs = mapped(node.args), mapped(node.kwargs)
        if node.op == "output":
            graph.output(args[0])
        else:
            new[node] = graph.create_node(node.op, node.target, args, kwargs, name=node.name)
    return GraphModule(program.module(), graph, "Backward")


def _symbolic(env: ShapeEnv, value: Any) -> Any:
    if isinstance(value, FloatExpr):
        return to_symfloat(env, value)
    return to_symint(env, value) if isinstance(value, Expr) else value
