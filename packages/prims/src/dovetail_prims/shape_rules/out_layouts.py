"""Where what is written to with `out=` lies, if it was given another size.

Eager's kernels that make their result as an iterator, or state its strides, lay an `out` that they
resize as they would lay a result of their own; others make it contiguous. (PyTorch's meta kernels
make some of the former contiguous, too.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload

from dovetail_prims.fake.fake_fallback import run_on_meta
from dovetail_prims.fake_tensor import FakeTensor, ShapeRule, propagate, set_metadata
from dovetail_prims.shape_rules.layout import empty_like_strides, equal_sizes, has_zero

# They say nothing of it, but do.
_LAID = frozenset(
    {
        "addr", "cholesky_inverse", "complex", "floor_divide", "linalg_eig",
        "linalg_householder_product", "ormqr", "polar", "sort",
    }
)  # fmt: skip
# They copy to it.
_COPIED = frozenset({"slice_scatter"})


def laying_out(func: Any, rule: ShapeRule | None) -> ShapeRule | None:
    """The rule of an operator, which lays a resized `out` as eager does."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return rule
    outs = [a.name for a in func._schema.arguments if a.is_out]
    form = _functional_form(func) if outs else None
    if form is None or not lays_resized(form):
        return rule
    return _laid(func, form, outs, rule)


def lays_resized(form: OpOverload) -> bool:
    """Whether eager's kernel lays a resized `out` as a result of its own."""
    name = form._schema.name.removeprefix("aten::")
    if name in _LAID or name in _COPIED:
        return name in _LAID
    if torch.Tag.pointwise in form.tags:
        return True
    structured = torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional
    return bool(form.has_kernel_for_dispatch_key(structured))


def _keeps_gaps(form: OpOverload, laid: FakeTensor) -> bool:
    """Whether a result of no elements has the strides of its operand, which an `out` has not."""
    return form._schema.name == "aten::nan_to_num" and has_zero(laid._sizes)


def _is_one(out: FakeTensor, own: Any) -> bool:
    """Whether a result fits into what is given for it as it is."""
    return isinstance(own, FakeTensor) and (
        equal_sizes(out._sizes, own._sizes)
        and out._dtype is own._dtype
        and out._device == own._device
    )


def _laid(func: OpOverload, form: OpOverload, outs: list[str], rule: ShapeRule | None) -> ShapeRule:
    def in_order(*args: Any, **kwargs: Any) -> Any:
        written = [t for t in map(kwargs.get, outs) if isinstance(t, FakeTensor)]
        before = [t._sizes for t in written]
        result = NotImplemented if rule is None else rule(*args, **kwargs)
        if result is NotImplemented and len(written) == len(outs):
            rest = {name: value for name, value in kwargs.items() if name not in outs}
            if all(map(_is_one, written, _each_of(propagate(form, args, rest)))):
                return written[0] if len(outs) == 1 else tuple(written)
        if result is NotImplemented:
            result = run_on_meta(func, args, kwargs)
        pairs = zip(written, before, strict=True)
        if len(written) < len(outs) or all(equal_sizes(t._sizes, sizes) for t, sizes in pairs):
            return result
        rest = {name: value for name, value in kwargs.items() if name not in outs}
        own = _each_of(propagate(form, args, rest))
        for t, sizes, laid in zip(written, before, own, strict=False):
            resized = not equal_sizes(t._sizes, sizes) and equal_sizes(t._sizes, laid._sizes)
            if resized and not _keeps_gaps(form, laid):
                # (An operand may be its own result: it is read with its gaps.)
                set_metadata(t, t._sizes, empty_like_strides(laid), t._offset)
        return result

    return in_order


def _functional_form(func: OpOverload) -> OpOverload | None:
    """The overload that takes the same arguments but `out`."""
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments if not a.is_out]
    packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::"))
    for name in packet.overloads():
        form: OpOverload = getattr(packet, name)
        arguments = [(a.name, str(a.type)) for a in form._schema.arguments]
        if arguments == wanted and not form._schema.is_mutable:
            return form
    return None


def _each_of(results: Any) -> Iterator[Any]:
    """The tensors of an operator's results."""
    yield from results if isinstance(results, (tuple, list)) else (results,)
