"""Operators of lists of tensors (`_foreach_add` ...): on a CPU eager computes each tensor by
itself, and refuses what the operator of one tensor refuses."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from dovetail_prims.fake.fake_fallback import run_on_meta
from dovetail_prims.fake_tensor import FakeTensor, ShapeRule, propagate
from dovetail_prims.sizes.batched_matmul import has_symbolic_sizes

_PREFIX = "_foreach_"
# The overload for one tensor by that for a list.
_OVERLOADS = {
    "default": ("default",),
    "Scalar": ("Tensor_Scalar", "Scalar", "default"),
    "ScalarList": ("Tensor_Scalar", "Scalar", "default"),
    "List": ("Tensor", "Tensor_Tensor", "default"),
    "Tensor": ("Tensor",),
    "ScalarAndTensor": ("Scalar",),
}
_NAMES: dict[Any, str] = {
    "norm": "linalg_vector_norm", ("maximum", "Scalar"): "clamp_min",
    ("maximum", "ScalarList"): "clamp_min", ("minimum", "Scalar"): "clamp_max",
    ("minimum", "ScalarList"): "clamp_max",
}  # fmt: skip


def checking_each(func: Any, rule: ShapeRule | None) -> ShapeRule | None:
    """The rule of an operator of lists, after a check of each of their tensors."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return rule
    name = func._schema.name.removeprefix("aten::")
    if not name.startswith(_PREFIX):
        return rule
    one = _of_one(name.removeprefix(_PREFIX), func._overloadname)
    return rule if one is None else _each(func, one, rule)


def _of_one(name: str, overload: str) -> OpOverload | None:
    in_place = "_" if name.endswith("_") else ""
    base = name.removesuffix("_")
    base = _NAMES.get((base, overload), _NAMES.get(base, base))
    packet = getattr(torch.ops.aten, base + in_place, None)
    if packet is None or overload not in _OVERLOADS:
        return None
    known = packet.overloads()
    found = next((o for o in _OVERLOADS[overload] if o in known), None)
    return None if found is None else getattr(packet, found)


def _each(func: OpOverload, one: OpOverload, rule: ShapeRule | None) -> ShapeRule:
    taken = sum(not a.kwarg_only for a in one._schema.arguments)
    names = {a.name for a in one._schema.arguments}
    gives_list = [str(r.type) for r in func._schema.returns] == ["List[Tensor]"]

    def checked(*args: Any, **kwargs: Any) -> Any:
        lists = [a for a in args if isinstance(a, (list, tuple)) and a]
        first = next((a for a in lists if isinstance(a[0], FakeTensor)), ())
        own = {name: value for name, value in kwargs.items() if name in names}
        numbers = [a for a in args if not isinstance(a, torch.dtype)]

        def of_one(number: int) -> Any:
            # (A list of as many tensors or numbers has one for each.)
            given = [
                a[number] if isinstance(a, (list, tuple)) and len(a) == len(first) else a
                for a in numbers
            ]
            return propagate(one, tuple(given[:taken]), own)

        result = NotImplemented if rule is None else rule(*args, **kwargs)
        if result is NotImplemented:
            if gives_list and any(has_symbolic_sizes(tensor) for tensor in first):
                return [of_one(number) for number in range(len(first))]
            result = run_on_meta(func, args, kwargs)
        for number, tensor in enumerate(first):
            if tensor._device.type != "cpu":
                break
            of_one(number)
        return result

    return checked
