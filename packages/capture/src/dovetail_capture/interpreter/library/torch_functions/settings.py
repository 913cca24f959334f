"""Global settings of torch that a program reads, and changes while it runs, other than its modes:
the default dtype, which kernels attention may use (`torch.nn.attention.sdpa_kernel`), deterministic
algorithms, the number of threads, and flags of `torch.backends`.

A change is made for real, so that what is recorded next is recorded under it. If recording is where
it matters, it is a node of the graph, so that what traces the graph finds it, too; at its end the
graph puts a setting back, and what the program left changed is changed after it. A setting that
kernels obey is made before the graph runs, or after it (`torch_state.KernelSettings`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from dovetail_guards.torch_state import BACKEND_FLAGS, READERS

from dovetail_capture.environment.torch_state import Setting
from dovetail_capture.interpreter.library.standard_library.polyfills import interpreted
from dovetail_capture.interpreter.library.torch_functions.inner_graphs import InnerRecorder
from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Value, is_none

_C: Any = torch._C
_ATTENTION: Any = torch.nn.attention


def _kernels() -> Iterator[Setting]:
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable"):
        read = getattr(_C, f"_get_{name}_sdp_enabled", None)
        if read is not None:
            guard = "sdp_kernels" if name != "overrideable" else "sdp_order"
            yield Setting((guard,), read, getattr(_C, f"_set_sdp_use_{name}"))
    yield Setting(("sdp_order",), _C._get_sdp_priority_order, _C._set_sdp_priority_order)


# Flags of `torch.backends`. What those about TF32 change besides, no other write puts back.
_FLAGS = ("cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic", "mkldnn_enabled",
          "mkldnn_deterministic", "cublas_allow_fp16_accumulation")  # fmt: skip
_FLAGS_OF_TF32 = ("cudnn_allow_tf32", "cublas_allow_tf32")
_PRECISIONS = ("highest", "high", "medium")
_ABOUT_PRECISION = ("backend_flags", "float32_matmul_precision", "float32_precisions")


def _flags(names: tuple[str, ...], guards: tuple[str, ...], undone: bool) -> Iterator[Setting]:
    for name in names:
        write = getattr(_C, f"_set_{name}", None)
        if write is not None and f"_get_{name}" in BACKEND_FLAGS:
            yield Setting(guards, getattr(_C, f"_get_{name}"), write, True, undone=undone)


def _set_deterministic(value: tuple[bool, bool]) -> None:
    _C._set_deterministic_algorithms(value[0], warn_only=value[1])


def _use_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


_DETERMINISTIC = Setting(
    ("deterministic",), READERS["deterministic"], _set_deterministic, True, _use_deterministic
)
SETTINGS = (
    Setting(("default_dtype",), torch.get_default_dtype, _C._set_default_dtype),
    *_kernels(),
    Setting(("num_threads",), torch.get_num_threads, torch.set_num_threads, True),
    Setting(
        _ABOUT_PRECISION,
        _C._get_float32_matmul_precision,
        _C._set_float32_matmul_precision,
        True,
        undone=False,
    ),
    *_flags(_FLAGS, ("backend_flags", "cudnn"), True),
    *_flags(_FLAGS_OF_TF32, _ABOUT_PRECISION, False),
)


def _reading(
    read: Callable[..., Any], guards: tuple[str, ...], own: Setting | None = None
) -> Handler:
    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        given = [vm.as_python(arg) for arg in args]
        if UNKNOWN in given or kwargs:
            return PASS
        known = _not_made_for_real(vm, guards)
        if own is not None and list(known) == [own]:
            return vm.constant(known[own])
        for setting in known:
            raise GraphBreakSignal(f"{read.__name__} after {setting.name}, which may change it")
        _guard(vm, guards)
        try:
            return vm.constant(read(*given))
        except (RuntimeError, TypeError) as error:
            return vm.raise_real(error)

    return handler


def _guard(vm: Interpreter, names: tuple[str, ...]) -> None:
    for name in names:
        vm.session.guards.state(name, READERS[name]())


def _not_made_for_real(vm: Interpreter, guards: tuple[str, ...]) -> dict[Setting, Any]:
    """The changes of what these guards tell of that capture did not try, and what they are now."""
    now = vm.session.effects.kernel_settings.now().items()
    return {one: value for one, value in now if not one.undone and set(one.guards) & set(guards)}


def _writing(setting: Setting) -> Handler:
    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        (wanted,) = (vm.as_python(arg) for arg in args)
        if wanted is UNKNOWN:
            raise GraphBreakSignal(f"{setting.name} with {args[0].describe()}")
        return _write(vm, setting, wanted)

    return handler


def _writing_the_same(write: Callable[..., Any], read: Handler) -> Handler:
    """`write(*which, value)` of what `read(*which)` gives; no frame makes it another."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        wanted = [vm.as_python(arg) for arg in args]
        found = NONE if kwargs or not args else read(vm, args[:-1], {})
        if is_none(found) or vm.as_python(found) != wanted[-1]:
            raise GraphBreakSignal(f"a call of the C function {write.__name__}")
        return NONE

    return handler


def _write(vm: Interpreter, setting: Setting, wanted: Any) -> Value:
    _guard(vm, setting.guards)
    known = _not_made_for_real(vm, setting.guards)
    before = _read(setting)
    # (The precision says more than it seems: what is not said depends on others.)
    alone = not known and setting.write is not _C._set_float32_matmul_precision
    if wanted == before and (setting.undone or alone):
        return NONE
    if not setting.undone:
        if type(wanted) is not bool and wanted not in _PRECISIONS:
            raise GraphBreakSignal(f"{setting.name} of {wanted!r}")
        _write_for_kernels(vm, setting, wanted)
        return NONE
    if setting.obeyed_by_kernels:
        _check_place(vm, setting)
    try:
        setting.write(wanted)
    except (RuntimeError, TypeError, ValueError) as error:
        return vm.raise_real(error)
    vm.session.effects.change_setting(setting, before)
    if setting.obeyed_by_kernels:
        _write_for_kernels(vm, setting, wanted)
    else:
        vm.session.recorder.state_change(setting.write, wanted)
    return NONE


def _read(setting: Setting) -> Any:
    try:
        return setting.read()
    except RuntimeError:  # torch does not tell where old and new ways to set it were mixed
        return UNKNOWN


def _write_for_kernels(vm: Interpreter, setting: Setting, wanted: Any) -> None:
    """Let kernels after this obey: it is made before the graph, or after it, if operations are
    recorded already. Another operation then ends the graph before this."""
    _check_place(vm, setting)
    session = vm.session
    recorded = session.recorder.operations > 0
    session.effects.kernel_settings.write(setting, wanted, recorded)
    if recorded and session.recorder.closed is None:
        why = f"{setting.name} between operations of one graph"
        session.recorder.closed = why, vm.frames[0].steps


def _check_place(vm: Interpreter, setting: Setting) -> None:
    """Such a change is made before or after the graph: it must be the frame's own."""
    session = vm.session
    inner = isinstance(session.recorder, InnerRecorder) or session.recorder.checkpoint is not None
    if inner or session.modes.locks or session.modes.open_locks:
        raise GraphBreakSignal(
            f"{setting.name} within a function that is captured as a part of the graph",
            "call it outside of that function",
        )


# What is read of these settings by other functions, and the guard that tells of it.
_READ: dict[Any, str] = {
    torch.are_deterministic_algorithms_enabled: "deterministic",
    _C._get_deterministic_algorithms: "deterministic",
    _C._get_deterministic_algorithms_warn_only: "deterministic",
    torch.backends.cuda.flash_sdp_enabled: "sdp_kernels",
    torch.backends.cuda.mem_efficient_sdp_enabled: "sdp_kernels",
    torch.backends.cuda.math_sdp_enabled: "sdp_kernels",
    torch.backends.cuda.cudnn_sdp_enabled: "sdp_kernels",
    **{getattr(_C, name): "backend_flags" for name in BACKEND_FLAGS if hasattr(_C, name)},
}
# (read, write, guard) of what no frame changes, though it may write what is there.
_SAME: tuple[tuple[str, str, str], ...] = (
    ("_get_fp32_precision_getter", "_set_fp32_precision_setter", "float32_precisions"),
    ("_get_cudnn_depthwise_kernel", "_set_cudnn_depthwise_kernel", "backend_flags"),
    ("_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit", "backend_flags"),
)


def _of_the_same() -> Iterator[tuple[Any, Handler]]:
    for read, write, guard in _SAME:
        if hasattr(_C, read):
            reading = _reading(getattr(_C, read), (guard,))
            yield getattr(_C, read), reading
            yield getattr(_C, write), _writing_the_same(getattr(_C, write), reading)


_USE_DETERMINISTIC = inspect.signature(torch.use_deterministic_algorithms)


def _use_deterministic_algorithms(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    try:
        bound = _USE_DETERMINISTIC.bind(*args, **kwargs)
    except TypeError:
        return PASS  # torch's own raises
    given = {name: vm.as_python(value) for name, value in bound.arguments.items()}
    if any(type(value) is not bool for value in given.values()):
        return PASS
    return _write(vm, _DETERMINISTIC, (given["mode"], given.get("warn_only", False)))


# --- attention -----------------------------------------------------------------------------------


def sdpa_kernel(backends: Any, set_priority: bool = False) -> Iterator[dict[str, Any]]:
    # What torch's own does, but for a note of its own that the order of kernels was set, in a
    # ContextVar: who reads that breaks the graph, which goes back to before this block.
    chosen = backends if isinstance(backends, list) else [backends]
    before = _ATTENTION._cur_sdpa_kernel_backends(with_priority=set_priority)
    try:
        _ATTENTION._sdpa_kernel(list(dict.fromkeys(chosen)), set_priority)
        yield {}
    finally:
        _ATTENTION._sdpa_kernel(before, set_priority)


def _sdpa_kernel(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    backends = args[0] if args else kwargs.get("backends")
    if backends is None or not issubclass(
        backends.python_type(), (list, torch.nn.attention.SDPBackend)
    ):
        return PASS  # torch's own raises
    return interpreted(sdpa_kernel)(vm, args, kwargs)


HANDLERS: dict[Any, Handler] = {
    **{read: _reading(read, (guard,)) for read, guard in _READ.items()},
    **dict(_of_the_same()),
    **{setting.read: _reading(setting.read, setting.guards, setting) for setting in SETTINGS},
    **{setting.write: _writing(setting) for setting in SETTINGS},
    torch.use_deterministic_algorithms: _use_deterministic_algorithms,
    inspect.unwrap(torch.nn.attention.sdpa_kernel): _sdpa_kernel,
}
