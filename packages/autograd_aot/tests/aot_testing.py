"""Differential testing against eager: one function, run both ways on equal inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from dovetail_autograd_aot import aot_compile, min_cut_partition
from dovetail_prims.decompositions import core_aten_table
from torch import Tensor
from torch.fx import Graph, GraphModule

TABLES = {"aten": {}, "core": core_aten_table()}


def as_graph(fn: Callable[..., Any], count: int) -> GraphModule:
    """A captured graph of one call: the tracer runs it like any other node, so a test can use
    anything Python has."""
    graph = Graph()
    inputs = [graph.placeholder(f"arg{i}") for i in range(count)]
    graph.output(graph.call_function(fn, tuple(inputs)))
    return GraphModule(torch.nn.Module(), graph)


def run_fx(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The compiler that compiles nothing."""
    gm.graph.lint()
    return gm


class Recorder:
    """A compiler that keeps the graphs it was given."""

    def __init__(self) -> None:
        self.graphs: list[GraphModule] = []

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(gm)
        return run_fx(gm, example_inputs)


def tensors(values: Sequence[Any]) -> list[Tensor]:
    return [v for v in values if isinstance(v, Tensor)]


def clone_inputs(inputs: Sequence[Any]) -> list[Any]:
    """Equal inputs with the same sharing of tensors and storages, strides and offsets."""
    memo: dict[int, Any] = {}
    return [copy_tensor(v, memo) if isinstance(v, Tensor) else v for v in inputs]


def copy_tensor(t: Tensor, memo: dict[int, Any]) -> Tensor:
    if id(t) in memo:
        return memo[id(t)]
    storage = t.untyped_storage()
    if storage._cdata not in memo:
        memo[storage._cdata] = storage.clone()
    new = torch.empty(0, dtype=t.dtype).set_(
        memo[storage._cdata], t.storage_offset(), t.shape, t.stride()
    )
    if t.requires_grad:
        new.requires_grad_()
        if not t.is_leaf:
            leaf = new
            new = new.clone(memory_format=torch.preserve_format)
            new._leaf = leaf
    memo[id(t)] = new
    return new


def sharing(values: Sequence[Any]) -> list[tuple[int, int, str]]:
    """Which values are the same object, and which share memory."""
    found = []
    for i, a in enumerate(values):
        for j, b in enumerate(values[:i]):
            if isinstance(a, Tensor) and isinstance(b, Tensor) and a.numel() and b.numel():
                if a is b:
                    found.append((i, j, "is"))
                elif a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr():
                    found.append((i, j, "storage"))
    return found


def same(ours: Any, eager: Any, what: str, *, exact: bool, strides: bool = True) -> None:
    if not isinstance(eager, Tensor):
        assert ours == eager and type(ours) is type(eager), f"{what}: {ours} != {eager}"
        return
    assert ours.dtype == eager.dtype, f"{what}: {ours.dtype} != {eager.dtype}"
    assert ours.shape == eager.shape, f"{what}: {ours.shape} != {eager.shape}"
    if strides and eager.numel() > 0:
        for size, a, b in zip(eager.shape, ours.stride(), eager.stride(), strict=True):
            assert size == 1 or a == b, f"{what}: strides {ours.stride()} != {eager.stride()}"
    if exact:
        assert torch.equal(torch.nan_to_num(ours.detach()), torch.nan_to_num(eager.detach())), (
            f"{what}: values differ by {(ours - eager).abs().max()}"
        )
    else:
        low = eager.dtype in (torch.bfloat16, torch.float16)
        torch.testing.assert_close(
            ours.detach(),
            eager.detach(),
            rtol=2e-2 if low else 1e-4,
            atol=2e-2 if low else 1e-5,
            equal_nan=True,
            msg=lambda m: f"{what}: {m}",
        )


def same_answers(ours: list[Any], eager: list[Any]) -> None:
    """What autograd answered: gradients, Nones, counts."""
    assert len(ours) == len(eager)
    for one, other in zip(ours, eager, strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other


def check(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    table: str = "aten",
    partition: Any = min_cut_partition,
    calls: int = 2,
    exact: bool = False,
    strides: bool = True,
    share: bool = True,
    grad: bool = True,
) -> Any:
    """Runs `fn` eagerly and compiled, `calls` times; compares outputs, their flags, aliasing,
    mutated inputs, gradients. Gives the compiled function."""
    eager_inputs, our_inputs = clone_inputs(inputs), clone_inputs(inputs)
    compiled = aot_compile(
        as_graph(fn, len(inputs)),
        our_inputs,
        forward_compiler=run_fx,
        decompositions=TABLES[table],
        partition=partition,
    )
    for call in range(calls):
        if call:
            eager_inputs, our_inputs = clone_inputs(inputs), clone_inputs(inputs)
        versions = [t._version for t in tensors(eager_inputs)]
        our_versions = [t._version for t in tensors(our_inputs)]
        torch.manual_seed(call)
        eager = list(fn(*eager_inputs))
        torch.manual_seed(call)
        ours = list(compiled(*our_inputs))
        assert len(ours) == len(eager)
        for i, (a, b) in enumerate(zip(ours, eager, strict=True)):
            same(a, b, f"output {i}", exact=exact, strides=strides)
            if isinstance(b, Tensor):
                assert a.requires_grad == b.requires_grad, f"output {i}: requires_grad"
                assert a.is_leaf == b.is_leaf, f"output {i}: is_leaf"
        for i, (a, b) in enumerate(zip(our_inputs, eager_inputs, strict=True)):
            same(a, b, f"input {i} afterwards", exact=exact)
        bumped = [t._version > v for t, v in zip(tensors(eager_inputs), versions, strict=True)]
        our_bumped = [
            t._version > v for t, v in zip(tensors(our_inputs), our_versions, strict=True)
        ]
        assert bumped == our_bumped, f"version counters: {our_bumped} != {bumped}"
        if share:
            ours_share = sharing([*our_inputs, *ours])
            eager_share = sharing([*eager_inputs, *eager])
            assert ours_share == eager_share, f"aliasing: {ours_share} != {eager_share}"
        if grad:
            check_gradients(ours, our_inputs, eager, eager_inputs)
    return compiled


def check_gradients(
    ours: list[Any], our_inputs: list[Any], eager: list[Any], eager_inputs: list[Any]
) -> None:
    torch.manual_seed(99)
    weights = [torch.randn(e.shape) if isinstance(e, Tensor) else None for e in eager]

    def loss(outputs: list[Any], inputs: list[Any]) -> Any:
        total: Any = 0
        for o, w in zip(outputs, weights, strict=True):
            if isinstance(o, Tensor) and o.requires_grad:
                total = total + (o * w).sum()
        for i in inputs:
            # An input that became differentiable by being written to.
            if isinstance(i, Tensor) and i.requires_grad and not i.is_leaf:
                total = total + (i * i).sum()
        return total

    eager_loss, our_loss = loss(eager, eager_inputs), loss(ours, our_inputs)
    assert isinstance(eager_loss, Tensor) == isinstance(our_loss, Tensor)
    if not isinstance(eager_loss, Tensor) or not eager_loss.requires_grad:
        return
    eager_loss.backward()
    our_loss.backward()
    for i, (a, b) in enumerate(zip(our_inputs, eager_inputs, strict=True)):
        # An input that is written to moves on in autograd's graph: look at where it came from.
        a, b = getattr(a, "_leaf", a), getattr(b, "_leaf", b)
        if isinstance(b, Tensor) and b.requires_grad and b.is_leaf:
            assert (a.grad is None) == (b.grad is None), f"gradient {i}: {a.grad} vs {b.grad}"
            if b.grad is not None:
                same(a.grad, b.grad, f"gradient {i}", exact=False, strides=False)


def lift(module: torch.nn.Module) -> tuple[Callable[..., Any], list[Tensor]]:
    """The module as a function of its parameters, buffers and inputs; and those tensors."""
    module = copy.deepcopy(module)
    named = [*module.named_parameters(), *module.named_buffers()]
    names = [n for n, _ in named]
    values = [v for _, v in named]

    def run(*flat: Any) -> tuple[Any, ...]:
        state = dict(zip(names, flat[: len(names)], strict=True))
        result = torch.func.functional_call(module, state, tuple(flat[len(names) :]))
        return result if isinstance(result, tuple) else (result,)

    return run, values
