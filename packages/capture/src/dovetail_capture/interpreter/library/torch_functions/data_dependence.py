"""What only data tells: `torch._check` and its like, by which the program says what holds of sizes
and numbers, and parts of tensors from where data tells (`narrow`, `tensor_split`).
"""

from __future__ import annotations

import linecache
import operator
from collections.abc import Callable
from typing import Any, cast

import torch
from dovetail_guards import relations as rel
from dovetail_guards.float_expr import FloatExpr
from dovetail_guards.sym_node import SymNode
from dovetail_prims.shape_rules.views import wrapped
from dovetail_prims.sizes.size_nodes import STATE

from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import operators, subscripts
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue, TruthOf
from dovetail_capture.interpreter.values.texts import LateText

_MOST_NUMBERS = 128  # of a tensor whose `tolist()` becomes numbers of the graph


def _said(vm: Interpreter, args: Args, kwargs: Kwargs) -> str:
    """The message of a check, where it is known."""
    message = args[1] if len(args) > 1 else kwargs.get("message")
    if message is not None and not isinstance(message, Constant):
        message = vm.call(message, [], {})  # a function that makes it
    if isinstance(message, LateText) and not vm.depends_on_data(args[0]):
        return message.template  # only the reason of a guard
    if isinstance(message, Constant) and isinstance(message.value, str):
        return message.value
    return ""


def require_relation(vm: Interpreter, condition: Any, message: str) -> Value | None:
    """State a relation; None if it is known to fail (then Python's function raises)."""
    node = condition.node
    if isinstance(node, SymNode) and isinstance(node.expr, FloatExpr) and node.hint is None:
        raise GraphBreakSignal(
            "torch._check of a float that depends on data",
            "use torch._assert_async on the tensor, or check outside",
        )
    if not isinstance(node, SymNode) or not isinstance(node.expr, rel.BoolExpr):
        return None
    recorder = vm.session.recorder
    loose = bool(node.expr.free_symbols() & node.env.unbacked)
    try:
        graph_condition = recorder.sizes.node(condition) if loose else None
    except (NotImplementedError, RuntimeError) as error:
        raise GraphBreakSignal(f"a check that a graph cannot make: {error}") from None
    if not node.env.require(node.expr, message):
        return None
    if loose and isinstance(graph_condition, torch.fx.Node):
        args = (graph_condition, message) if message else (graph_condition,)
        recorder.state_change(STATE, *args)
    return NONE


def truth_number(vm: Interpreter, tensor: TensorValue) -> Value:
    """The truth of a tensor of one element, as a relation over a number that the data tells."""
    integer = vm.record("call_function", torch.ne, [tensor, Constant(0)], {})
    integer = vm.record("call_method", "to", [integer, Constant(torch.int64)], {})
    number = vm.record("call_method", "item", [integer], {})
    assert isinstance(number, SymbolicNumber)
    vm.session.shapes.env.require((number.value >= 0).node.expr, "")
    return vm.constant(number.value >= 1)


def item(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`tensor.item()` of what is known, and of truth values; numbers are items as they are."""
    tensor = args[0]
    known = vm.data_of(tensor)
    if isinstance(tensor, TensorValue) and known is not UNKNOWN:
        return vm.constant(known.item())
    if not isinstance(tensor, TensorValue) or tensor.fake.dtype is not torch.bool:
        return PASS
    truth = vm.truth_of(tensor)
    if truth is not None:
        return truth
    if vm.session.recorder.data_env is None or tensor.fake.numel() != 1:
        return PASS
    return truth_number(vm, tensor)


def tolist(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`tensor.tolist()`: of what is known, or of a few numbers that the data tells."""
    tensor = args[0]
    known = vm.data_of(tensor)
    if isinstance(known, torch.Tensor):
        return vm.constant(known.tolist())
    if not isinstance(tensor, TensorValue) or vm.session.recorder.data_env is None:
        return PASS
    if any(vm.depends_on_data(vm.constant(size)) for size in tensor.sizes):
        raise GraphBreakSignal(
            "tolist() of a tensor whose length only the data tells",
            "say what it is before: torch._check(counts.shape[0] == n)",
        )
    if tensor.fake.numel() > _MOST_NUMBERS:
        return PASS
    return _numbers(vm, tensor)


def _numbers(vm: Interpreter, tensor: TensorValue) -> Value:
    if not tensor.fake.dim():
        return vm.call(vm.get_attr(tensor, "item"), [], {})
    length = operator.index(tensor.sizes[0])  # (a guard of a symbolic one: so many numbers)
    parts = [subscripts.getitem(vm, tensor, Constant(i)) for i in range(length)]
    return ListValue([_numbers(vm, cast(TensorValue, part)) for part in parts])


def require_truth(vm: Interpreter, condition: Value, wanted: bool) -> bool:
    """Check in the graph that a condition that only data tells is as wanted: what `assert` says.
    False if a graph cannot."""
    frame = vm.frames[-1]
    line = linecache.getline(frame.code.co_filename, frame.line()).strip()
    message = f"`{line}` does not hold ({frame.code.co_filename}:{frame.line()})"
    if isinstance(condition, TensorValue):
        if condition.fake.numel() != 1:
            return False
        condition = truth_number(vm, condition)
    value = condition.value if isinstance(condition, SymbolicNumber) else None
    if not isinstance(value, torch.SymBool):
        return False
    try:
        return require_relation(vm, value if wanted else torch.sym_not(value), message) is not None
    except GraphBreakSignal:
        return False


def _check(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if args and isinstance(args[0], TruthOf) and vm.check_later((args[0], True)):
        return NONE
    if not args or not isinstance(args[0], SymbolicNumber):
        return PASS
    if not isinstance(args[0].value, torch.SymBool):
        return PASS
    done = require_relation(vm, args[0].value, _said(vm, args, kwargs))
    return PASS if done is None else done


def _check_with(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """What the other checks of torch come down to: the error's type comes first."""
    return _check(vm, args[1:], kwargs) if len(args) > 1 else PASS


def _check_is_size(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if not args or not isinstance(args[0], SymbolicNumber):
        return PASS
    done = require_relation(vm, args[0].value >= 0, "a size is not negative")
    limit = kwargs.get("max")
    if done is not None and limit is not None and isinstance(limit, (Constant, SymbolicNumber)):
        done = require_relation(vm, args[0].value <= limit.value, "a size is within its bound")
    return PASS if done is None else done


def _split(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.split(sizes)`: sizes that only data tells are checked to be the parts of the whole."""
    tensor, sizes = args[0], args[1] if len(args) > 1 else None
    dim = args[2] if len(args) > 2 else kwargs.get("dim", Constant(0))
    if not isinstance(sizes, (ListValue, TupleValue)) or not isinstance(tensor, TensorValue):
        return PASS
    whole = vm.constant(tensor.sizes[vm.as_python(dim)])
    total: Value = Constant(0)
    for size in vm.iterate(sizes):
        if vm.depends_on_data(size):
            require_relation(vm, size.value >= 0, "a size is not negative")  # type: ignore[attr-defined]
        total = operators.binary(vm, "+", total, size, False)
        if vm.depends_on_data(total) or vm.depends_on_data(whole):
            require_relation(vm, total.value <= whole.value, "parts are no more than the whole")  # type: ignore[attr-defined]
    if vm.depends_on_data(total) or vm.depends_on_data(whole):
        require_relation(vm, total.value == whole.value, "the parts are together the whole")  # type: ignore[attr-defined]
    return PASS


def _view(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.view(sizes)`: sizes that only data tells are no -1, which would stand for another."""
    sizes = args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], (ListValue, TupleValue)):
        sizes = list(vm.iterate(sizes[0]))
    for size in sizes:
        if isinstance(size, SymbolicNumber) and vm.depends_on_data(size):
            relation = (size.value >= 0).node
            if relation.env.statically_known(relation.expr) is None:
                require_relation(vm, size.value >= 0, "a size is not negative")
    return PASS


_CHECKS: tuple[Callable[..., Any], ...] = (
    torch._check, torch._check_value, torch._check_index, torch._check_type,
)  # fmt: skip
_SPLIT_OPS = (
    torch.ops.aten.split_with_sizes, torch.ops.aten.split_with_sizes.default,
    torch.ops.aten.split.sizes,
)  # fmt: skip


def _given(names: tuple[str, ...], args: Args, kwargs: Kwargs) -> dict[str, Value] | None:
    """The arguments by name; None if they are not those (PyTorch says what is wrong)."""
    found = dict(zip(names, args, strict=False))
    if len(args) > len(names) or found.keys() & kwargs.keys():
        return None
    found.update(kwargs)
    return found if found.keys() <= set(names) else None


def narrow(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.narrow(dim, start, length)` from where only data tells: a slice of a known length, which
    the program checks to lie within."""
    given = _given(("input", "dim", "start", "length"), args, kwargs)
    if given is None or len(given) != 4:
        return PASS
    tensor, start, length = given["input"], given["start"], given["length"]
    dim = vm.as_python(given["dim"])
    if not isinstance(tensor, TensorValue) or not -len(tensor.sizes) <= dim < len(tensor.sizes):
        return PASS
    if isinstance(start, TensorValue) and not start.fake.dim():
        start = vm.call(vm.get_attr(start, "item"), [], {})
    if not isinstance(start, SymbolicNumber) or not vm.depends_on_data(start):
        return PASS
    if not isinstance(length, (Constant, SymbolicNumber)):
        return PASS
    size = tensor.sizes[dim]
    position = wrapped(start.value, size)
    end = position + length.value
    for holds, message in (
        (start.value >= -size, "narrow: start is out of range"),
        (start.value <= size, "narrow: start is out of range"),
        (position >= 0, "narrow: start is out of range"),
        (end >= 0, "narrow(): length must be non-negative."),
        (end <= size, "narrow: start + length exceeds the dimension's size"),
    ):
        if isinstance(holds, torch.SymBool) and require_relation(vm, holds, message) is None:
            return PASS
    bounds = [Constant(dim), vm.constant(position), vm.constant(end)]
    return vm.record("call_function", torch.ops.aten.slice.Tensor, [tensor, *bounds], {})


def tensor_split(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.tensor_split(places)`: places in a tensor are numbers, as many as it has. (A number of
    parts in a tensor breaks the graph: how many results there are depends on data.)"""
    named = kwargs.get("tensor_indices_or_sections")
    places = args[1] if len(args) > 1 else named
    if not isinstance(places, TensorValue) or places.fake.dim() != 1:
        return PASS
    numbers = vm.call(vm.get_attr(places, "tolist"), [], {})
    if named is None:
        args = [args[0], numbers, *args[2:]]
    else:
        kwargs = {**kwargs, "indices": numbers}
        del kwargs["tensor_indices_or_sections"]
    return vm.record("call_function", torch.tensor_split, args, kwargs)


def unique_slices(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """What `torch.unique` with a `dim` calls, which has no name that a graph can hold."""
    return vm.record("call_function", torch.ops.aten.unique_dim.default, args, kwargs)


HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys((torch.split, torch.Tensor.split, torch.split_with_sizes), _split),
    **dict.fromkeys((torch.Tensor.split_with_sizes, *_SPLIT_OPS), _split),
    **dict.fromkeys((torch.Tensor.view, torch.Tensor.reshape, torch.reshape), _view),
    torch.Tensor.item: item,
    torch.Tensor.tolist: tolist,
    **dict.fromkeys(_CHECKS, _check),
    torch._check_with: _check_with,
    getattr(torch._check_is_size, "__wrapped__", torch._check_is_size): _check_is_size,
    torch._check_is_size: _check_is_size,
    torch.narrow: narrow,
    torch.Tensor.narrow: narrow,
    torch._VF.unique_dim: unique_slices,
    torch.tensor_split: tensor_split,
    torch.Tensor.tensor_split: tensor_split,
}
