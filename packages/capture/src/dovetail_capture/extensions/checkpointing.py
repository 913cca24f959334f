"""`torch.utils.checkpoint.checkpoint`: a region of the graph that is computed again.

Its operators are marked, for whoever cuts the joint graph. Where a `context_fn` selects what is
kept, they are marked with its policy as well, a function of PyTorch's own form
`(context, operator, *args, **kwargs) -> CheckpointPolicy`: it speaks of ATen operators, which only
the trace of the graph has, and is asked there.
"""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch._ops import HigherOrderOperator, OpOverload

from dovetail_capture.interpreter.graph.recorder import Policy
from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import dicts, inlining
from dovetail_capture.interpreter.protocols.attributes import resolve
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value, is_none
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue
from dovetail_capture.interpreter.values.functions import BoundMethod, FunctionValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue

_WAY = (
    "give functools.partial(create_selective_checkpoint_contexts, policy), or call the checkpoint "
    "outside of the compiled function"
)


def checkpoint(
    function: Any,
    *args: Any,
    use_reentrant: Any = None,
    context_fn: Any = None,
    determinism_check: Any = None,
    debug: Any = None,
    early_stop: Any = None,
    preserve_rng_state: Any = None,
    respect_saved_tensors_hooks: Any = None,
    **kwargs: Any,
) -> Any:
    """`torch.utils.checkpoint.checkpoint`: of what its operators compute, a compiler keeps nothing
    for the backward but what goes in, comes out, is random, or is selected."""
    return function(*args, **kwargs)


def checkpoint_of_constants(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A reentrant checkpoint none of whose arguments requires a gradient: what it gives requires
    none, whatever the function closes over."""
    with torch.no_grad():
        return checkpoint(function, *args, **kwargs)


_NOT_TOLD = (
    "torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly. A future "
    "release raises an exception without it. use_reentrant=False is recommended; "
    "use_reentrant=True preserves what the default is now."
)
_CONSTANTS = "None of the inputs have requires_grad=True. Gradients will be None"


@dataclass(frozen=True)
class _Selection:
    """What stands for the pair of contexts while a `context_fn` is interpreted."""

    policy: Policy


def _checkpoint(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if not args:
        return PASS  # a decorator
    recorder = vm.session.recorder
    before = recorder.checkpoint, recorder.policy
    policy = _policy(vm, kwargs)
    body = _body(vm, args, kwargs.get("use_reentrant"))
    if before[0] is None:  # (of regions inside of each other, the outermost)
        recorder.checkpoint, recorder.policy = recorder.operations, policy
    try:
        with _draws_once(vm, kwargs.get("preserve_rng_state")):
            return inlining.inline(vm, body, args, kwargs)
    finally:
        recorder.checkpoint, recorder.policy = before


def _body(vm: Interpreter, args: Args, reentrant: Value | None) -> Any:
    """What stands for a checkpoint, which also warns as eager's does."""
    if reentrant is None or is_none(reentrant):
        _warn(vm, _NOT_TOLD)
    elif not vm.truth(reentrant):
        return checkpoint
    if any(isinstance(value, TensorValue) and value.fake.requires_grad for value in args):
        return checkpoint
    _warn(vm, _CONSTANTS)
    return checkpoint_of_constants


def _warn(vm: Interpreter, text: str) -> None:
    """(A graph that is exported has no effects.)"""
    if not vm.session.exports:
        vm.call(Constant(warnings.warn), [Constant(text)], {})


def _decorated(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`_checkpoint_impl(function, args, kwargs, ...)`, which what the decorator made calls."""
    function, given, named = args
    assert isinstance(named, DictValue)
    by_name = {vm.as_python(key): value for key, value in dicts.items(vm, named)}
    return _checkpoint(vm, [function, *vm.iterate(given)], kwargs | by_name)


@contextmanager
def _draws_once(vm: Interpreter, preserve: Value | None) -> Iterator[None]:
    """Without `preserve_rng_state` eager's backward draws other random numbers than its forward
    did. In a graph there is one draw, so the region may not draw any."""
    mode = vm.session.recorder.fake_mode
    if preserve is None or not torch.is_grad_enabled() or vm.truth(preserve):
        yield
        return
    before, mode.drew = mode.drew, False
    try:
        yield
        if mode.drew:
            raise GraphBreakSignal(
                "random numbers in a checkpoint with preserve_rng_state=False: its backward draws "
                "others",
                "leave preserve_rng_state to be True",
            )
    finally:
        mode.drew |= before


def _policy(vm: Interpreter, kwargs: Kwargs) -> Policy | None:
    """What a checkpoint's `context_fn` selects by, if it has one."""
    given = kwargs.get("context_fn")
    if given is None or vm.as_python(given) is torch_checkpoint.noop_context_fn:
        return None
    reentrant = kwargs.get("use_reentrant")
    if reentrant is None or is_none(reentrant) or vm.truth(reentrant):
        raise GraphBreakSignal(
            "a checkpoint with a context_fn, which only one with use_reentrant=False takes"
        )
    session = vm.session
    session.selects = True
    try:
        found = vm.call(given, [], {})
    finally:
        session.selects = False
    parts = list(found.items) if isinstance(found, TupleValue) else []
    for part in parts:
        if len(parts) == 2 and isinstance(part, Constant) and isinstance(part.value, _Selection):
            return part.value.policy
    raise GraphBreakSignal("a checkpoint with a context_fn that makes contexts of its own", _WAY)


def _contexts(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`create_selective_checkpoint_contexts(policy_or_operators)`, called by a `context_fn`."""
    if not vm.session.selects or not (args or "policy_fn_or_list" in kwargs):
        return PASS
    given = args[0] if args else kwargs["policy_fn_or_list"]
    real = real_object(vm, given)
    if isinstance(real, list):
        policy = _saving(real)
    elif real is not UNKNOWN and callable(real):
        policy = real
    else:
        raise GraphBreakSignal(
            f"a checkpoint that selects by {given.describe()}, which only the frame knows", _WAY
        )
    return TupleValue([Constant(_Selection(policy))] * 2)


def _saving(operators: list[Any]) -> Policy:
    """The policy that a list of operators to save stands for."""
    for operator in operators:
        if not isinstance(operator, (OpOverload, HigherOrderOperator)):
            raise GraphBreakSignal(f"a checkpoint that is to save {operator!r:.60}")
    saved = frozenset(operators)
    save = torch_checkpoint.CheckpointPolicy.MUST_SAVE
    recompute = torch_checkpoint.CheckpointPolicy.PREFER_RECOMPUTE
    return lambda context, operator, *args, **kwargs: save if operator in saved else recompute


def real_object(vm: Interpreter, value: Value) -> Any:
    """The object that a value stands for, or one of its own that does the same: a function made in
    the frame, of what the interpreter knows. UNKNOWN if there is none."""
    real = vm.as_python(value)
    if real is not UNKNOWN:
        return real
    if isinstance(value, FunctionValue):
        return _real_function(vm, value)
    if isinstance(value, BoundMethod):
        function, receiver = real_object(vm, value.function), real_object(vm, value.receiver)
        known = function is not UNKNOWN and receiver is not UNKNOWN
        return types.MethodType(function, receiver) if known else UNKNOWN
    if isinstance(value, ObjectValue) and value.real is not None and not value.fields.mutated:
        return value.real
    return UNKNOWN


def _real_function(vm: Interpreter, value: FunctionValue) -> Any:
    if id(value) in vm.copied or any(cell.content is None for cell in value.closure):
        return UNKNOWN  # it closes over itself, or over what is not there yet
    vm.copied.add(id(value))
    try:
        held = [real_object(vm, vm.resolve_cell(cell)) for cell in value.closure]
        defaults = tuple(real_object(vm, resolve(vm, default)) for default in value.defaults)
        named = {}
        if value.kwdefaults is not None:
            for key, default in dicts.items(vm, value.kwdefaults):
                named[vm.as_python(key)] = real_object(vm, default)
    finally:
        vm.copied.discard(id(value))
    if any(part is UNKNOWN for part in (*held, *defaults, *named.values())):
        return UNKNOWN
    cells = tuple(types.CellType(part) for part in held)
    made = types.FunctionType(value.code, value.globals_, value.name, defaults, cells)
    made.__kwdefaults__ = named or None
    return made


HANDLERS: dict[Any, Handler] = {
    inspect.unwrap(torch_checkpoint.checkpoint): _checkpoint,
    torch_checkpoint.checkpoint: _checkpoint,
    torch_checkpoint.create_selective_checkpoint_contexts: _contexts,
}
if hasattr(torch_checkpoint, "_checkpoint_impl"):
    HANDLERS[torch_checkpoint._checkpoint_impl] = _decorated
