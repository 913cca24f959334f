"""Functions of torch that are folded or refused, and calls of modules."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from dovetail_guards import clauses as c
from dovetail_guards.torch_state import READERS

from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols import dicts, inlining, object_attributes
from dovetail_capture.interpreter.protocols.class_attributes import class_lookup
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, boolean, is_none
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue
from dovetail_capture.interpreter.values.functions import NativeMethod
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue

_C: Any = torch._C

_UNSUPPORTED: dict[Any, str] = {
    torch.manual_seed: "torch.manual_seed changes torch's global state",
    torch.seed: "torch.seed changes torch's global state",
    torch.save: "torch.save writes a file",
    torch.load: "torch.load reads a file",
    **{  # since 2.13
        getattr(_C, name): "torch.overrides.redispatch_function"
        for name in ("_skip_one_hop_torch_function",)
        if hasattr(_C, name)
    },
}


# --- nn.Module calls -----------------------------------------------------------------------------

_module_globals = torch.nn.modules.module.__dict__
_GLOBAL_HOOKS = (
    "_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_hooks",
    "_global_forward_pre_hooks",
)  # fmt: skip
_MODULE_HOOKS = (
    "_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks",
)  # fmt: skip
_CALL_IMPL: Any = torch.nn.Module._call_impl
_WRAPPED_CALL_IMPL: Any = torch.nn.Module._wrapped_call_impl


def module_call(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`nn.Module.__call__`: straight to `forward` when a guard says there are no hooks."""
    module = args[0]
    if not isinstance(module, ObjectValue):
        return PASS
    own = class_lookup(vm, module.cls, "_call_impl")[1] is not _CALL_IMPL
    if own or dicts.contains(vm, module.fields, "_call_impl"):
        return inlining.inline(vm, _WRAPPED_CALL_IMPL, args, kwargs)
    if not vm.session.guards.global_hooks:
        sources = vm.session.sources
        base = sources.held(_module_globals, "module torch.nn.modules.module")
        for name in _GLOBAL_HOOKS:
            hooks = vm.wrap(_module_globals[name], sources.item(base, name))
            if not isinstance(hooks, DictValue) or dicts.length(vm, hooks):
                return inlining.inline(vm, _CALL_IMPL, args, kwargs)
        vm.session.guards.global_hooks = True
    fields, session = module.fields, vm.session
    for name in _MODULE_HOOKS:
        real = None if fields.origin is None else fields.origin.get(name)
        if (
            real is not None
            and name not in fields.entries
            and id(real) not in session.objects.known
        ):
            if module.source is not None and not real:
                source = session.sources.instance_attr(module.source, name)
                session.guards.add(c.LengthIs, source, 0)
                continue
        found = object_attributes.generic_lookup(vm, module, name)
        if not isinstance(found, DictValue) or dicts.length(vm, found):
            if "backward" in name:
                if not torch.is_grad_enabled():
                    continue  # nothing is differentiated
                raise GraphBreakSignal(
                    f"a call of a {module.cls.__name__} with backward hooks, which are Python's",
                    "register them on modules that are called outside of the compiled function",
                )
            return inlining.inline(vm, _CALL_IMPL, args, kwargs)
    return vm.call(vm.get_attr(module, "forward"), args[1:], kwargs)


# --- answers that do not depend on the program ---------------------------------------------------


def always(answer: Any) -> Handler:
    """A function with one answer while capturing."""
    value = Constant(answer)
    return lambda vm, args, kwargs: value


def is_compiling(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """Whether the program is compiled: yes, unless it raises for that answer alone."""
    vm.session.asked_compiling = True
    return Constant(vm.session.compiling)


def is_exporting(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """Whether the program is exported."""
    return Constant(vm.session.exports)


def folded(fn: Callable[..., Any]) -> Handler:
    """Run at capture; the settings it reads are guarded: most of them for every captured frame."""
    setting = _SETTINGS.get(fn)

    def run(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if setting is not None:
            vm.session.guards.state(setting, READERS[setting]())
        return vm.fold(fn, args, kwargs)

    return run


def recurrent_layers(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.lstm` and its like: whether they are cuDNN's is decided when they are recorded."""
    vm.session.guards.state("cudnn", READERS["cudnn"]())
    return PASS


def of_gpu(fn: Callable[..., Any]) -> Handler:
    """A fact of a GPU, run at capture. Which GPU is the current one is not guarded: that matters
    where there are several."""

    def run(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        given = [vm.as_python(arg) for arg in args]
        by_name = {name: vm.as_python(arg) for name, arg in kwargs.items()}
        if UNKNOWN in given or UNKNOWN in by_name.values():
            raise GraphBreakSignal(f"{fn.__name__} of a device that is not known")
        device = by_name.get("device", given[0] if given else None)
        if isinstance(device, str):
            device = torch.device(device)
        named = type(device) is int or getattr(device, "index", None) is not None
        if not named and torch.cuda.device_count() > 1:
            raise GraphBreakSignal(
                f"{fn.__name__} of the current device, of several", "name the device"
            )
        try:
            return vm.held(fn(*given, **by_name))
        except Exception as error:
            return vm.raise_real(error)

    return run


def refused(reason: str) -> Handler:
    """A call that breaks the graph."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        raise GraphBreakSignal(reason)

    return handler


def is_tensor(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return boolean(issubclass(args[0].python_type(), torch.Tensor))


def size_class(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return TupleValue(vm.iterate(args[0]) if args else [], torch.Size)


def descriptor_get(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.Tensor.shape.__get__(tensor)`."""
    if len(args) > 1 and isinstance(args[0], Constant) and isinstance(args[1], TensorValue):
        return vm.get_attr(args[1], args[0].value.__name__)
    return PASS


def method_get(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`object.__setattr__.__get__(obj)`."""
    method = vm.as_python(args[0])
    if len(args) != 2 or is_none(args[1]) or method is UNKNOWN:
        return PASS
    if not issubclass(args[1].python_type(), method.__objclass__):
        return PASS
    return NativeMethod(method, args[1], method.__name__)


@functools.cache
def _capabilities() -> Any:
    return torch.cpu.get_capabilities()


def cpu_capabilities(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.cpu.get_capabilities()`, which stays as it is."""
    return vm.held(_capabilities())


_FOLDED: tuple[Any, ...] = (
    torch.is_autocast_enabled, _C._is_any_autocast_enabled,
    torch.promote_types, torch.can_cast, torch.finfo, torch.iinfo,
    torch.get_default_device, torch.cuda.is_available, torch.cuda.device_count,
    torch.backends.mps.is_available, torch.backends.cuda.is_built,
    torch.is_autocast_cpu_enabled, torch.amp.is_autocast_available,
    torch.cuda.is_current_stream_capturing,
    torch.is_anomaly_enabled, torch.is_anomaly_check_nan_enabled,
    torch._C._get_privateuse1_backend_name,
    threading.get_ident,
)  # fmt: skip

# (Older versions of torch have none.)
_CAPABILITIES: Any = getattr(torch.cpu, "get_capabilities", None)
_ABOUT_CPU = [f for f in (_CAPABILITIES, getattr(_CAPABILITIES, "__wrapped__", None)) if f]

_OF_GPU = (
    torch.cuda.get_device_capability, torch.cuda.get_device_name, torch.cuda.current_device,
    torch.cuda.get_device_properties, torch.cuda.is_bf16_supported,
)  # fmt: skip

# What those read that is not guarded for every captured frame.
_SETTINGS: dict[Any, str] = {
    threading.get_ident: "thread",
    torch.cuda.is_current_stream_capturing: "stream_capturing",
    torch.is_anomaly_enabled: "anomaly_mode",
    torch.is_anomaly_check_nan_enabled: "anomaly_mode",
}

HANDLERS: dict[Any, Handler] = {
    torch.nn.Module.__call__: module_call,
    torch.nn.Module._wrapped_call_impl: module_call,
    torch.is_tensor: is_tensor,
    torch.Size: size_class,
    types.GetSetDescriptorType.__get__: descriptor_get,
    types.MethodDescriptorType.__get__: method_get,
    types.WrapperDescriptorType.__get__: method_get,
    torch.compiler.is_compiling: is_compiling,
    torch.compiler.is_dynamo_compiling: is_compiling,
    torch.compiler.is_exporting: is_exporting,
    # Marks for another compiler's recorded graphs, which count them: ours need none.
    torch.compiler.cudagraph_mark_step_begin: always(None),
    **{
        getattr(torch.compiler, name): always(None)
        for name in ("cudagraph_mark_warmup_incomplete",)
        if hasattr(torch.compiler, name)  # since 2.14
    },
    **{getattr(torch.jit, name): always(False) for name in ("is_scripting", "is_tracing")},
    torch._jit_internal.is_scripting: always(False),
    **dict.fromkeys(_ABOUT_CPU, cpu_capabilities),
    _C._get_tracing_state: always(None),
    _C._is_tracing: always(False),
    _C._log_api_usage_once: always(None),
    torch._assert: lambda vm, args, kwargs: _torch_assert(vm, args),
    **{fn: folded(fn) for fn in _FOLDED},
    **{fn: of_gpu(fn) for fn in _OF_GPU},
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), recurrent_layers),
    **{fn: refused(reason) for fn, reason in _UNSUPPORTED.items()},
}


def _torch_assert(vm: Interpreter, args: Args) -> Value:
    """`torch._assert(condition, message)`; a tensor is checked at the graph's end."""
    if vm.check_later((args[0], True)):
        return NONE
    if not vm.truth(args[0]):
        vm.raise_exception(AssertionError, args[1:])
    return NONE


PURE_CLASSES: frozenset[type] = frozenset({torch.device, torch.finfo, torch.iinfo})
PURE_TYPES: tuple[type, ...] = (torch.dtype, torch.device, torch.finfo, torch.iinfo, torch.Size)
