"""`eager_debug`: the captured graph as it is, with each operator held to its schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from dovetail_capture import takes_symbolic_graphs
from dovetail_prims.conditionals import run_plainly
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


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
            if lent is not None and _owns_memory(func):
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


def _owns_memory(func: OpOverload) -> bool:
    """Whether no result may lie in an argument's memory. (ATen's own `reshape` and its like return
    one or the other, and say neither.)"""
    return func.namespace not in ("aten", "prim", "prims")


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
