"""The backends that generate no code: the debugging ones (what fails with one of them, and not with
those that do less, is the fault of what it adds), and what the mode "lite" makes of a graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

import torch
from dovetail_autograd_aot import aot_compile, default_partition
from dovetail_capture import BackendTraits, takes_symbolic_graphs
from dovetail_capture.errors import BackendError
from dovetail_prims.conditionals import run_plainly
from dovetail_prims.decompositions import core_aten_table
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

B = TypeVar("B", bound=Callable[..., Any])


@takes_symbolic_graphs
def eager(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the captured graph as it is: capture without a compiler."""
    return run_plainly(gm)


@takes_symbolic_graphs
def eager_noexcept(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the graph as it is; whatever it raises is told to come from the graph (BackendError)."""
    plain = run_plainly(gm)

    def run(*inputs: Any) -> Any:
        try:
            return plain(*inputs)
        except Exception as error:
            raise BackendError(f"the captured graph raised {error!r}:\n{gm.code}") from error

    return run


@takes_symbolic_graphs
def pre_dispatch_eager(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Print the graph that was captured, which is what stands before dispatch, and run it."""
    gm.print_readable()
    return run_plainly(gm)


@takes_symbolic_graphs
def eager_debug(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the captured graph as it is. An operator that writes to an argument, or returns memory of
    one, against what its schema says is a RuntimeError that names both: custom operators whose
    schemas are wrong make compiled programs wrong."""
    plain = run_plainly(gm)

    def run(*inputs: Any) -> Any:
        with SchemaChecks():  # type: ignore[no-untyped-call]
            return plain(*inputs)

    return run


class SchemaChecks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, compares what each operator does with what its schema says."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one operator, and look at its arguments before and after."""
        named = list(_tensors(func, args, kwargs or {}))
        before = [_dense(tensor).clone() for _, _, _, tensor in named]
        result = func(*args, **(kwargs or {}))
        for (name, writes, _, tensor), old in zip(named, before, strict=True):
            if not writes and not _same(_dense(tensor), old):
                raise RuntimeError(
                    f"{func} wrote to its argument {name!r}, which its schema does not say: "
                    f"{func._schema}"
                )
        aliased = {_storage(tensor): name for name, _, aliases, tensor in named if not aliases}
        for returned in pytree.tree_leaves(result):
            lent = aliased.get(_storage(returned)) if isinstance(returned, Tensor) else None
            # (ATen's own `reshape` and its like return memory of an argument or not, unsaid.)
            if lent is not None and func.namespace not in ("aten", "prim", "prims"):
                raise RuntimeError(
                    f"{func} returned memory of its argument {lent!r}, which its schema does not "
                    f"say: {func._schema}"
                )
        return result


def _tensors(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, bool, bool, Tensor]]:
    """The tensors that an operator is given: of which argument, and whether the schema says that it
    is written to, and that results may lie in its memory."""
    for position, argument in enumerate(func._schema.arguments):
        given = args[position] if position < len(args) else kwargs.get(argument.name)
        alias = argument.alias_info
        for value in pytree.tree_leaves(given):
            if isinstance(value, Tensor) and value.layout is torch.strided and _storage(value):
                writes = alias is not None and alias.is_write
                yield argument.name, writes, alias is not None, value


def _dense(tensor: Tensor) -> Tensor:
    return tensor.detach()


def _same(now: Tensor, before: Tensor) -> bool:
    return now.shape == before.shape and bool(
        torch.equal(torch.nan_to_num(now), torch.nan_to_num(before))
        if now.is_floating_point()
        else torch.equal(now, before)
    )


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _of_this_compiler(backend: B) -> B:
    backend.backend_traits = BackendTraits(symbolic=True, compiler=True)  # type: ignore[attr-defined]
    return backend


def as_is(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A compiler that leaves a graph to eager."""
    return graph.forward


def _within(
    mode: AbstractContextManager[Any], graph: GraphModule, inputs: Sequence[Any]
) -> Callable[..., Any]:
    def run(*given: Any) -> Any:
        with mode:
            return graph.forward(*given)

    return run


@_of_this_compiler
def aot_eager(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Forward and backward cut by the min-cut partitioner, run as they are."""
    return aot_compile(gm, example_inputs, forward_compiler=as_is, decompositions=core_aten_table())


@_of_this_compiler
def aot_eager_default_partitioner(
    gm: GraphModule, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """As `aot_eager`, but what the backward reads is saved, and nothing computed again."""
    return aot_compile(
        gm,
        example_inputs,
        forward_compiler=as_is,
        decompositions=core_aten_table(),
        partition=default_partition,
    )


@_of_this_compiler
def aot_eager_decomp_partition_with_mode(
    gm: GraphModule, example_inputs: Sequence[Any], *, mode: AbstractContextManager[Any]
) -> Callable[..., Any]:
    """As `aot_eager`, with `mode` (a TorchDispatchMode) around each run of a graph."""
    return aot_compile(
        gm,
        example_inputs,
        forward_compiler=partial(_within, mode),
        decompositions=core_aten_table(),
    )


@_of_this_compiler
def run_eagers_kernels(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """What the mode "lite" makes of a graph: forward and backward of the operators that the program
    calls, nothing decomposed, so that results and gradients are eager's very numbers."""
    return aot_compile(gm, example_inputs, forward_compiler=as_is)


def ts(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The captured graph, scripted. Its code has to be TorchScript; each size is a graph."""
    return _scripted(gm)


def aot_ts(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """AOT autograd's forward and backward graphs of ATen operators, scripted."""
    return aot_compile(gm, example_inputs, forward_compiler=_scripted_operators)


def _scripted(gm: GraphModule) -> Callable[..., Any]:
    plain = GraphModule(gm, gm.graph)  # (without a lazily compiled one's methods)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, as a whole
        scripted: Callable[..., Any] = torch.jit.script(plain)
    return scripted


def _scripted_operators(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A graph of operators, scripted: TorchScript finds overloads by the arguments."""
    for node in gm.graph.nodes:
        if isinstance(node.target, OpOverload):
            if node.target is torch.ops.aten._to_copy.default:
                node.target = torch.ops.aten.to
                node.kwargs = {"copy": True, **node.kwargs}
            else:
                node.target = node.target.overloadpacket
    gm.recompile()
    return _scripted(gm)
