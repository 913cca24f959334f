"""Global torch settings a compiled frame may rely on: name -> reader of the current value.

`TorchState` clauses hold one of these names. Every value is an immutable constant that
`constants_equal` can compare. Values are shaped so that the usual setting is a small constant
(`autocast` is `()` while no device has it on), which the native check tests without Python.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._device import DeviceContext

_C: Any = torch._C

_CPU = torch.device("cpu")
_DEVICE_CONTEXT: Any = torch._GLOBAL_DEVICE_CONTEXT
AUTOCAST_DEVICES: tuple[str, ...] = tuple(_C._autocast_supported_devices())


def _autocast() -> tuple[Any, ...]:
    """`()` when off, else ((device, dtype) of each enabled device ..., cache enabled)."""
    enabled = tuple(
        (device, torch.get_autocast_dtype(device))
        for device in AUTOCAST_DEVICES
        if torch.is_autocast_enabled(device)
    )
    return enabled and (*enabled, torch.is_autocast_cache_enabled())


def autocast_dtype(device: str) -> str:
    """The name of the setting which dtype autocast has on a type of device, on or off."""
    return f"autocast_dtype of {device}"


def _numpy_errors() -> tuple[str, ...]:
    """What NumPy does at each kind of floating-point error, if it may raise or call something."""
    numpy = sys.modules.get("numpy")
    kinds = () if numpy is None else tuple(numpy.geterr().values())
    return kinds if set(kinds) - {"ignore", "warn"} else ()


def _deterministic() -> tuple[bool, bool]:
    """(deterministic algorithms on, only warn)."""
    return (_C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only())


class FunctionModeStack:
    """Torch's stack of `TorchFunctionMode`s as a sequence, innermost last: what guards read of a
    mode is read through `FUNCTION_MODES[place]`."""

    def __len__(self) -> int:
        return int(_C._len_torch_function_stack())

    def __getitem__(self, place: int) -> Any:
        if not 0 <= place < len(self):
            raise IndexError(place)
        return _C._get_function_stack_at(place)

    def __iter__(self) -> Iterator[Any]:
        return iter([self[place] for place in range(len(self))])


FUNCTION_MODES = FunctionModeStack()


def _torch_function_modes() -> tuple[type, ...]:
    """The classes of the `TorchFunctionMode`s that are entered, outermost first."""
    return tuple(type(mode) for mode in FUNCTION_MODES)


def _default_device() -> torch.device:
    """Where tensors are made; asked of torch, whose question the program's modes would see, only
    if somebody has set it."""
    is_set = getattr(_DEVICE_CONTEXT, "device_context", None) is not None
    if is_set or any(type(mode) is DeviceContext for mode in FUNCTION_MODES):
        return torch.get_default_device()
    return _CPU


def _torch_dispatch_modes() -> tuple[Any, ...]:
    """The stack of `TorchDispatchMode`s, outermost first (compared by identity)."""
    return tuple(_C._get_dispatch_stack_at(i) for i in range(_C._len_torch_dispatch_stack()))


def _sdp_kernels() -> tuple[bool, ...]:
    """Which scaled-dot-product kernels may be chosen: (flash, memory-efficient, math, cuDNN)."""
    return (
        _C._get_flash_sdp_enabled(),
        _C._get_mem_efficient_sdp_enabled(),
        _C._get_math_sdp_enabled(),
        _C._get_cudnn_sdp_enabled(),
    )


def _sdp_order() -> tuple[Any, ...]:
    """The order in which those kernels are tried, and whether an own one of a device may be."""
    others = getattr(_C, "_get_overrideable_sdp_enabled", bool)
    return (*_C._get_sdp_priority_order(), others())


def _cudnn() -> tuple[bool, ...]:
    """cuDNN: (enabled, benchmark, deterministic)."""
    return (_C._get_cudnn_enabled(), _C._get_cudnn_benchmark(), _C._get_cudnn_deterministic())


def _present(names: str) -> tuple[str, ...]:
    return tuple(name for name in names.split() if hasattr(_C, name))


BACKEND_FLAGS: tuple[str, ...] = _present(
    "_get_cudnn_enabled _get_cudnn_benchmark _get_cudnn_deterministic _get_cudnn_allow_tf32"
    " _get_mkldnn_enabled _get_mkldnn_deterministic _get_onednn_allow_tf32 _get_cublas_allow_tf32"
    " _get_cublas_allow_fp16_reduced_precision_reduction"
    " _get_cublas_allow_bf16_reduced_precision_reduction _get_cublas_allow_fp16_accumulation"
    " _cuda_get_cudnn_benchmark_limit _get_cudnn_depthwise_kernel"
)
"""Functions of torch._C that tell what `torch.backends` is set to, those that this torch has."""


def _backend_flags() -> tuple[Any, ...]:
    """What `torch.backends` is set to."""
    return tuple(_told(getattr(_C, name)) for name in BACKEND_FLAGS)


def _told(read: Callable[[], Any]) -> Any:
    """What a function of torch tells, or that it does not: where old and new ways to set the
    precision of products were mixed, it raises."""
    try:
        return read()
    except RuntimeError:
        return "mixed"


FLOAT32_PRECISIONS: tuple[tuple[str, str], ...] = (
    *(("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")),
    *(("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
)
"""(backend, operator) of which `torch.backends` tells the `fp32_precision`."""


def _float32_precisions() -> tuple[str, ...]:
    """The `fp32_precision` of each backend and kind of operator."""
    read = _C._get_fp32_precision_getter
    return tuple(_told(partial(read, *which)) for which in FLOAT32_PRECISIONS)


def _function_transforms() -> bool:
    """Is a transform of `torch.func` at work, or `torch.jit.trace`?"""
    return _C._are_functorch_transforms_active() or _C._get_tracing_state() is not None


def _anomaly_mode() -> tuple[bool, bool]:
    """(on, looks for NaNs)."""
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _saved_tensors_hooks() -> Any:
    """The innermost pair of saved-tensor hooks, or None."""
    return _C._autograd._top_saved_tensors_default_hooks(False)


def _stream_capturing() -> bool:
    """Is a CUDA graph being recorded on the current stream?"""
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return initialized and torch.cuda.is_current_stream_capturing()


def _handles_exception() -> bool:
    """Is an exception being handled by whoever calls? (What `sys.exc_info()` tells a callee.)"""
    return sys.exception() is not None


SKIPS_CLASSES: Callable[[], bool] = getattr(_C, "_peek_should_skip_torch_function", bool)
"""Is the next function to ask no class (`torch.overrides.redispatch_function`, since 2.13)?"""


def _asks_classes() -> bool:
    """Are classes of tensors asked about operations? (Capture itself runs with nobody asked.)"""
    if SKIPS_CLASSES():
        return False
    return bool(_C._is_torch_function_enabled() or _C._is_torch_function_all_disabled())


READERS: dict[str, Callable[[], Any]] = {
    "handles_exception": _handles_exception,
    "grad_mode": torch.is_grad_enabled,
    "inference_mode": torch.is_inference_mode_enabled,
    "autocast": _autocast,
    "autocast_cache": torch.is_autocast_cache_enabled,
    **{
        autocast_dtype(device): partial(torch.get_autocast_dtype, device)
        for device in AUTOCAST_DEVICES
    },
    "numpy_errors": _numpy_errors,
    "default_dtype": torch.get_default_dtype,
    "default_device": _default_device,
    "deterministic": _deterministic,
    "num_threads": torch.get_num_threads,
    "float32_matmul_precision": partial(_told, torch.get_float32_matmul_precision),
    "asks_classes": _asks_classes,
    "torch_function_modes": _torch_function_modes,
    "torch_dispatch_modes": _torch_dispatch_modes,
    "sdp_kernels": _sdp_kernels,
    "sdp_order": _sdp_order,
    "cudnn": _cudnn,
    "backend_flags": _backend_flags,
    "float32_precisions": _float32_precisions,
    "saved_tensors_hooks": _saved_tensors_hooks,
    "stream_capturing": _stream_capturing,
    "anomaly_mode": _anomaly_mode,
    "function_transforms": _function_transforms,
    "thread": threading.get_ident,
}


@contextmanager
def no_hooks_on_saved_tensors() -> Iterator[None]:
    """Without the hooks that are on now: they are for what a program saves, not for what is saved
    while it is captured and traced."""
    autograd, taken = _C._autograd, []
    while (hooks := autograd._top_saved_tensors_default_hooks(False)) is not None:
        autograd._pop_saved_tensors_default_hooks()
        taken.append(hooks)
    try:
        yield
    finally:
        for pack, unpack in reversed(taken):
            autograd._push_saved_tensors_default_hooks(pack, unpack)
