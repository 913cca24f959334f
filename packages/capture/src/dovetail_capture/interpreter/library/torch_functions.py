"""torch: which functions become graph nodes, which are folded, which change torch's state."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from dovetail_guards import clauses as c
from dovetail_guards.torch_state import BACKEND_FLAGS, READERS

from dovetail_capture.interpreter.library.handlers import PASS, Args, Handler, Kwargs
from dovetail_capture.interpreter.protocols import (
    class_attributes,
    dicts,
    inlining,
    object_attributes,
)
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.session import OpenMode
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, boolean
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

_C: Any = torch._C

# --- which functions are operations --------------------------------------------------------------

# Python functions of these modules are recorded whole when all their arguments can be.
_PYTHON_OPERATION_MODULES = frozenset(
    {
        "torch.nn.functional",
        "torch.functional",
        "torch._tensor",
        "torch.nn.init",
        "torch.masked._ops",
    }
)
_NOT_OPERATIONS: set[Any] = {
    torch.Tensor.__iter__, torch.Tensor.__len__, torch.Tensor.__contains__,
    torch.Tensor.__format__, torch.Tensor.__repr__, torch.Tensor.__reduce_ex__,
    torch.Tensor.__deepcopy__, torch.Tensor.__hash__, torch.Tensor.backward,
    torch.Tensor.register_hook, torch.Tensor.share_memory_, torch.Tensor.__setstate__,
    torch.Tensor.__torch_function__.__func__,  # type: ignore[attr-defined]
}  # fmt: skip
_C_OWNERS = (
    _C._VariableFunctions, _C._nn, _C._special, _C._linalg, _C._fft, _C._sparse, _C._nested,
)  # fmt: skip
_C_MODULES = frozenset(
    {"torch", "torch._C", "torch._C._nn", "torch._C._VariableFunctions", "torch._C._special",
     "torch._C._linalg", "torch._C._fft"}
)  # fmt: skip
_UNSUPPORTED: dict[Any, str] = {
    torch.manual_seed: "torch.manual_seed changes torch's global state",
    torch.seed: "torch.seed changes torch's global state",
    torch.save: "torch.save writes a file",
    torch.load: "torch.load reads a file",
}
_OPERATIONS: dict[int, Any] = {}  # those met so far; what is none of torch's is not held


def is_operation(fn: Any) -> bool:
    """Is `fn` a torch function over tensors, to be recorded as a node?"""
    if _OPERATIONS.get(id(fn)) is fn:
        return True
    found = _decide(fn)
    if found and type(fn) is not types.MethodType:
        _OPERATIONS[id(fn)] = fn
    return found


def _decide(fn: Any) -> bool:
    if isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    if isinstance(fn, types.FunctionType):
        if fn.__module__ not in _PYTHON_OPERATION_MODULES or fn in _NOT_OPERATIONS:
            return False
        return not fn.__name__.startswith("_") or fn.__module__ == "torch._tensor"
    if isinstance(fn, types.BuiltinFunctionType):
        owner = getattr(fn, "__self__", None)
        if isinstance(owner, type):
            return owner.__name__ == "_VariableFunctionsClass"
        if any(owner is module for module in _C_OWNERS):
            return True
        module = getattr(fn, "__module__", None)
        if module is None:  # functions of torch._C's submodules carry no module
            name = fn.__name__
            return any(getattr(owner, name, None) is fn for owner in _C_OWNERS)
        return module in _C_MODULES and module != "torch._C"
    if isinstance(fn, class_attributes.C_METHODS):
        return issubclass(fn.__objclass__, _C.TensorBase) and fn not in _NOT_OPERATIONS
    return False


# --- tensor attributes ---------------------------------------------------------------------------

_TENSOR_VALUED = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})


def tensor_property(vm: Interpreter, obj: TensorValue, name: str) -> Value:
    """A C attribute of a tensor."""
    if name == "grad":
        if obj.source is None:
            return NONE
        if obj.overrides:
            raise GraphBreakSignal("the gradient of a tensor with a `__torch_function__`")
        source = vm.session.sources.attr(obj.source, "grad")
        return vm.wrap(obj.real.grad, source)
    if name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        from dovetail_capture.interpreter.library.differentiation import hooks_of

        return hooks_of(vm, obj, name)
    if name in ("grad_fn", "output_nr", "_version", "_base", "_cdata"):
        if name == "grad_fn" and not obj.fake.requires_grad:
            return NONE
        raise GraphBreakSignal(f"the tensor attribute `{name}`")
    if name in ("is_leaf", "retains_grad") and obj.source is not None:
        return _told_by_autograd(vm, obj, name)
    if name == "shape":
        return TupleValue([vm.constant(size) for size in obj.sizes], torch.Size)
    recorder = vm.session.recorder
    if name in _TENSOR_VALUED:
        return recorder.record(
            "call_function", getattr, [obj, Constant(name)], {}, lambda t, n: getattr(t, n)
        )
    try:
        with recorder.fake_mode:
            found = getattr(obj.fake, name)
    except AttributeError:  # a real tensor may have it
        raise GraphBreakSignal(f"the tensor attribute `{name}`") from None
    if isinstance(found, torch.Tensor):
        return recorder.record(
            "call_function", getattr, [obj, Constant(name)], {}, lambda t, n: getattr(t, n)
        )
    return recorder.fold(found)


def _told_by_autograd(vm: Interpreter, obj: TensorValue, name: str) -> Value:
    """What autograd knows of an input, with a guard; not once the frame has changed that."""
    if obj.fake.grad_fn is not None or obj.fake.requires_grad is not obj.real.requires_grad:
        raise GraphBreakSignal(f"`{name}` of an input whose history changed")
    assert obj.source is not None
    return vm.wrap(getattr(obj.real, name), vm.session.sources.attr(obj.source, name))


def tensor_len(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    from dovetail_capture.interpreter.library.own_functions import ask_about
    from dovetail_capture.interpreter.protocols.truth_and_length import length

    own = ask_about(vm, torch.Tensor.__len__, args)
    if own is not None:
        return own
    return vm.constant(length(vm, args[0]))


def tensor_size(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.size()` and `x.size(dim)`."""
    obj = args[0]
    if not isinstance(obj, TensorValue):
        return PASS  # type: ignore[no-any-return]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", NONE)
    shape = tuple(obj.sizes)
    if not isinstance(dim, Constant):
        return PASS  # type: ignore[no-any-return]
    if dim.value is None:
        return TupleValue([vm.constant(size) for size in shape], torch.Size)
    if not -len(shape) <= dim.value < len(shape):
        vm.raise_error(IndexError, "Dimension out of range")
    return vm.constant(shape[dim.value])


def tensor_storage_offset(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.storage_offset()`: where an input begins in its storage is not guarded, so that pieces of
    one tensor share a graph."""
    obj = args[0]
    if isinstance(obj, TensorValue):
        inputs = [value for _, value in vm.session.inputs if isinstance(value, TensorValue)]
        if any(obj.fake._storage is value.fake._storage for value in inputs):
            raise GraphBreakSignal("storage_offset() of an input or of a view of one")
    return PASS  # type: ignore[no-any-return]


def tensor_of_storage(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x._is_view()` and `x.untyped_storage()`: nothing of that is guarded of an input."""
    obj = args[0]
    if isinstance(obj, TensorValue):
        inputs = [value for _, value in vm.session.inputs if isinstance(value, TensorValue)]
        if obj.source is not None or any(obj.fake._storage is v.fake._storage for v in inputs):
            raise GraphBreakSignal("a question about the storage of an input or of a view of one")
    return PASS  # type: ignore[no-any-return]


def tensor_new(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`x.new(sizes)`: a graph's text has tuples for sizes, and in these `new` sees data."""
    if len(args) == 2 and isinstance(args[1], TupleValue) and args[1].cls is torch.Size:
        return vm.call(Constant(torch.Tensor.new_empty), args, kwargs)
    return PASS  # type: ignore[no-any-return]


def tensor_iter(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return vm.get_iter(args[0])


def tensor_hash(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    raise GraphBreakSignal("hash of a tensor")


def tensor_requires_grad_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    obj = args[0]
    assert isinstance(obj, TensorValue)
    given = args[1:] or list(kwargs.values())
    wanted = vm.truth(given[0]) if given else True
    if obj.fake.requires_grad == wanted:
        return obj
    if not wanted or obj.source is not None or not obj.fake.dtype.is_floating_point:
        raise GraphBreakSignal("requires_grad_() that changes a tensor")
    # A tensor made in the frame becomes a leaf. The graph's outputs are no leaves: it must not
    # leave the frame.
    vm.session.made_leaves[id(obj)] = vm.frames[0].steps
    return vm.record("call_method", "requires_grad_", [obj], {})


# --- torch's state -------------------------------------------------------------------------------


def set_grad_enabled(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch._C._set_grad_enabled`: recorded, and in force for what is recorded after it."""
    mode = vm.truth(args[0] if args else kwargs["mode"])
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
    wanted, before = vm.truth(vm.get_attr(manager, "mode")), torch.is_grad_enabled()
    vm.session.recorder.state_change(_C._set_grad_enabled, not wanted)
    _C._set_grad_enabled(not wanted)
    mode = OpenMode(_C._set_grad_enabled, before, before, manager, inference=wanted)
    vm.session.open_modes.append(mode)
    vm.session.recorder.inference = wanted
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
    inside = [m.inference for m in vm.session.open_modes if m.inference is not None]
    return boolean(inside[-1] if inside else torch.is_inference_mode_enabled())


def _enter_mode(vm: Interpreter, manager: Value, enter: Any, leave: Any, parts: Any) -> None:
    node = vm.session.recorder.state_change(enter, *parts)
    vm.session.open_modes.append(OpenMode(leave, enter(*parts), node, manager))


def mode_exit(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`__exit__` of `torch.autocast` and `torch.inference_mode`."""
    if not vm.session.open_modes:
        raise GraphBreakSignal("the end of a block that was entered before the graph")
    mode = vm.session.open_modes.pop()
    vm.session.recorder.state_change(mode.leave, mode.node)
    mode.leave(mode.real)
    vm.session.recorder.inference = vm.truth(inference_enabled(vm, [], {}))
    return boolean(False)


def autocast_init(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.autocast(...)`: made for real (it only reads torch's state), fields copied."""
    manager = args[0]
    assert isinstance(manager, ObjectValue)
    real_args = [vm.as_python(arg) for arg in args[1:]]
    real = torch.autocast(*real_args, **{k: vm.as_python(v) for k, v in kwargs.items()})
    for name, item in vars(real).items():
        dicts.put(vm, manager.fields, Constant(name), vm.constant(item))
    return NONE


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


def module_call(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`nn.Module.__call__`: straight to `forward` when a guard says there are no hooks."""
    module = args[0]
    if not isinstance(module, ObjectValue):
        return PASS  # type: ignore[no-any-return]
    if not vm.session.global_hooks_guarded:
        sources = vm.session.sources
        base = sources.held(_module_globals, "module torch.nn.modules.module")
        for name in _GLOBAL_HOOKS:
            hooks = vm.wrap(_module_globals[name], sources.item(base, name))
            if not isinstance(hooks, DictValue) or dicts.length(vm, hooks):
                return inlining.inline(vm, _CALL_IMPL, args, kwargs)
        vm.session.global_hooks_guarded = True
    fields, session = module.fields, vm.session
    for name in _MODULE_HOOKS:
        real = None if fields.origin is None else fields.origin.get(name)
        if real is not None and name not in fields.entries and id(real) not in session.known:
            if module.source is not None and not real:
                source = session.sources.instance_attr(module.source, name)
                session.guard(c.LengthIs, source, 0)
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


def folded(fn: Callable[..., Any]) -> Handler:
    """Run at capture; the settings it reads are guarded: most of them for every captured frame."""
    setting = _SETTINGS.get(fn)

    def run(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if setting is not None:
            vm.session.guard_state(setting, READERS[setting]())
        return vm.fold(fn, args, kwargs)

    return run


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
    return boolean(isinstance(args[0], TensorValue))


def size_class(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return TupleValue(vm.iterate(args[0]) if args else [], torch.Size)


def descriptor_get(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.Tensor.shape.__get__(tensor)`."""
    if len(args) > 1 and isinstance(args[0], Constant) and isinstance(args[1], TensorValue):
        return vm.get_attr(args[1], args[0].value.__name__)
    return PASS  # type: ignore[no-any-return]


_FOLDED: tuple[Any, ...] = (
    torch.is_grad_enabled,
    torch.is_autocast_enabled, torch.get_autocast_dtype, torch.is_autocast_cache_enabled,
    _C._is_any_autocast_enabled,
    torch.promote_types, torch.can_cast, torch.finfo, torch.iinfo,
    torch.get_default_device, torch.cuda.is_available, torch.cuda.device_count,
    torch.backends.mps.is_available, torch.backends.cuda.is_built, torch.get_autocast_cpu_dtype,
    torch.get_autocast_gpu_dtype, torch.is_autocast_cpu_enabled, torch.amp.is_autocast_available,
    torch.are_deterministic_algorithms_enabled, torch.get_num_threads,
    torch.cuda.is_current_stream_capturing,
    torch.get_float32_matmul_precision, torch._C._get_privateuse1_backend_name,
    threading.get_ident,
    torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.mem_efficient_sdp_enabled,
    torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.cudnn_sdp_enabled,
    *(getattr(_C, name) for name in BACKEND_FLAGS),
)  # fmt: skip

_OF_GPU = (
    torch.cuda.get_device_capability, torch.cuda.get_device_name, torch.cuda.current_device,
    torch.cuda.get_device_properties, torch.cuda.is_bf16_supported,
)  # fmt: skip

# What those read that is not guarded for every captured frame.
_SETTINGS: dict[Any, str] = {
    threading.get_ident: "thread",
    torch.get_num_threads: "num_threads",
    torch.cuda.is_current_stream_capturing: "stream_capturing",
    torch.get_float32_matmul_precision: "float32_matmul_precision",
    torch.backends.cuda.flash_sdp_enabled: "sdp_kernels",
    torch.backends.cuda.mem_efficient_sdp_enabled: "sdp_kernels",
    torch.backends.cuda.math_sdp_enabled: "sdp_kernels",
    torch.backends.cuda.cudnn_sdp_enabled: "sdp_kernels",
    **{getattr(_C, name): "backend_flags" for name in BACKEND_FLAGS},
}

HANDLERS: dict[Any, Handler] = {
    torch.nn.Module.__call__: module_call,
    torch.nn.Module._wrapped_call_impl: module_call,
    _C._set_grad_enabled: set_grad_enabled,
    torch.autocast.__init__: autocast_init,
    torch.autocast.__enter__: autocast_enter,
    torch.autocast.__exit__: mode_exit,
    torch.inference_mode.__enter__: inference_enter,
    torch.inference_mode.__exit__: mode_exit,
    torch.is_inference_mode_enabled: inference_enabled,
    torch.Tensor.is_inference: is_inference,
    torch.is_inference: is_inference,
    torch.is_tensor: is_tensor,
    torch.Size: size_class,
    types.GetSetDescriptorType.__get__: descriptor_get,
    torch.Tensor.__len__: tensor_len,
    torch.Tensor.__iter__: tensor_iter,
    torch.Tensor.__hash__: tensor_hash,
    torch.Tensor.size: tensor_size,
    torch.Tensor.storage_offset: tensor_storage_offset,
    torch.Tensor._is_view: tensor_of_storage,
    torch.Tensor.untyped_storage: tensor_of_storage,
    torch.Tensor.is_shared: tensor_of_storage,
    torch.Tensor.new: tensor_new,
    torch.Tensor.requires_grad_: tensor_requires_grad_,
    torch.compiler.is_compiling: is_compiling,
    torch.compiler.is_dynamo_compiling: is_compiling,
    torch.compiler.is_exporting: always(False),
    **{getattr(torch.jit, name): always(False) for name in ("is_scripting", "is_tracing")},
    torch._jit_internal.is_scripting: always(False),
    _C._get_tracing_state: always(None),
    _C._is_tracing: always(False),
    _C._log_api_usage_once: always(None),
    torch._assert: lambda vm, args, kwargs: _torch_assert(vm, args),
    **{fn: folded(fn) for fn in _FOLDED},
    **{fn: of_gpu(fn) for fn in _OF_GPU},
    **{fn: refused(reason) for fn, reason in _UNSUPPORTED.items()},
}


def _torch_assert(vm: Interpreter, args: Args) -> Value:
    """`torch._assert(condition, message)`; a tensor is checked at the graph's end."""
    if vm.check_later(args[0], True):
        return NONE
    if not vm.truth(args[0]):
        vm.raise_exception(AssertionError, args[1:])
    return NONE


PURE_CLASSES: frozenset[type] = frozenset({torch.device, torch.finfo, torch.iinfo})
PURE_TYPES: tuple[type, ...] = (torch.dtype, torch.device, torch.finfo, torch.iinfo, torch.Size)
