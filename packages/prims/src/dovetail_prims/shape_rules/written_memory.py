"""Memory that is written to: where what is given as `out=` lies, if it was given another size, and
what eager's kernels refuse, where memory that is read and written is not element by element the
same (what they would read depends on what was written before).

Eager's kernels that make their result as an iterator, or state its strides, lay an `out` that they
resize as they would lay a result of their own; others make it contiguous. (PyTorch's meta kernels
make some of the former contiguous, too.) Overlaps are looked for, as by eager, in tensors without
gaps only, and only by operators whose kernels do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload

from dovetail_prims.fake.fake_fallback import run_on_meta
from dovetail_prims.fake_tensor import FakeTensor, ShapeRule, Size, propagate, set_metadata
from dovetail_prims.shape_rules.layout import dense_order, empty_like_strides, equal_sizes, has_zero

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


# The result may not share memory with an argument at all.
_APART = frozenset(
    {
        "gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce",
        "scatter_reduce_", "index_add", "index_add_", "index_copy", "index_copy_", "index_reduce",
        "index_reduce_", "index_put_", "put_", "take", "cat", "stack", "index_select", "index",
        "masked_select",
    }
)  # fmt: skip
# It may be an argument itself (so it may be of all that is pointwise).
_THE_SAME = frozenset(
    {
        "copy_", "cumsum", "cumprod", "sort", "topk", "kthvalue", "median", "max", "min", "aminmax",
        "where", "addr", "addr_", "bernoulli", "bernoulli_", "normal",
    }
)  # fmt: skip
_UNCHECKED = frozenset({"fill_", "masked_fill_"})


def refusing_overlaps(func: Any, rule: ShapeRule | None) -> ShapeRule | None:
    """The rule of an operator, after a check of its arguments if eager's kernel makes one."""
    if not isinstance(func, OpOverload) or func.namespace != "aten" or not func._schema.is_mutable:
        return rule
    name = func._schema.name.removeprefix("aten::")
    if name in _UNCHECKED:
        return rule
    apart = name in _APART
    if not apart and name not in _THE_SAME and not _is_pointwise(name):
        return rule
    written = frozenset(
        a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write
    )
    return _after_check(func, rule, written, apart)


def _is_pointwise(name: str) -> bool:
    """Whether an operator is, by its functional form (those that write do not all say so)."""
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    if packet is None:
        return False
    return any(torch.Tag.pointwise in getattr(packet, form).tags for form in packet.overloads())


def _after_check(
    func: OpOverload, rule: ShapeRule | None, written: frozenset[str], apart: bool
) -> ShapeRule:
    names = [a.name for a in func._schema.arguments]

    def checked(*args: Any, **kwargs: Any) -> Any:
        given = [*zip(names, args, strict=False), *kwargs.items()]
        outputs = [t for name, value in given if name in written for t in _tensors(value)]
        inputs = [t for name, value in given if name not in written for t in _tensors(value)]
        if func._schema.name == "aten::aminmax":
            _distinct(outputs)
        _refuse(outputs, inputs, apart)
        return NotImplemented if rule is None else rule(*args, **kwargs)

    return checked


def _tensors(value: Any) -> Iterator[FakeTensor]:
    if type(value) is FakeTensor:
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


def _refuse(outputs: Iterable[FakeTensor], inputs: Iterable[FakeTensor], apart: bool) -> None:
    inputs = list(inputs)
    for output in outputs:
        for given in inputs:
            if given._storage is output._storage and _overlap(output, given, apart):
                raise RuntimeError(
                    "unsupported operation: some elements of the input tensor and the written-to "
                    "tensor refer to a single memory location. Please clone() the tensor before "
                    "performing the operation."
                )


def _distinct(outputs: list[FakeTensor]) -> None:
    first, *rest = outputs
    for other in rest:
        if first._storage is other._storage and _overlap(first, other, True):
            raise ValueError("aminmax(): the `min` and `max` out= tensors must not overlap.")


def _overlap(a: FakeTensor, b: FakeTensor, apart: bool) -> bool:
    """Whether two tensors of one storage share memory; if not `apart`, other than as one and the
    same. What is not known, or has gaps, does not count."""
    if a is b:
        return apart
    first, second = _place(a), _place(b)
    if first is None or second is None:
        return False
    if _holds(first[0] == second[0]) and _holds(first[1] == second[1]):
        pairs = zip(a._strides, b._strides, strict=False)
        same = len(a._strides) == len(b._strides) and all(_holds(n == m) for n, m in pairs)
        return apart or not same
    return _holds(first[0] < second[1]) and _holds(second[0] < first[1])


def _place(t: FakeTensor) -> tuple[Size, Size] | None:
    """The bytes of its storage that a tensor without gaps lies in."""
    if any(_holds(size == 0) for size in t._sizes) or dense_order(t._sizes, t._strides) is None:
        return None
    count: Size = 1
    for size in t._sizes:
        count = count * size
    return t._offset * t._dtype.itemsize, (t._offset + count) * t._dtype.itemsize


def _holds(relation: Any) -> bool:
    """Whether a relation holds of sizes: decided by a guard, and not if only the data tells."""
    return relation if type(relation) is bool else bool(relation.node.guard_or_false("", 0))
