"""Operators that write to their arguments, recorded as functional ones.

Each records what the operator would compute and makes it the new value of the tensor's storage.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.graphs.functional_forms import absent_arguments, functional_form
from dovetail_prims.shape_rules.layout import empty_like_strides
from dovetail_prims.shape_rules.written_memory import lays_resized
from torch import Tensor
from torch._ops import OpOverload

from dovetail_autograd_aot.graph.op_info import (
    OpInfo,
    OpKind,
    default_arguments,
    is_custom,
    op_info,
)
from dovetail_autograd_aot.trace import metadata_mutations
from dovetail_autograd_aot.trace.input_storages import extent
from dovetail_autograd_aot.trace.node_values import flatten, same_sizes
from dovetail_autograd_aot.trace.samplers import INTO, drawn, drawn_into, is_sampler
from dovetail_autograd_aot.trace.storage import TraceError, fresh, read, track_of
from dovetail_autograd_aot.trace.storage_writes import write as write_value

if TYPE_CHECKING:
    from dovetail_autograd_aot.trace.tracer import Tracer

aten = torch.ops.aten

# With `out` they compute in its dtype, as if it were asked for by `dtype`.
_IN_DTYPE_OF_OUT = frozenset({"sum", "prod", "nansum", "cumsum", "cumprod"})
# And these in it without such an argument.
_AS_DTYPE_OF_OUT = frozenset({"std", "var"})


def copy(tracer: Tracer, target: Tensor, source: Any, non_blocking: bool = False) -> FakeTensor:
    """`copy_`: the source, a tensor or a number, in the layout of the target."""
    tensor = tracer.traced(target)
    if not isinstance(source, Tensor):
        source = tracer.literal(source, tensor._device)
    value = read(tracer, tracer.traced(source))
    write_value(tracer, tensor, value)
    return tensor


def fill(tracer: Tracer, func: OpOverload, args: tuple[Any, ...]) -> FakeTensor:
    """`fill_` with a number, and `zero_`."""
    tensor = tracer.traced(args[0])
    value = args[1] if func is aten.fill_.Scalar else 0
    sizes = [tracer.nodes(s) for s in tensor._sizes]
    kwargs = {"dtype": tensor._dtype, "device": tensor._device}
    filled = tracer.node_op(aten.full.default, (sizes, tracer.nodes(value)), kwargs)
    write_value(tracer, tensor, filled, uniform=True)
    return tensor


def write(
    tracer: Tracer, func: OpOverload, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """An operator that writes: record its functional form, then write the new values."""
    names = info.argument_names
    if func is aten.native_batch_norm.default:
        return _batch_norm(tracer, args, kwargs)
    if func is aten.native_batch_norm.out:
        return _batch_norm_out(tracer, args, dict(kwargs))
    if func is aten.cudnn_batch_norm.default:
        return _cudnn_batch_norm(tracer, args, kwargs)
    if func in INTO:
        return drawn_into(tracer, func, args, kwargs)
    if func is aten._foreach_copy_.default:  # (its functional form is a call, and keeps all gaps)
        for target, source in zip(*args[:2], strict=True):
            torch.autograd.graph.increment_version(copy(tracer, target, source))
        return None
    one_by_one = _one_by_one(func, args, kwargs)
    if one_by_one:
        for args_of_one, kwargs_of_one in one_by_one:
            write(tracer, func, info, args_of_one, kwargs_of_one)
        return None
    form = info.functional
    if form is None:
        raise TraceError(f"{func} writes to an argument and has no functional form")
    if is_custom(func):
        return _custom(tracer, func, args, kwargs)
    filled, rest = default_arguments(func, args, kwargs)
    targets: list[Any] = []
    for position in info.written:
        value = filled[position] if position < len(filled) else rest.pop(names[position], None)
        targets.append(value)
    is_out = func._schema.arguments[info.written[0]].is_out
    dtype = kwargs.get("dtype")
    if not is_out and dtype is not None and dtype is not targets[0].dtype:
        raise TraceError(f"{func}: computes in {dtype} in place of a tensor of {targets[0].dtype}")
    if is_out:
        # An out argument is not read; its functional form does not take it.
        positional = filled[: len(form._schema.arguments)]
    else:
        positional = filled
    rest = tracer.without_generator(func, rest)
    allowed = {a.name for a in form._schema.arguments}
    rest = {k: v for k, v in rest.items() if k in allowed}
    if is_out and isinstance(targets[0], Tensor):
        with tracer:
            positional, rest = _in_dtype_of(targets[0].dtype, func, positional, rest)
        for option in {"dtype", "device"} & (allowed - set(names)):
            rest[option] = getattr(targets[0], option)
    result: Any = None
    if is_sampler(func, info):

        def run(canvas: FakeTensor, numbers: tuple[Any, ...]) -> Any:
            return _run_form(tracer, form, (canvas, *numbers), rest)

        result = drawn(tracer, func, tracer.traced(targets[0]), tuple(positional[1:]), run)
    if result is None:
        result = _run_form(tracer, form, tuple(positional), rest)
    results = [result] if len(form._schema.returns) == 1 else list(result)
    targets = [t for t in targets if t is not None]
    return _written(tracer, func, form, targets, results, [*positional, *rest.values()], is_out)


def _one_by_one(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments of calls with one tensor of each list, of an operator that writes to those of a
    list: where one is read, or written to, after another one in the same memory was written to.
    Nothing if all can be computed from what there was before."""
    targets = args[0] if args else ()
    in_lists = func._schema.name.startswith("aten::_foreach_") and not func._schema.returns
    if not in_lists or not isinstance(targets, (list, tuple)) or len(targets) < 2:
        return []
    lists = [a for a in (*args, *kwargs.values()) if isinstance(a, (list, tuple))]
    if not _meets_written(targets, lists):
        return []

    def of_one(value: Any, i: int) -> Any:
        return value[i : i + 1] if isinstance(value, (list, tuple)) else value

    return [
        (tuple(of_one(a, i) for a in args), {k: of_one(v, i) for k, v in kwargs.items()})
        for i in range(len(targets))
    ]


def _meets_written(targets: Sequence[Any], lists: Sequence[Sequence[Any]]) -> bool:
    """Whether a tensor of some list may share memory with a target before its place in the list."""
    written: dict[Any, list[tuple[int, int]]] = {}
    hulls: dict[Any, tuple[int, int]] = {}  # (pieces of one tensor mostly come in its order)
    for i, target in enumerate(targets):
        for tensor in (operands[i] for operands in lists):
            if type(tensor) is FakeTensor and tensor._storage in written:
                place, hull = _place(tensor), hulls[tensor._storage]
                if _meet(place, hull) and any(_meet(place, p) for p in written[tensor._storage]):
                    return True
        if type(target) is FakeTensor:
            place = _place(target)
            begin, end = hulls.get(target._storage, place)
            hulls[target._storage] = min(begin, place[0]), max(end, place[1])
            written.setdefault(target._storage, []).append(place)
    return False


def _place(tensor: FakeTensor) -> tuple[int, int]:
    """The bytes that a tensor reaches; all of its storage if its sizes are symbols."""
    numbers = (*tensor._sizes, *tensor._strides, tensor._offset)
    return extent(tensor) if all(type(n) is int for n in numbers) else (0, sys.maxsize)


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _in_dtype_of(
    dtype: torch.dtype, func: OpOverload, args: list[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with which an operator computes in the dtype of its `out`, where eager does."""
    name = func._schema.name.removeprefix("aten::")
    if name in _IN_DTYPE_OF_OUT and kwargs.get("dtype") is None:
        return args, {**kwargs, "dtype": dtype}
    if name in _AS_DTYPE_OF_OUT and args[0].dtype is not dtype:
        return [args[0].to(dtype), *args[1:]], kwargs
    return args, kwargs


def _custom(tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A user's operator: its functional form gives its results, then what it writes."""
    values = dict(zip(op_info(func).argument_names, args, strict=False)) | kwargs
    absent = absent_arguments(func, values)
    form = functional_form(func, absent)
    assert form is not None
    written = [i for i in op_info(func).written if i not in absent]
    if not written and not func._schema.returns:
        with tracer:
            form(*args, **kwargs)
        return None
    result = _run_form(tracer, form, args, kwargs)
    results = [result] if len(form._schema.returns) == 1 else list(result)
    targets = [values[op_info(func).argument_names[i]] for i in written]
    return _written(tracer, func, form, targets, results)


def _written(
    tracer: Tracer,
    func: OpOverload,
    form: OpOverload,
    targets: list[Any],
    results: list[Any],
    operands: Sequence[Any] = (),
    is_out: bool = False,
) -> Any:
    """Give the targets their new values, the last of `results`; what the operator returns. If it
    `is_out`, they get the sizes of these, too."""
    own = results[: len(results) - len(targets)]
    in_lists = {id(t) for target in targets if isinstance(target, (list, tuple)) for t in target}
    for target, new in zip(flatten(targets), flatten(results[len(own) :]), strict=True):
        tensor = tracer.traced(target)
        sizes = new.meta["val"]._sizes
        fits = same_sizes(sizes, tensor._sizes)
        if not fits and is_out and all(type(s) is int for s in (*sizes, *tensor._sizes)):
            strides = empty_like_strides(new.meta["val"]) if lays_resized(form) else None
            _resize_out(tracer, func, tensor, list(sizes), strides, operands)
        elif not fits:
            raise TraceError(
                f"{func}: the result has shape {list(new.meta['val']._sizes)}, but the tensor "
                f"written to {list(tensor._sizes)}; resizing in place cannot be compiled"
            )
        if new is not read(tracer, tensor):
            write_value(tracer, tensor, new)
        else:
            storage = track_of(tensor).storage
            storage.rewriter = storage.rewriter or tracer.running
        if id(target) in in_lists:
            torch.autograd.graph.increment_version(tensor)  # (C++ does so only for single tensors)
    returned = len(func._schema.returns)
    if returned == 0:
        return None
    fresh_results = [tracer.fresh_results(n) for n in own]
    aliased = [t for t, r in zip(targets, func._schema.returns[len(own) :], strict=False) if r]
    everything = fresh_results + aliased
    return everything[0] if returned == 1 else tuple(everything)


def _resize_out(
    tracer: Tracer,
    func: OpOverload,
    out: FakeTensor,
    sizes: list[int],
    strides: Sequence[Any] | None,
    operands: Sequence[Any],
) -> None:
    """Give an `out` the sizes of what is written to it."""
    if out.requires_grad:
        raise TraceError(f"{func}: an out= that requires grad is given another size")
    if any(type(t) is FakeTensor and t._storage is out._storage for t in flatten(operands)):
        raise TraceError(f"{func}: an out= that shares memory with an operand gets another size")
    before = list(out._sizes)
    metadata_mutations.resized(tracer, out, sizes, func, strides)
    if 0 not in before:
        warnings.warn(
            f"An output with one or more elements was resized since it had shape {before}, which "
            f"does not match the required output shape {sizes}",
            stacklevel=2,
        )


def _run_form(
    tracer: Tracer, form: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The nodes of a functional operator's results, decomposed where the table says so."""
    decomposition = tracer.decompositions.get(form)
    if decomposition is not None:
        with tracer:
            result = decomposition(*args, **kwargs)
        if result is not NotImplemented:
            return _values(tracer, result)
    random = op_info(form).kind is OpKind.RANDOM
    return tracer.emit(form, tracer.nodes(args), tracer.nodes_of(kwargs), merge=not random)


def _values(tracer: Tracer, result: Any) -> Any:
    """The nodes of a decomposition's results."""
    if isinstance(result, (list, tuple)):
        return [_values(tracer, r) for r in result]
    return read(tracer, tracer.traced(result))


def _batch_norm(tracer: Tracer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """native_batch_norm updates the running statistics in training, which its schema hides."""
    filled: list[Any] = default_arguments(aten.native_batch_norm.default, args, kwargs)[0]
    x, weight, bias, mean, var, training, momentum, eps = filled
    if not training:
        form = aten._native_batch_norm_legit_no_training.default
        frozen = (x, weight, bias, mean, var, momentum, eps)
        return tuple(fresh(n) for n in _run_form(tracer, form, frozen, {}))
    if mean is None:
        form = aten._native_batch_norm_legit.no_stats
        stateless = (x, weight, bias, training, momentum, eps)
        return tuple(fresh(n) for n in _run_form(tracer, form, stateless, {}))
    form = aten._native_batch_norm_legit_functional.default
    out, save_mean, save_invstd, new_mean, new_var = _run_form(tracer, form, tuple(filled), {})
    write_value(tracer, tracer.traced(mean), new_mean)
    write_value(tracer, tracer.traced(var), new_var)
    return fresh(out), fresh(save_mean), fresh(save_invstd)


def _batch_norm_out(tracer: Tracer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """native_batch_norm that writes its three results, and the running statistics."""
    targets: list[Any] = [kwargs.pop(name) for name in ("out", "save_mean", "save_invstd")]
    results = [read(tracer, t) for t in _batch_norm(tracer, args, kwargs)]
    form = aten.native_batch_norm.default
    return _written(tracer, aten.native_batch_norm.out, form, targets, results, args, True)


def _cudnn_batch_norm(tracer: Tracer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """cudnn_batch_norm as the native one: it can be decomposed and fused. The fourth result is
    cuDNN's own workspace, empty here."""
    out, save_mean, save_invstd = _batch_norm(tracer, args, kwargs)
    with tracer:
        workspace = torch.empty((0,), dtype=torch.uint8, device=out._device)
    return out, save_mean, save_invstd, workspace
