"""Higher-order operators of torch: control flow that is given functions.

Those with a plain meaning in Python are interpreted by it: `cond` by what is no tensor is an `if`,
`while_loop` a loop (by a tensor's truth see `control_flow`), `switch` a chain of
`cond`, and `map` and `scan` over few slices are unrolled; those that only mark a function for a
compiler (`invoke_quant`, `flex_gemm`) are the function. All others run by themselves, outside of
graphs.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.associative_scan import associative_scan as torch_associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan as torch_scan
from torch._higher_order_ops.while_loop import while_loop as torch_while_loop
from torch.utils import _pytree as pytree

from dovetail_capture.extensions.higher_order import control_flow
from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import inlining
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.tensors import TensorValue

MOST_UNROLLED = 64  # slices; of more, a graph would be long


# --- interpreted ----------------------------------------------------------------------------------


def _stacked(results: Any, dim: int = 0) -> Any:
    """Trees of tensors, side by side along a new dimension."""
    flat = [pytree.tree_flatten(result) for result in results]
    columns = [torch.stack([row[i] for row, _ in flat], dim) for i in range(len(flat[0][0]))]
    return pytree.tree_unflatten(columns, flat[0][1])


def map_slices(f: Any, xs: Any, *args: Any) -> Any:
    leaves, spec = pytree.tree_flatten(xs)
    count = leaves[0].shape[0]
    slices = [pytree.tree_unflatten([x[i] for x in leaves], spec) for i in range(count)]
    return _stacked([f(part, *args) for part in slices])


def scan(combine_fn: Any, init: Any, xs: Any, *, dim: Any = 0, reverse: Any = False) -> Any:
    leaves, spec = pytree.tree_flatten(xs)
    dim = dim % leaves[0].dim()
    count = leaves[0].shape[dim]
    carry, results = init, [None] * count
    for i in reversed(range(count)) if reverse else range(count):
        part = pytree.tree_unflatten([x.select(dim, i) for x in leaves], spec)
        carry, results[i] = combine_fn(carry, part)
    return carry, _stacked(results, dim)


def switch(index: Any, branches: Any, operands: Any = ()) -> Any:
    if isinstance(index, torch.Tensor) and index.numel() != 1:
        raise RuntimeError(f"Expected index to be int or single-element tensor, but got {index}.")
    last = len(branches) - 1
    if isinstance(index, torch.Tensor) and last > 0:
        return one_of(index, 0, branches, operands)
    return branches[max(0, min(index, last)) if last else 0](*operands)


def one_of(index: Any, first: int, branches: Any, operands: Any) -> Any:
    """By a tensor, one of the branches from the first one on."""
    if first == len(branches) - 1:
        return branches[first](*operands)

    def others(*given: Any) -> Any:
        return one_of(index, first + 1, branches, given)

    return torch.cond(index <= first, branches[first], others, operands)


def marked(subgraph: Any, *operands: Any, **options: Any) -> Any:
    return subgraph(*operands)


def matrix_product(gemm_op: Any, body_fn: Any, args: Any, kwargs: Any, options: Any) -> Any:
    with torch.no_grad():  # (as in eager, where an argument that needs a gradient is an error)
        return body_fn(*args)


# --- handlers -------------------------------------------------------------------------------------


def _length(vm: Interpreter, value: Value, dim: int) -> Any:
    """The size of the first tensor in an argument along a dimension."""
    if isinstance(value, TensorValue):
        sizes = value.fake._sizes
        return sizes[dim] if -len(sizes) <= dim < len(sizes) else None
    if isinstance(value, (ListValue, TupleValue)):
        for item in vm.iterate(value):
            return _length(vm, item, dim)
    return None


def _unrolled(function: Any, position: int) -> Handler:
    """Over few slices of argument number `position`."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        dim = kwargs.get("dim", Constant(0))
        if position < len(args) and isinstance(dim, Constant) and type(dim.value) is int:
            count = _length(vm, args[position], dim.value)
            if isinstance(count, torch.SymInt):
                count = count.node.hint  # (the loop ties a symbolic size to its number)
            if type(count) is int and 0 < count <= MOST_UNROLLED:
                return inlining.inline(vm, function, args, kwargs)
        return PASS

    return handler


_MARKING: dict[str, Callable[..., Any]] = {
    "invoke_quant": marked,
    "invoke_quant_packed": marked,
    "flex_gemm": matrix_product,
}


def _has_gradients(vm: Interpreter, args: Args) -> bool:
    """Whether autograd would see an operator. (The backward of `flex_gemm` is an error.)"""
    if not torch.is_grad_enabled():
        return False
    nested = [v for a in args if isinstance(a, (ListValue, TupleValue)) for v in vm.iterate(a)]
    return any(isinstance(v, TensorValue) and v.fake.requires_grad for v in nested)


def _called(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    called = [*args, *kwargs.values()][0]
    name = getattr(getattr(called, "real", None), "_name", called.describe())
    if name == "cond":  # the operator itself, which `torch.cond` calls
        return control_flow.conditional(vm, args[1:], kwargs)
    plain = _MARKING.get(name)
    if plain is not None and not (plain is matrix_product and _has_gradients(vm, args)):
        return inlining.inline(vm, plain, args[1:], kwargs)
    raise GraphBreakSignal(
        f"the higher-order operator `{name}`, which runs by itself",
        "write it in plain Python: an `if` or a loop over tensors is captured as it is",
    )


def _switch(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return inlining.inline(vm, switch, args, kwargs)


def _associative_scan(vm: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """What is said to be pointwise may be scanned as what is not."""
    names = list(inspect.signature(torch_associative_scan).parameters)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    given["combine_mode"] = Constant("generic")
    return inlining.inline(vm, torch_associative_scan, [], given)


def _newer_operators() -> dict[Any, Handler]:
    """Those that not every torch has."""
    if importlib.util.find_spec("torch._higher_order_ops.switch") is None:
        return {}
    module: Any = importlib.import_module("torch._higher_order_ops.switch")
    return {module.switch: _switch}


HANDLERS: dict[Any, Handler] = {
    **_newer_operators(),
    torch.cond: control_flow.conditional,
    torch_while_loop: control_flow.loop,
    torch_map: _unrolled(map_slices, 1),
    torch_scan: _unrolled(scan, 2),
    torch_associative_scan: _associative_scan,
    torch._ops.HigherOrderOperator.__call__: _called,
}
