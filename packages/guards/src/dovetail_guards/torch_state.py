"""Global torch settings a compiled frame may rely on: name -> reader of the current value.

`TorchState` clauses hold one of these names. Every value is an immutable constant that
`constants_equal` can compare. Values are shaped so that the usual setting is a small constant
(`autocast` is `()` while no device has it on), which the native check tests without Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

_C: Any = torch._C

_AUTOCAST_DEVICES: tuple[str, ...] = tuple(_C._autocast_supported_devices())


def _autocast() -> tuple[Any, ...]:
    """`()` when off, else ((device, dtype) of each enabled device ..., cache enabled)."""
    enabled = tuple(
        (device, torch.get_autocast_dtype(device))
        for device in _AUTOCAST_DEVICES
        if torch.is_autocast_enabled(device)
    )
    return enabled and (*enabled, torch.is_autocast_cache_enabled())


def _deterministic() -> tuple[bool, bool]:
    """(deterministic algorithms on, only warn)."""
    return (
        _C._get_deterministic_algorithms(),
        _C._get_deterministic_algorithms_warn_only(),
    )


def _torch_function_modes() -> tuple[Any, ...]:
    """The stack of `TorchFunctionMode`s, outermost first (compared by identity)."""
    return tuple(_C._get_function_stack_at(i) for i in range(_C._len_torch_function_stack()))


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


def _cudnn() -> tuple[bool, ...]:
    """cuDNN: (enabled, benchmark, deterministic)."""
    return (_C._get_cudnn_enabled(), _C._get_cudnn_benchmark(), _C._get_cudnn_deterministic())


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


READERS: dict[str, Callable[[], Any]] = {
    "handles_exception": _handles_exception,
    "grad_mode": torch.is_grad_enabled,
    "inference_mode": torch.is_inference_mode_enabled,
    "autocast": _autocast,
    "default_dtype": torch.get_default_dtype,
    "default_device": torch.get_default_device,
    "deterministic": _deterministic,
    "num_threads": torch.get_num_threads,
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "torch_function_modes": _torch_function_modes,
    "torch_dispatch_modes": _torch_dispatch_modes,
    "sdp_kernels": _sdp_kernels,
    "cudnn": _cudnn,
    "saved_tensors_hooks": _saved_tensors_hooks,
    "stream_capturing": _stream_capturing,
    "anomaly_mode": torch.is_anomaly_enabled,
}
