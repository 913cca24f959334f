"""How operations run on fake tensors, and what they refuse; and operations that stop a GPU for what
their arguments hold: indices that are no places, say.

Tensors that a frame makes in blocks of `torch.inference_mode` of its own the graph computes as
tensors without gradient. Operations outside of the block are first tried on inference tensors, so
that autograd refuses what it refuses in eager. Operations with tensors that wrap tensors stand in
the graph as ones that ask no class: capture interprets what a `__torch_function__` makes of them.

A kernel cannot raise, and after a fault the process cannot use the GPU at all. A program that
checks its arguments before never comes to that; a graph whose checks are read at its end would. So
the graph gives such operations harmless arguments where a check does not hold.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Container, Iterable
from typing import Any

import torch
from dovetail_guards.shape_env import DataDependentError
from dovetail_prims.fake.fake_mode import DispatchMode
from dovetail_prims.fake_tensor import FakeTensor, make
from dovetail_prims.ops.catalog import POINTWISE
from dovetail_prims.symbolic.symbolic_forms import symbolic_form
from dovetail_prims.wrappers import MakeWrapper, Unasked, is_wrapper, overrides_functions
from torch.utils import _pytree as pytree

from dovetail_capture.interpreter.signals import GraphBreakSignal

# What operators raise for arguments that do not fit, and what tells that it is another error: of
# an operator that works on the data, or that has no kernel for fake tensors.
_OF_ARGUMENTS = (RuntimeError, IndexError, TypeError, ValueError)
_NO_DATA = ("data pointer", "data_ptr", "storage", "meta tensor", "Meta", "not allocated yet")
_NO_FAKE_KERNEL = "no fake impl"


def refusal(name: str, error: Exception) -> GraphBreakSignal:
    """Why an operation gave nothing for fake tensors."""
    text = str(error)
    if isinstance(error, DataDependentError) or any(word in text for word in _NO_DATA):
        return GraphBreakSignal(
            f"`{name}` needs the data of a tensor",
            "compute the value outside of the compiled function, or keep it a tensor",
        )
    if _NO_FAKE_KERNEL in text:
        return GraphBreakSignal(
            f"`{name}` has no fake kernel, which tells what its results are like: {text}",
            "register one with `register_fake` (torch.library)",
        )
    raises = type(error) in _OF_ARGUMENTS  # (a refusal of ours is of a class of its own)
    return GraphBreakSignal(
        f"`{name}` raises {type(error).__name__}: {text}",
        "mend the arguments: eager mode raises this, too" if raises else "",
        type(error)(text) if raises else None,
    )


def run_on_fakes(function: Any, run: Callable[..., Any], pairs: Any, keyword_pairs: Any) -> Any:
    args = [pair[1] for pair in pairs]
    kwargs = {key: pair[1] for key, pair in keyword_pairs.items()}
    return run_on_given(function, run, args, kwargs)


def run_on_given(function: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    result = symbolic_form(function, args, kwargs)
    return run(*args, **kwargs) if result is NotImplemented else result


# --- inference tensors ---


def as_inference(tensor: torch.Tensor) -> torch.Tensor:
    """An inference tensor over the same memory."""
    with torch.inference_mode(), torch._C.DisableTorchFunctionSubclass():
        if tensor.is_inference():
            return tensor
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
        torch._C._set_conj(made, tensor.is_conj())
        torch._C._set_neg(made, tensor.is_neg())
        return made


class ViewsOfInferenceTensors(DispatchMode):  # type: ignore[no-untyped-call]
    """Makes views of inference tensors such tensors, as the dispatcher does of real ones."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        base = args[0] if args else None
        infers = isinstance(base, torch.Tensor) and base.is_inference()
        is_view = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        with torch.inference_mode(infers) if is_view else contextlib.nullcontext():
            return func(*args, **(kwargs or {}))


def check_as_autograd_does(
    run: Callable[[list[Any], dict[str, Any]], Any],
    args: list[Any],
    kwargs: dict[str, Any],
    is_inference: Callable[[FakeTensor], bool],
) -> None:
    """Break the graph where eager raises: at a write to an inference tensor outside of the mode, at
    saving one for the backward.

    `run` runs the operation, within `ViewsOfInferenceTensors`; it is given copies, so that nothing
    of it lasts.
    """
    copies: dict[int, torch.Tensor] = {}

    def copy(value: Any) -> Any:
        if type(value) is not FakeTensor:
            return value
        if id(value) not in copies:
            with torch.inference_mode(is_inference(value)), torch.no_grad():
                parts = (value._sizes, value._strides, value._dtype, value._device, value._offset)
                made = make(*parts)
            # (No leaf, which may not be written to.)
            copies[id(value)] = made.requires_grad_().clone() if value.requires_grad else made
        return copies[id(value)]

    given = pytree.tree_map(copy, (args, kwargs))
    try:
        run(*given)
    except RuntimeError as error:
        if "nference" in str(error):
            raise GraphBreakSignal(
                f"a use of an inference tensor that raises: {error}",
                "use it within torch.inference_mode(), or clone it",
                RuntimeError(str(error)),
            ) from error
    except Exception:
        return  # what else is wrong the operation itself tells


# --- tensors that wrap tensors ---


def wrappers_in(fakes: Iterable[Any]) -> tuple[bool, bool]:
    """Are there tensors that wrap others among these, and such whose class is asked about
    functions?"""
    wraps = asked = False
    for fake in fakes:
        kind = type(fake)
        if kind in (tuple, list):
            found = wrappers_in(fake)
            wraps, asked = wraps or found[0], asked or found[1]
        elif kind is not FakeTensor and isinstance(fake, torch.Tensor) and is_wrapper(fake):
            wraps, asked = True, asked or overrides_functions(kind)
    return wraps, asked


def asking(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, where torch asks classes about functions."""
    enabled: Any = torch._C

    def call(*args: Any, **kwargs: Any) -> Any:
        with enabled._EnableTorchFunction():
            return run(*args, **kwargs)

    return call


def unasked(kind: str, target: Any) -> tuple[str, Any]:
    """What a node calls whose classes were asked when it was captured."""
    if isinstance(target, (Unasked, MakeWrapper)):
        return kind, target
    return "call_function", Unasked(
        getattr(torch.Tensor, target) if kind == "call_method" else target
    )


# Functions that take whole numbers for what they are. All others may take them for places: of such
# that are none a GPU's kernel stops the process from using the GPU at all.
_HARMLESS = frozenset(card.name for card in POINTWISE) | frozenset(
    {"truediv", "floordiv", "mod", "and_", "or_", "xor", "invert", "sum", "prod", "amax", "amin",
     "max", "min", "all", "any", "to", "long", "int", "float", "double", "half", "bfloat16", "bool",
     "type_as", "view", "reshape", "unsqueeze", "squeeze", "expand", "expand_as",
     "broadcast_tensors", "broadcast_to", "clone", "contiguous", "detach", "cat", "stack",
     "transpose", "permute", "flatten", "zeros_like", "ones_like", "_is_all_true", "cumsum",
     "argmax", "argmin", "sort", "topk", "is_floating_point", "getattr", "select", "narrow",
     "chunk", "split", "unbind", "movedim", "t", "repeat", "flip", "numel", "diff", "mean", "norm",
     "eq_", "empty_like", "new_zeros", "new_ones"}
)  # fmt: skip
# Which arguments (by place and name) of well-known functions must be places, or probabilities.
_ARGUMENTS: dict[str, tuple[tuple[int, str], ...]] = {
    "gather": ((2, "index"),), "take_along_dim": ((1, "indices"),), "index_select": ((2, "index"),),
    "embedding": ((0, "input"),), "nll_loss": ((1, "target"),), "cross_entropy": ((1, "target"),),
    "scatter": ((2, "index"),), "scatter_": ((2, "index"),), "scatter_add": ((2, "index"),),
    "scatter_add_": ((2, "index"),), "index_add": ((2, "index"),), "index_add_": ((2, "index"),),
    "getitem": ((1, "key"),), "multinomial": ((0, "input"),), "bernoulli": ((0, "input"),),
    "binary_cross_entropy": ((0, "input"), (1, "target")),
}  # fmt: skip
_PROBABILITIES = frozenset({"multinomial", "bernoulli", "binary_cross_entropy"})


def places_of(name: str) -> tuple[tuple[int, str], ...]:
    """The arguments of a function, by place and name, that it may not be given otherwise."""
    return _ARGUMENTS.get(name, ())


def harmless_number(name: str, tensor: Any) -> int | None:
    """What such an argument may be anywhere: the place 0, the probability 1. None if it may be
    what it is (a mask, say)."""
    if name in _PROBABILITIES:
        return 1 if tensor.dtype.is_floating_point else None
    return 0 if _is_whole(tensor.dtype) else None


def may_fault(name: str, arguments: list[Any], safe: Container[int]) -> bool:
    """May an operation stop the GPU for what its arguments hold? (On a CPU it raises.) Those whose
    ids are in `safe` are harmless."""
    if name in _HARMLESS or name.strip("_") in _HARMLESS:
        return False
    if name == "getitem":  # of what it may be a view is no place
        arguments = arguments[1:]
    tensors: list[Any] = [a for a in _flat(arguments) if isinstance(a, torch.Tensor)]
    tensors = [t for t in tensors if t.device.type != "cpu" and id(t) not in safe]
    return bool(tensors) and (
        (name.strip("_") in _PROBABILITIES and any(t.dtype.is_floating_point for t in tensors))
        or any(_is_whole(tensor.dtype) for tensor in tensors)
    )


def _is_whole(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return functools.reduce(operator.iadd, map(_flat, value), [])
    return [value]
