"""Modes of torch that a program reads and sets: gradients, inference mode, autocast."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from dovetail_guards.torch_state import AUTOCAST_DEVICES, READERS, autocast_dtype

from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import dicts
from dovetail_capture.interpreter.session.ledgers import OpenMode
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, boolean, is_none
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue

_C: Any = torch._C


def _note_grad_mode(vm: Interpreter) -> None:
    """The program asks for the mode of gradients, or sets it."""
    if vm.session.late_reads.watch is not None:
        vm.session.late_reads.watch.asks_grad_mode = True


def is_grad_enabled(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.is_grad_enabled()`: guarded for every captured frame."""
    _note_grad_mode(vm)
    return boolean(torch.is_grad_enabled())


def set_grad_enabled(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch._C._set_grad_enabled`: recorded, and in force for what is recorded after it."""
    _note_grad_mode(vm)
    mode = vm.as_python(args[0] if args else kwargs["mode"])
    if type(mode) is not bool:
        return PASS  # torch's own raises
    if mode and vm.session.recorder.inference:
        raise GraphBreakSignal("gradients that are enabled in a block of inference mode")
    if mode != torch.is_grad_enabled():
        _C._set_grad_enabled(mode)
        vm.session.recorder.state_change(_C._set_grad_enabled, mode)
    return NONE


def autocast_enter(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.autocast.__enter__`."""
    manager = args[0]
    assert isinstance(manager, ObjectValue)
    names = ("device", "fast_dtype", "_enabled", "_cache_enabled")
    parts = tuple(vm.as_python(vm.get_attr(manager, name)) for name in names)
    modes = torch.amp.autocast_mode
    _enter_mode(vm, manager, modes._enter_autocast, modes._exit_autocast, parts)
    return manager


def inference_enter(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.inference_mode.__enter__`: in a graph, operations without gradient."""
    manager = args[0]
    assert isinstance(manager, ObjectValue)
    _note_grad_mode(vm)
    wanted, before = vm.truth(vm.get_attr(manager, "mode")), torch.is_grad_enabled()
    around = torch.is_inference_mode_enabled()
    if around and not wanted:  # the graph would run in the mode
        raise GraphBreakSignal("a block without inference mode, called in inference mode")
    vm.session.recorder.state_change(_C._set_grad_enabled, not wanted)
    _C._set_grad_enabled(not wanted)
    mode = OpenMode(_C._set_grad_enabled, before, before, manager, inference=wanted)
    vm.session.modes.open_modes.append(mode)
    vm.session.recorder.inference = wanted and not around
    return NONE


def is_inference(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`tensor.is_inference()`: known of what the frame makes outside of the mode's own frames."""
    tensor = args[0]
    known = isinstance(tensor, TensorValue) and tensor.source is None
    if not known or torch.is_inference_mode_enabled():
        raise GraphBreakSignal("whether a tensor was made in inference mode")
    assert isinstance(tensor, TensorValue)
    return boolean(tensor.inference)


def inference_enabled(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.is_inference_mode_enabled()`."""
    inside = [m.inference for m in vm.session.modes.open_modes if m.inference is not None]
    return boolean(inside[-1] if inside else torch.is_inference_mode_enabled())


def _enter_mode(vm: Interpreter, manager: Value, enter: Any, leave: Any, parts: Any) -> None:
    node = vm.session.recorder.state_change(enter, *parts)
    vm.session.modes.open_modes.append(OpenMode(leave, enter(*parts), node, manager))


def mode_exit(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`__exit__` of `torch.autocast` and `torch.inference_mode`."""
    if not vm.session.modes.open_modes:
        raise GraphBreakSignal("the end of a block that was entered before the graph")
    mode = vm.session.modes.open_modes.pop()
    vm.session.recorder.state_change(mode.leave, mode.node)
    mode.leave(mode.real)
    if not torch.is_inference_mode_enabled():
        vm.session.recorder.inference = vm.truth(inference_enabled(vm, [], {}))
    return boolean(False)


_AUTOCAST = inspect.signature(torch.autocast.__init__)


def autocast_init(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.autocast(...)`: made for real (it only reads torch's state), fields copied."""
    manager = args[0]
    assert isinstance(manager, ObjectValue)
    try:
        given = _AUTOCAST.bind(*args, **kwargs).arguments
    except TypeError:
        return PASS  # torch's own raises
    device = vm.as_python(given["device_type"])
    if "dtype" not in given or is_none(given["dtype"]):
        _note_autocast_dtype(vm, device)
    if "cache_enabled" not in given or is_none(given["cache_enabled"]):
        _note_autocast_cache(vm)
    real_args = [vm.as_python(arg) for arg in args[1:]]
    real = torch.autocast(*real_args, **{k: vm.as_python(v) for k, v in kwargs.items()})
    for name, item in vars(real).items():
        dicts.put(vm, manager.fields, Constant(name), vm.constant(item))
    return NONE


def _note_autocast_dtype(vm: Interpreter, device: Any) -> None:
    """Guard which dtype autocast has on a type of device, unless a block of the frame set it."""
    set_here = [mode.manager for mode in vm.session.modes.open_modes if mode.inference is None]
    if device not in AUTOCAST_DEVICES:
        return  # torch's own raises
    if all(vm.as_python(vm.get_attr(block, "device")) != device for block in set_here):
        name = autocast_dtype(device)
        vm.session.guards.state(name, READERS[name]())


def _note_autocast_cache(vm: Interpreter) -> None:
    """Guard whether autocast keeps what it cast, unless a block of the frame said it."""
    if all(mode.inference is not None for mode in vm.session.modes.open_modes):
        vm.session.guards.state("autocast_cache", torch.is_autocast_cache_enabled())


def autocast_dtype_of(fn: Callable[..., Any], device: str | None = None) -> Handler:
    """A function that tells autocast's dtype, of the type of device that it is given if none is."""

    def run(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        given = [vm.as_python(arg) for arg in (*args, *kwargs.values())]
        _note_autocast_dtype(vm, device if device is not None else given[0] if given else None)
        return vm.fold(fn, args, kwargs)

    return run


def autocast_cache_enabled(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.is_autocast_cache_enabled()`."""
    _note_autocast_cache(vm)
    return vm.fold(torch.is_autocast_cache_enabled, args, kwargs)


HANDLERS: dict[Any, Handler] = {
    torch.is_grad_enabled: is_grad_enabled,
    _C._set_grad_enabled: set_grad_enabled,
    torch.autocast.__init__: autocast_init,
    torch.get_autocast_dtype: autocast_dtype_of(torch.get_autocast_dtype),
    torch.get_autocast_cpu_dtype: autocast_dtype_of(torch.get_autocast_cpu_dtype, "cpu"),
    torch.get_autocast_gpu_dtype: autocast_dtype_of(torch.get_autocast_gpu_dtype, "cuda"),
    torch.is_autocast_cache_enabled: autocast_cache_enabled,
    torch.autocast.__enter__: autocast_enter,
    torch.autocast.__exit__: mode_exit,
    torch.inference_mode.__enter__: inference_enter,
    torch.inference_mode.__exit__: mode_exit,
    torch.is_inference_mode_enabled: inference_enabled,
    torch.Tensor.is_inference: is_inference,
    torch.is_inference: is_inference,
}
