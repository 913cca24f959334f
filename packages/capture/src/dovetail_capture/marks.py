"""How users mark functions: run in Python, one node, a constant, replaced by another function.

The marks of `torch.compiler`'s functions of the same names are honoured: they are attributes of
the function, or ids in a table of a module that is loaded only once they have been used.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import weakref
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

import torch

from dovetail_capture._frame_hook import Switched, skip_code
from dovetail_capture.skip import module_of

F = TypeVar("F", bound=Callable[..., Any])

_ALLOWED: weakref.WeakSet[Any] = weakref.WeakSet()
_CONSTANT: weakref.WeakSet[Any] = weakref.WeakSet()
_SUBSTITUTES: dict[int, tuple[Any, Callable[..., Any]]] = {}  # holds the key's object alive


def _in(marked: weakref.WeakSet[Any], function: Any) -> bool:
    if isinstance(function, MethodType):
        function = function.__func__
    try:
        return function in marked
    except TypeError:  # unhashable or not weakly referable
        return False


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """A version of `fn` (or of a module's call) that runs in Python.

    `recursive`: capture is off for all that it calls; else only its own frame runs plainly.
    `reason` is told where it breaks a graph. Also a decorator with arguments.
    """
    if fn is None:
        return lambda f: disable(f, recursive, reason=reason)
    if isinstance(fn, torch.nn.Module):
        forward = disable(fn.forward, recursive, reason=reason)
        object.__setattr__(fn, "forward", forward)
        return fn
    if isinstance(fn, type):
        init = disable(vars(fn).get("__init__", object.__init__), recursive, reason=reason)
        type.__setattr__(fn, "__init__", init)
        return fn
    if recursive:
        marked: Any = Switched(fn, None)
        functools.update_wrapper(marked, fn)
    else:
        marked = fn
        skip_code(inspect.unwrap(fn).__code__)
        marked.__dict__["_torchdynamo_disable_recursive"] = False
    marked.__dict__["_torchdynamo_disable"] = True
    marked.__dict__["_torchdynamo_disable_msg"] = reason
    return marked


def is_disabled(function: Any) -> bool:
    """Was the function marked with `disable` (ours or `torch.compiler.disable`)?"""
    if isinstance(function, MethodType):
        function = function.__func__
    return bool(getattr(function, "_torchdynamo_disable", False))


def without_others_marks(function: FunctionType) -> FunctionType:
    """What PyTorch's own compiler, once used in a process, disables in `torch.optim` for itself,
    as it was; any other function as it is."""
    if is_disabled(function) and module_of(function).startswith("torch.optim."):
        original = getattr(function, "_torchdynamo_orig_callable", None)
        if isinstance(original, FunctionType):
            return original
    return function


def as_torch_has_it(target: Any) -> Any:
    """A bound method of an optimizer without the marks of PyTorch's own compiler; all else as it
    is."""
    function = getattr(target, "__func__", None)
    if isinstance(target, MethodType) and isinstance(function, FunctionType):
        original = without_others_marks(function)
        if original is not function:
            return MethodType(original, target.__self__)
    return target


def within_other_compiler(function: FunctionType) -> Any:
    """What PyTorch's own compiler was given, of a function that it made; None of any other."""
    code = function.__code__
    if code.co_name != "compile_wrapper":
        return None
    made_there = code.co_filename.endswith(_COMPILED_BY)
    return getattr(function, "_torchdynamo_orig_callable", None) if made_there else None


_COMPILED_BY = os.path.join("torch", "_dynamo", "eval_frame.py")


def reason_of(function: Any) -> str:
    """The reason that was given to `disable`, or an empty text."""
    return str(getattr(function, "_torchdynamo_disable_msg", None) or "")


def allow_in_graph(fn: F) -> F:
    """Make calls of `fn` one node of the graph: capture does not look inside."""
    if isinstance(fn, (list, tuple)):
        return cast(F, [allow_in_graph(item) for item in fn])
    if not callable(fn):
        raise TypeError(f"allow_in_graph takes a function, got {type(fn).__name__}")
    _ALLOWED.add(fn)
    return fn


def nonstrict_trace(traceable_fn: F) -> F:
    """`allow_in_graph`, by the name of `torch.compiler`'s.

    Both take objects of classes that are registered with `torch.utils._pytree`, and modules, whose
    parameters get gradients. Tensors that the function closes over are constants to it.
    """
    return allow_in_graph(traceable_fn)


def is_allowed_in_graph(function: Any) -> bool:
    """Was the function marked with `allow_in_graph` (ours or `torch.compiler`'s)?"""
    if _in(_ALLOWED, function):
        return True
    theirs = sys.modules.get("torch._dynamo.trace_rules")
    ids = getattr(getattr(theirs, "_allowed_callable_ids", None), "function_ids", ())
    return id(function) in ids


def assume_constant_result(fn: F) -> F:
    """Make a call of `fn` a constant: it runs once, at capture, and nothing guards what it
    gave."""
    _CONSTANT.add(fn)
    return fn


def forbid_in_graph(fn: Any) -> Any:
    """Make it an error to call `fn`, a function (or each of several), in captured code."""
    if isinstance(fn, (list, tuple)):
        return [forbid_in_graph(item) for item in fn]
    if not callable(fn):
        raise TypeError(f"forbid_in_graph takes a function, got {type(fn).__name__}")
    fn._dynamo_forbidden = True
    return fn


def is_forbidden(function: FunctionType) -> bool:
    """Was the function marked with `forbid_in_graph` (ours or `torch.compiler`'s)?"""
    return function.__dict__.get("_dynamo_forbidden") is True


def is_constant_result(function: Any) -> bool:
    """Was the function marked with `assume_constant_result` (ours or `torch.compiler`'s)?"""
    return _in(_CONSTANT, function) or bool(getattr(function, "_dynamo_marked_constant", False))


def substitute_in_graph(
    original_fn: Any, *, can_constant_fold_through: bool = False, skip_signature_check: bool = False
) -> Callable[[F], F]:
    """Let captured code call the decorated Python function where it calls `original_fn`, a function
    that capture cannot look into.

    `can_constant_fold_through` is accepted for `torch.compiler`'s sake: the substitute is always
    interpreted, which gives a constant where its arguments are constants.
    """
    if not callable(original_fn):
        raise TypeError(f"substitute_in_graph takes a function, got {type(original_fn).__name__}")

    def register(substitute: F) -> F:
        if not skip_signature_check:
            _check_signatures(original_fn, substitute)
        if id(original_fn) in _SUBSTITUTES:
            raise ValueError(f"{original_fn!r} has a substitute already")
        _SUBSTITUTES[id(original_fn)] = (original_fn, substitute)
        return substitute

    return register


def _check_signatures(original: Any, substitute: Any) -> None:
    try:
        wanted = inspect.signature(original)
    except ValueError:  # a C function that does not tell
        return
    given = inspect.signature(substitute)
    shape = [(p.name, p.kind, p.default is p.empty) for p in wanted.parameters.values()]
    if shape != [(p.name, p.kind, p.default is p.empty) for p in given.parameters.values()]:
        raise TypeError(f"the substitute's signature {given} differs from the original's {wanted}")


def is_marked(function: Any) -> bool:
    """Does the function carry a mark that is found by the function object itself?"""
    return (
        is_allowed_in_graph(function)
        or is_constant_result(function)
        or substitute_of(function) is not None
    )


def substitute_of(function: Any) -> Callable[..., Any] | None:
    """The function registered by `substitute_in_graph`, or None."""
    found = _SUBSTITUTES.get(id(function))
    return None if found is None else found[1]
