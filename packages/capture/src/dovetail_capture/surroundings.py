"""What a call of a compiled function is made in: who looks on, and state of torch's that capture
and compilers leave as they find it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.autograd import forward_ad

from dovetail_capture.skip import is_skipped_file


def place_of_caller() -> str:
    """`file:line` of the innermost code that is the user's."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_back and is_skipped_file(frame.f_code.co_filename):
        frame = frame.f_back
    return "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def observer() -> str | None:
    """What is to see each operation of a call, if there is such a thing."""
    if not torch._C._is_torch_function_enabled():
        return "where no class of tensors is asked about operations"
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
    """Capture and compilers leave the global grad mode and random state as they found them."""
    grad, rng = torch.is_grad_enabled(), torch.random.get_rng_state()
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        torch.random.set_rng_state(rng)
