"""Global settings of torch that a program changes while it runs, other than its modes: the default
dtype, and which kernels attention may use (`torch.nn.attention.sdpa_kernel`).

A change is made for real, so that what is recorded next is recorded under it, and is a node of the
graph, so that the graph's operations run under it, too. At its end the graph puts a setting back,
and what the program left changed is changed after it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from dovetail_guards.torch_state import READERS

from dovetail_capture.interpreter.library.handlers import PASS, Args, Handler, Kwargs
from dovetail_capture.interpreter.library.polyfills import interpreted
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Value

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

_C: Any = torch._C
_ATTENTION: Any = torch.nn.attention


@dataclass(frozen=True)
class Setting:
    """One of torch's settings; `guard` names the reader of `torch_state` that tells of it."""

    guard: str
    read: Callable[[], Any]
    write: Callable[[Any], None]


def _kernels() -> Iterator[Setting]:
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable"):
        read = getattr(_C, f"_get_{name}_sdp_enabled", None)
        if read is not None:
            guard = "sdp_kernels" if name != "overrideable" else "sdp_order"
            yield Setting(guard, read, getattr(_C, f"_set_sdp_use_{name}"))
    yield Setting("sdp_order", _C._get_sdp_priority_order, _C._set_sdp_priority_order)


SETTINGS = (
    Setting("default_dtype", torch.get_default_dtype, _C._set_default_dtype),
    *_kernels(),
)


def _reading(setting: Setting) -> Handler:
    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        vm.session.guard_state(setting.guard, READERS[setting.guard]())
        return vm.constant(setting.read())

    return handler


def _writing(setting: Setting) -> Handler:
    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        (wanted,) = (vm.as_python(arg) for arg in args)
        if wanted is UNKNOWN:
            raise GraphBreakSignal(f"{setting.write.__name__} with {args[0].describe()}")
        vm.session.guard_state(setting.guard, READERS[setting.guard]())
        before = setting.read()
        if wanted == before:
            return NONE
        try:
            setting.write(wanted)
        except (RuntimeError, TypeError) as error:
            return vm.raise_real(error)
        vm.session.settings.setdefault(setting, before)
        vm.session.recorder.state_change(setting.write, wanted)
        return NONE

    return handler


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
    **{setting.read: _reading(setting) for setting in SETTINGS},
    **{setting.write: _writing(setting) for setting in SETTINGS},
    inspect.unwrap(torch.nn.attention.sdpa_kernel): _sdpa_kernel,
}
