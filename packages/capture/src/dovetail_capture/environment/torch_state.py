"""State of torch that capture and compilers leave as they find it: modes, autocast, grad mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from dovetail_guards.torch_state import SKIPS_CLASSES
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode


def observer() -> str | None:
    """What is to see each operation of a call, if there is such a thing."""
    if not torch._C._is_torch_function_enabled():
        return "where no class of tensors is asked about operations"
    if SKIPS_CLASSES():
        return "by torch.overrides.redispatch_function"
    if torch._C._get_tracing_state() is not None:
        return "within torch.jit.trace"
    if torch._C._len_torch_dispatch_stack() and _a_dispatch_mode_looks_on():
        return "within a TorchDispatchMode"
    if forward_ad._current_level >= 0:  # whose derivatives no graph computes
        return "within a level of forward-mode derivatives"
    if torch._C._are_functorch_transforms_active():
        return "within a transform of torch.func (compile what calls the transform instead)"
    return None


def _a_dispatch_mode_looks_on() -> bool:
    """Is a `TorchDispatchMode` on that is to see each operation? (One may say that it is not.)"""
    modes = map(torch._C._get_dispatch_stack_at, range(torch._C._len_torch_dispatch_stack()))
    return not all(getattr(mode, "ignore_compile_internals", bool)() for mode in modes)


@contextmanager
def torch_state_kept() -> Iterator[None]:
    """Capture and compilers leave the global grad mode, autocast, random state and the stacks of
    modes as they found them, also where they fail in the middle of a region of any of these: a
    handler of signals may raise between a mode's exit and its end."""
    grad, rng, autocast = torch.is_grad_enabled(), torch.random.get_rng_state(), _autocast_state()
    dispatch, functions = torch._C._len_torch_dispatch_stack(), _function_modes()
    try:
        yield
    finally:
        while torch._C._len_torch_dispatch_stack() > dispatch:
            torch._C._pop_torch_dispatch_stack(None)
        if functions != _function_modes():
            _set_function_modes(functions)
        torch.set_grad_enabled(grad)
        torch.random.set_rng_state(rng)
        if autocast != _autocast_state():
            _set_autocast_state(*autocast)


def _function_modes() -> list[TorchFunctionMode]:
    """The modes that see calls of torch's functions, the outermost first."""
    count = torch._C._len_torch_function_stack()
    return [torch._C._get_function_stack_at(i) for i in range(count)]


def _set_function_modes(modes: list[TorchFunctionMode]) -> None:
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


_Autocast = tuple[int, bool, tuple[tuple[str, bool, torch.dtype], ...]]


def _autocast_state() -> _Autocast:
    """How many regions are open, whether casts are cached, and what is cast to on each device."""
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    devices = tuple(
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
    )
    return nesting, torch.is_autocast_cache_enabled(), devices


def _set_autocast_state(
    nesting: int, cached: bool, devices: tuple[tuple[str, bool, torch.dtype], ...]
) -> None:
    for device, enabled, dtype in devices:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(cached)
    level = torch.autocast_increment_nesting()
    while level > nesting:
        level = torch.autocast_decrement_nesting()
    if nesting == 0:
        torch.clear_autocast_cache()


_C: Any = torch._C


@contextmanager
def no_function_modes() -> Iterator[None]:
    """Run without the modes that are entered; others may be."""
    aside = [_C._pop_torch_function_stack() for _ in range(_C._len_torch_function_stack())]
    try:
        with _C._EnableTorchFunction():
            yield
    finally:
        for mode in reversed(aside):
            _C._push_on_torch_function_stack(mode)


def outside_of_modes(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, into which the modes that are entered were captured: they do not see its run."""

    def run(*args: Any) -> Any:
        with no_function_modes():
            return compiled(*args)

    return run
