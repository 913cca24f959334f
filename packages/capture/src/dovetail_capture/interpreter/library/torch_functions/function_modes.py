"""`TorchFunctionMode`s: what the program's modes make of a torch function is captured with it.

While a frame is captured torch's own stack of modes is empty; the program's is in
`Session.function_modes`. Which function a mode would be given, and with which arguments, torch
itself tells: the operation is begun on fakes under a mode of ours (`_Probe`), which ends it there.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from dovetail_capture.interpreter.graph.graph_values import NotAGraphArgument
from dovetail_capture.interpreter.graph.recorder import Recorder
from dovetail_capture.interpreter.library.torch_functions.own_functions import ask, asked_classes
from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import (
    NONE,
    Constant,
    Value,
    boolean,
    is_none,
    is_not_implemented,
)
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    ListValue,
    SliceValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.tensors import TensorValue

_C: Any = torch._C


class _Seen(Exception):
    """What a mode is given first: the function, types, arguments."""

    def __init__(self, given: tuple[Any, ...]) -> None:
        super().__init__("seen")
        self.given = given


class _Probe(TorchFunctionMode):
    """Ends an operation where a mode would be asked."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Seen((func, types, args, kwargs))


@functools.cache
def _makers() -> frozenset[Any]:
    """The functions that `with torch.device(...)` gives a device."""
    from torch.utils._device import _device_constructors

    return frozenset(_device_constructors())


def through_modes(
    vm: Interpreter, run: Callable[..., Any], args: Args, kwargs: Kwargs
) -> Value | None:
    """What the program's modes make of the operation `run`; None if they leave it as it is.
    Raises NotAGraphArgument for a Python function that no mode is asked about as a whole."""
    session = vm.session
    if run is torch.Tensor.as_subclass:  # which torch asks nobody about
        return None
    modes = session.modes.function_modes
    asked = asked_classes(vm, [*args, *kwargs.values()])
    if all(mode.python_type() is DeviceContext for mode in modes):
        if modes and run in _makers() and _is_none(kwargs.get("device")):
            kwargs["device"] = vm.get_attr(modes[-1], "device")
        if not asked:
            return None
        modes = []
    try:
        given = _given(session.recorder, run, args, kwargs)
    except NotAGraphArgument:
        return None
    if given is None:
        return None
    func, given_classes, positional, named = given
    if isinstance(run, types.FunctionType) and func is not run:
        raise NotAGraphArgument(f"`{run.__name__}`, in which a mode is asked about `{func}`")
    classes = tuple(asked)
    if isinstance(func, types.FunctionType) and _holds_plain_tensor(args):
        classes += (torch.Tensor,)  # (C functions tell of overriding classes only,
    elif given_classes and not asked:  # or, without arguments, of the tensor's)
        classes = (torch.Tensor,)
    values = _Values(session.recorder)
    call = [Constant(func), TupleValue([vm.held(cls) for cls in classes]), values.of(positional)]
    call.append(values.of(named))
    return _ask(vm, call) if modes else ask(vm, asked, call)


def _ask(vm: Interpreter, call: Args) -> Value:
    """Let the innermost mode answer, with the others on the stack."""
    modes = vm.session.modes.function_modes
    if modes[-1].python_type() is DeviceContext:
        func, _, args, kwargs = call
        named = dict(_named(kwargs))
        with _without_innermost(vm):
            if vm.as_python(func) in _makers() and _is_none(named.get("device")):
                named["device"] = vm.get_attr(vm.session.modes.function_mode_left, "device")
            return vm.call(func, list(vm.iterate(args)), named)
    answer = vm.get_attr(modes[-1], "__torch_function__")
    with _without_innermost(vm):
        result = vm.call(answer, call, {})
    if is_not_implemented(result):
        raise GraphBreakSignal("a torch function mode that answers NotImplemented")
    return result


def _holds_plain_tensor(args: Any) -> bool:
    return any(
        _holds_plain_tensor(arg.items)
        if isinstance(arg, (TupleValue, ListValue))
        else isinstance(arg, TensorValue) and arg.python_type() is torch.Tensor
        for arg in args
    )


def _named(kwargs: Value) -> Iterator[tuple[str, Value]]:
    if isinstance(kwargs, DictValue):
        for key, (_, value) in kwargs.entries.items():
            yield key, value


@contextmanager
def _without_innermost(vm: Interpreter) -> Iterator[None]:
    session = vm.session
    before = list(session.modes.function_modes)
    session.modes.function_mode_left = session.modes.function_modes.pop()
    try:
        yield
    finally:
        session.modes.function_modes[:] = before


def _is_none(value: Value | None) -> bool:
    return value is None or is_none(value)


def _given(recorder: Recorder, run: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """What a mode would be given, in fakes; None if it would not be asked."""
    fakes = [recorder.fake_of(arg) for arg in args]
    named = {name: recorder.fake_of(arg) for name, arg in kwargs.items()}
    try:
        with recorder.fake_mode, _Probe():
            run(*fakes, **named)
    except _Seen as seen:
        return seen.given
    except Exception:  # the operation itself says so when it is recorded
        return None
    return None


class _Values:
    """From what a mode is given back to values."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def of(self, real: Any) -> Value:
        """The value of an argument."""
        if isinstance(real, torch.Tensor):
            found: TensorValue | None = self.recorder.value_of(real)
            if found is None:
                raise GraphBreakSignal("a tensor made on the way to a torch function mode")
            return found
        if isinstance(real, (tuple, list)):
            items = [self.of(item) for item in real]
            return ListValue(items) if isinstance(real, list) else TupleValue(items, type(real))
        if isinstance(real, slice):
            return SliceValue(self.of(real.start), self.of(real.stop), self.of(real.step))
        if isinstance(real, dict):
            made = DictValue()
            made.entries = {key: (Constant(key), self.of(item)) for key, item in real.items()}
            return made
        return self.recorder.fold(real)


# --- the stack -----------------------------------------------------------------------------------


def _push(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    vm.session.modes.function_modes.append(args[0])
    return NONE


def _pop(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if not vm.session.modes.function_modes:
        raise GraphBreakSignal("the end of a torch function mode that was not entered")
    return vm.session.modes.function_modes.pop()


def _dispatch_count(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """Of dispatch modes none, which is guarded; with some, whoever asks is left to run plainly."""
    return PASS if _C._len_torch_dispatch_stack() else Constant(0)


def _at(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return vm.session.modes.function_modes[vm.as_python(args[0])]  # type: ignore[no-any-return]


def _enter_device(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.device.__enter__`: a `DeviceContext` on the stack, without its own `__enter__`."""
    vm.session.modes.function_modes.append(vm.call(vm.held(DeviceContext), [args[0]], {}))
    return args[0]


def _leave_device(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    _pop(vm, args, kwargs)
    return NONE


def _default_device(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    for mode in reversed(vm.session.modes.function_modes):
        if mode.python_type() is DeviceContext:
            device = vm.get_attr(mode, "device")
            known = vm.as_python(device)
            if known.index is None and known.type not in ("cpu", "meta"):
                raise GraphBreakSignal("the number of the default device")
            return device
    return PASS


HANDLERS: dict[Any, Handler] = {
    _C._push_on_torch_function_stack: _push,
    _C._pop_torch_function_stack: _pop,
    _C._len_torch_function_stack: lambda vm, args, kw: Constant(
        len(vm.session.modes.function_modes)
    ),
    _C._is_torch_function_mode_enabled: lambda vm, args, kw: boolean(
        bool(vm.session.modes.function_modes)
    ),
    _C._get_function_stack_at: _at,
    _C._len_torch_dispatch_stack: _dispatch_count,
    torch.device.__enter__: _enter_device,
    torch.device.__exit__: _leave_device,
    torch.get_default_device: _default_device,
}
