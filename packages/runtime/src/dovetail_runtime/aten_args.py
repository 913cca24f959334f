"""ATen operators by name, and a plan's argument values as Python ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dovetail_runtime.plan import AtenArg, FloatOf, Ref, SizeExpr
from dovetail_runtime.sizes import evaluate, float_bits, float_from_bits


def split_op_name(op: str) -> tuple[str, str]:
    """`aten::mm.out` -> (`aten::mm`, `out`); the default overload's name is empty."""
    if "::" not in op:
        raise ValueError(
            f"operator {op!r} has no namespace: write it like aten::mm or aten::mm.out"
        )
    namespace, _, rest = op.partition("::")
    name, _, overload = rest.partition(".")
    return f"{namespace}::{name}", "" if overload == "default" else overload


def resolve_op(op: str) -> Callable[..., Any]:
    """The `OpOverload` called `op`."""
    qualified, overload = split_op_name(op)
    namespace, _, name = qualified.partition("::")
    try:
        packet = getattr(getattr(torch.ops, namespace), name)
        resolved: Callable[..., Any] = getattr(packet, overload or "default")
    except AttributeError:
        raise ValueError(f"there is no operator {op!r} in this PyTorch") from None
    return resolved


def python_value(
    argument: AtenArg, tensors: Mapping[str, torch.Tensor | None], symbols: Mapping[str, int]
) -> Any:
    """`argument` with tensors and sizes put in."""
    if isinstance(argument, Ref):
        return tensors[argument.name]
    if isinstance(argument, SizeExpr):
        return evaluate(argument, symbols)
    if isinstance(argument, FloatOf):
        return float_from_bits(evaluate(argument.bits, symbols))
    if isinstance(argument, tuple):
        return [python_value(a, tensors, symbols) for a in argument]
    return argument


def element(tensor: torch.Tensor) -> int:
    """The value of a tensor's one element, a float as its bits."""
    value = tensor.item()
    return float_bits(value) if isinstance(value, float) else int(value)


def call_with_numbers(op: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call `op`, where a Python number may stand for any tensor argument: it becomes a 0-d tensor
    that decides the result's type no more than a number does."""
    tensors = [a for a in [*args, *kwargs.values()] if isinstance(a, torch.Tensor)]
    wide = any(t.dtype in (torch.float64, torch.complex128) for t in tensors)

    def wrapped(value: Any) -> Any:
        if isinstance(value, complex):
            return torch.tensor(value, dtype=torch.complex128 if wide else None)
        if isinstance(value, float):
            return torch.tensor(value, dtype=torch.float64 if wide else None)
        return torch.tensor(value) if isinstance(value, (bool, int)) else value

    formals = op._schema.arguments  # type: ignore[attr-defined]
    wants_tensor = {f.name for f in formals if str(f.type) in ("Tensor", "Optional[Tensor]")}
    positional = [
        wrapped(value) if formal.name in wants_tensor else value
        for formal, value in zip(formals, args, strict=False)
    ]
    named = {k: wrapped(v) if k in wants_tensor else v for k, v in kwargs.items()}
    return op(*positional, *args[len(positional) :], **named)
