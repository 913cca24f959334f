"""Kernels of symbolic sizes: one plan, run at many sizes; and the numbers that sizes become."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from dovetail_guards.shape_env import Dim as Kind
from dovetail_guards.shape_env import ShapeEnv
from dovetail_guards.source import LocalSource, SizeSource
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.loop_ir.index import Var, constant, variable
from dovetail_inductor.loop_ir.sizes import (
    Dim,
    UnknownOrder,
    from_torch,
    hint_of,
    is_multiple,
    known_within,
    name_parts,
    size_expr,
)
from dovetail_prims import FakeTensor, from_real
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.fake_tensor import propagate
from dovetail_prims.sizes.size_nodes import SizeNodes
from dovetail_runtime import load
from dovetail_runtime.plan import CallAten, CppKernel, LaunchCpp, LaunchTriton, TritonKernel
from dovetail_runtime.sizes import evaluate
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


def dims(*hints: int) -> tuple[ShapeEnv, list[Any]]:
    env = ShapeEnv()
    source = LocalSource("x")
    return env, [
        from_torch(env.symint(env.create_size(n, SizeSource(source, i), Kind.DYNAMIC)))
        for i, n in enumerate(hints)
    ]


def test_a_dim_is_no_number() -> None:
    _, (s, t) = dims(4, 6)
    for use in (lambda: int(s), lambda: range(s), lambda: [0] * s, lambda: list(range(9))[s]):
        with pytest.raises(TypeError):
            use()
    assert not isinstance(s, int) and isinstance(s, Dim)
    assert hint_of(s * t + 1) == 25
    assert s * t // t == s and (s + 1) - s == 1 and type((s + 1) - s) is int


def test_order_is_known_or_refused() -> None:
    _, (s, t) = dims(4, 6)
    assert s >= 2 and s * t > t and s + 1 > s and 0 < s and not s < 2
    with pytest.raises(UnknownOrder):
        bool(s < t)
    with pytest.raises(UnknownOrder):
        bool(s > 3)
    assert s != t and s != 4 and s == s + 0
    assert is_multiple(4 * s, 4) and not is_multiple(s, 4) and is_multiple(s * t, t)
    assert known_within(0, s - 1, s) and not known_within(0, t - 1, s)
    assert bool(s) and bool(s - 2)  # it may be zero, but is not the literal zero


def test_indices_of_symbolic_loops() -> None:
    _, (s, t) = dims(4, 6)
    i, j = variable(Var(0, s)), variable(Var(1, t))
    flat = i * t + j
    assert flat.floordiv(t) == i and flat.mod(t) == j
    assert flat.floordiv(s) != i  # nothing is known of it
    assert (constant(s) * 2).const == 2 * s
    assert (i + s - s) == i


def test_a_plan_s_size_is_the_same_number() -> None:
    _, (s, t) = dims(4, 6)
    for size in (s, 3 * s * t - t + 7, (s * t + 1) // 3, s % t, -s, s * s * 2):
        for a, b in ((4, 6), (5, 7), (2, 33)):
            wanted = size.expr.evaluate({"s0": a, "s1": b})
            assert evaluate(size_expr(size), {"s0": a, "s1": b}) == wanted


DECOMPOSITIONS = core_aten_table()


class _Recorder(TorchDispatchMode):
    """Records ATen calls on symbolic fakes; sizes among the arguments become nodes."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.sizes = SizeNodes(graph)
        self.nodes: dict[int, tuple[Any, Node]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def node(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.nodes[id(value)][1]
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return self.sizes.node(value)
        return value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        decomposition = DECOMPOSITIONS.get(func)
        if decomposition is not None:
            with self:
                result = decomposition(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        result = propagate(func, args, kwargs or {})
        if not isinstance(result, Tensor):
            return result
        node_args, node_kwargs = pytree.tree_map(self.node, (args, kwargs or {}))
        node = self.graph.call_function(func, tuple(node_args), node_kwargs)
        node.meta["val"] = result
        self.nodes[id(result)] = (result, node)
        return result


def traced(fn: Callable[..., Any], examples: Sequence[Tensor]) -> GraphModule:
    """The ATen graph of `fn` with all sizes of its arguments symbolic."""
    graph = Graph()
    recorder = _Recorder(graph)
    env = ShapeEnv()
    fakes: list[FakeTensor] = []
    for k, example in enumerate(examples):
        source = LocalSource(f"x{k}")
        sizes = [
            env.symint(env.create_size(n, SizeSource(source, i), Kind.DYNAMIC))
            for i, n in enumerate(example.shape)
        ]
        fake = from_real(example, sizes=sizes)
        node = graph.placeholder(f"x{k}")
        node.meta["val"] = fake
        recorder.sizes.bind_sizes(node, fake)
        recorder.nodes[id(fake)] = (fake, node)
        fakes.append(fake)
    with torch.no_grad(), recorder:
        result = fn(*fakes)
    results = result if isinstance(result, tuple) else (result,)
    graph.output(tuple(map(recorder.node, results)))
    return GraphModule(torch.nn.Module(), graph)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "pointwise": lambda x: (x.exp() + 1) * x.shape[0],
    "scaled": lambda x: x * (x.shape[0] / x.shape[1]) + 1.0 / x.shape[1],
    "row_sums": lambda x: x.sum(1) * 2,
    "column_sums": lambda x: x.sum(0),
    "whole": lambda x: x.amax() + x,
    "softmax": lambda x: x.softmax(1),
    "across": lambda x: x / (x * x).sum(0, True).sqrt(),
    "transposed": lambda x: x.t() + x.sum(0).unsqueeze(1),
    "copied": lambda x: (x.t() * 2).clone(memory_format=torch.contiguous_format),
    "flat": lambda x: (x * 2).view(x.shape[0] * x.shape[1]) + 1,
    "part": lambda x: x[1:, : x.shape[1] - 1] * 3,
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "padded": lambda x: torch.constant_pad_nd(x, [1, 2, 0, 1], 3.0) * 2,
    "positions": lambda x: x + torch.arange(x.shape[1]),
    "flipped": lambda x: x.flip(1) + x,
    "picked": lambda x: x[torch.arange(x.shape[0])] + 1,
    "argmax": lambda x: x.argmax(1),
    "outer": lambda x: x.unsqueeze(2) * x.unsqueeze(1),
    "triangle": lambda x: torch.where(
        torch.arange(x.shape[0]).unsqueeze(1) >= torch.arange(x.shape[1]), x, -x
    ),
    "mm": lambda x: (x @ x.t()).relu(),
}  # fmt: skip
SHAPES = [(4, 6), (2, 2), (3, 17), (33, 5), (64, 64), (7, 130), (200, 3)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_plan_for_all_sizes(name: str) -> None:
    fn = FUNCTIONS[name]
    plan = compile_graph(traced(fn, [torch.zeros(4, 6)]))
    assert {s.name for s in plan.symbols} == {"s0", "s1"}
    if name not in ("mm",):
        assert not any(isinstance(s, CallAten) for s in plan.steps)
    artifact = load(plan)
    for shape in SHAPES:
        x = torch.randn(shape)
        wanted = fn(x)
        (got,) = artifact.run(x)
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
        assert got.stride() == wanted.stride()


@pytest.mark.parametrize("seed", range(6))
def test_random_chains(seed: int) -> None:
    rng = random.Random(seed)
    square = [
        lambda x: x * x.shape[1], lambda x: x - x.mean(1, True), lambda x: x + x.sum(0),
        lambda x: x.flip(0), lambda x: torch.tanh(x), lambda x: torch.cat([x[:1], x[1:]], 0),
        lambda x: x / (x.abs().amax(0, True) + 1), lambda x: (x.t() + 1).t(),
        lambda x: (x * 2).view(x.shape[0] * x.shape[1]).view(x.shape[0], x.shape[1])
        if x.is_contiguous() else x * 2,
    ]  # fmt: skip
    chain = [rng.choice(square) for _ in range(5)]

    def fn(x: Tensor) -> Tensor:
        for step in chain:
            x = step(x)
        return x

    # In float64: sums that cancel leave any bound of float32 behind for some inputs.
    artifact = load(compile_graph(traced(fn, [torch.zeros(5, 9, dtype=torch.float64)])))
    for shape in SHAPES:
        x = torch.randn(shape, dtype=torch.float64)
        torch.testing.assert_close(artifact.run(x)[0], fn(x), atol=1e-9, rtol=1e-9)


def test_equal_symbols_of_two_inputs() -> None:
    artifact = load(
        compile_graph(traced(lambda a, b: a @ b + a.sum(), [torch.zeros(4, 6), torch.zeros(6, 5)]))
    )
    for n, m, k in ((4, 6, 5), (2, 9, 3), (17, 2, 8)):
        a, b = torch.randn(n, m), torch.randn(m, k)
        torch.testing.assert_close(artifact.run(a, b)[0], a @ b + a.sum(), atol=1e-4, rtol=1e-4)


GPU = InductorOptions(triton=True)


TRITON_EXAMPLES = [(name, (40, 300)) for name in FUNCTIONS] + [
    (name, (4, 6)) for name in ("row_sums", "softmax", "argmax", "transposed")
]


@pytest.mark.parametrize(("name", "example"), TRITON_EXAMPLES, ids=str)
def test_one_triton_plan_for_all_sizes(name: str, example: tuple[int, int]) -> None:
    """The sizes of the compiled call choose the blocks, and none of the results."""
    fn = FUNCTIONS[name]
    plan = compile_graph(traced(fn, [torch.zeros(example)]), options=GPU)
    launches = [s for s in plan.steps if isinstance(s, LaunchTriton)]
    assert launches and not any(isinstance(s, LaunchCpp) for s in plan.steps)
    run = ReferenceExecutor(plan, launch_triton=run_in_interpreter)
    for shape in [(2, 2), (33, 5), (7, 130)]:
        x = torch.randn(shape)
        wanted = fn(x)
        (got,) = run(x)
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
        assert got.stride() == wanted.stride()


def test_triton_kernels_of_symbolic_sizes_compile_for_an_h100(build_for_h100: Any) -> None:
    kernels = [
        k
        for fn in FUNCTIONS.values()
        for k in compile_graph(traced(fn, [torch.zeros(40, 300)]), options=GPU).kernels
        if isinstance(k, TritonKernel)
    ]
    assert all(any(kind == "i64" for _, kind in k.signature) for k in kernels)
    build_for_h100(kernels)


LONG_ROWS: dict[str, Callable[..., Tensor]] = {
    "sum": lambda x: x.sum(),
    "of rows": lambda x: x.sum(1),
    "largest": lambda x: x.amax(1),
    "columns": lambda x: x.sum(0),
    "any": lambda x: (x > 3).any(),
    "mean": lambda x: (x * 2).mean(),
    "spread": lambda x: ((x - x.mean(1, keepdim=True)) ** 2).sum(1),
    "softmax": lambda x: x.softmax(1),
    "squares": lambda x: (x * x).sum(1, keepdim=True).sqrt() + x,
}


@pytest.mark.parametrize("name", LONG_ROWS)
def test_few_long_rows_of_symbolic_sizes_are_cut(name: str, build_for_h100: Any) -> None:
    """Into as many pieces as the compiled call wants, whatever is in them in other calls."""
    fn = LONG_ROWS[name]
    example = (300_000, 2) if name == "columns" else (2, 300_000)
    plan = compile_graph(traced(fn, [torch.zeros(example)]), options=GPU)
    launches = [s for s in plan.steps if isinstance(s, LaunchTriton)]
    assert len(launches) >= 2
    run = ReferenceExecutor(plan, launch_triton=run_in_interpreter)
    for shape in [(2, 3), (3, 5003)]:
        x = torch.randn(shape[::-1] if name == "columns" else shape)
        torch.testing.assert_close(run(x)[0], fn(x), atol=1e-3, rtol=1e-4)
    build_for_h100([k for k in plan.kernels if isinstance(k, TritonKernel)])


def test_floor_division_of_negative_numbers() -> None:
    def fn(x: Tensor) -> Tensor:
        return x * ((3 - x.shape[0]) // 2) + (3 - x.shape[1]) % 4

    plan = compile_graph(traced(fn, [torch.zeros(4, 6)]), options=GPU)
    run = ReferenceExecutor(plan, launch_triton=run_in_interpreter)
    for shape in [(2, 3), (8, 6), (5, 9)]:
        x = torch.randn(shape)
        torch.testing.assert_close(run(x)[0], fn(x))


def test_parts_of_sizes_are_written_once() -> None:
    """An image that was halved three times has sizes that are divisions of divisions, and these
    stand in every index: text that the C++ compiler would read for a minute."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        for _ in range(3):
            x = x[::2, ::2].sin()
        return x, x.sum(1), x.t() + 1

    plan = compile_graph(traced(fn, [torch.zeros(40, 60)]))
    kernels = [k.source for k in plan.kernels if isinstance(k, CppKernel)]
    assert any("= floor_div(part" in text for text in kernels)
    for text in kernels:
        assert "floor_div(" not in text.partition("for (int64_t item")[2]
    artifact = load(plan)
    for shape in [(40, 60), (9, 17), (1, 8)]:
        x = torch.randn(shape)
        for got, wanted in zip(artifact.run(x), fn(x), strict=True):
            torch.testing.assert_close(got, wanted)


def test_what_may_divide_by_zero_stays_in_its_loop() -> None:
    inner = "least(floor_mod(size_s0 + 1, 4), size_s1)"
    parts, text = name_parts(f"floor_div({inner}, size_s0) * {inner}")
    assert parts == {"part0": "floor_mod(size_s0 + 1, 4)", "part1": "least(part0, size_s1)"}
    assert text == "floor_div(part1, size_s0) * part1"


def _added(x: Tensor, target: Tensor, index: Tensor) -> Tensor:
    return target.index_add(0, index, x.exp())


SCATTERS: dict[str, Callable[..., Tensor]] = {
    "index_add": _added,
    "index_put": lambda x, target, index: torch.index_put(target, (index,), x),
    "scatter_add": lambda x, target, index: torch.scatter_add(
        target, 0, index.unsqueeze(1).expand(x.shape[0], x.shape[1]), x
    ),
    "embedding": lambda x, target, index: torch.ops.aten.embedding_dense_backward(
        x, index, target.shape[0], -1, False
    ),
}


@pytest.mark.parametrize("name", SCATTERS)
@pytest.mark.parametrize("triton", [False, True])
def test_scatters_of_all_sizes(name: str, triton: bool) -> None:
    fn = SCATTERS[name]
    examples = [torch.zeros(7, 6), torch.zeros(9, 6), torch.zeros(7, dtype=torch.int64)]
    plan = compile_graph(traced(fn, examples), options=InductorOptions(triton=triton))
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    run: Any = ReferenceExecutor(plan, launch_triton=run_in_interpreter) if triton else load(plan)
    for rows, places, columns in ((7, 9, 6), (3, 40, 33), (70, 71, 5), (0, 3, 4), (130, 130, 1)):
        x, target = torch.randn(rows, columns), torch.randn(places, columns)
        index = torch.randperm(places)[:rows]
        if name != "index_put" and rows:
            index[-1] = index[0]
        torch.testing.assert_close(run(x, target, index)[0], fn(x, target, index))


def test_short_loops_over_memory_of_symbolic_strides_share_a_launch(build_for_h100: Any) -> None:
    """Loops of known sizes may read a size, too: functions of a shared launch are given it."""

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:3, 0].exp(), x[1:8, 1] * x.shape[1]

    plan = compile_graph(traced(fn, [torch.zeros(40, 300)]), options=GPU)
    kernels = [k for k in plan.kernels if isinstance(k, TritonKernel)]
    assert any("def part0" in k.source and "size_s1" in k.source for k in kernels)
    run = ReferenceExecutor(plan, launch_triton=run_in_interpreter)
    for shape in [(9, 2), (40, 7)]:
        x = torch.randn(shape)
        for got, wanted in zip(run(x), fn(x), strict=True):
            torch.testing.assert_close(got, wanted)
    build_for_h100(kernels)


def test_floats_of_a_size_that_comparisons_have_settled() -> None:
    """The plan knows it as a number, and has no symbol for it."""

    def fn(x: Tensor) -> Tensor:
        settled = x.shape[0] > 7 and x.shape[0] < 9
        return x * (x.shape[0] / x.shape[1]) if settled else x

    plan = compile_graph(traced(fn, [torch.zeros(8, 6)]), options=InductorOptions(triton=False))
    assert len(plan.symbols) == 1, plan.symbols
    x = torch.randn(8, 5)
    torch.testing.assert_close(load(plan)(x)[0], fn(x))
