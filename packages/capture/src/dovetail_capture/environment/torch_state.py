"""State of torch that capture and compilers leave as they find it: modes, autocast, grad mode; and
global settings other than modes that a program changes while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_guards.torch_state import SKIPS_CLASSES
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Setting:
    """One of torch's settings; `guards` name the readers of `torch_state` that tell of it, and of
    what a change of it changes besides.

    `obeyed_by_kernels`: what it means is decided where a kernel runs, not where it is recorded.
    `in_program` does what the program's own call does; `write`, which it is by default, only tells
    torch. `undone` by another `write`: if not, capture does not even try it.
    """

    guards: tuple[str, ...]
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    obeyed_by_kernels: bool = False
    in_program: Callable[[Any], Any] | None = None
    undone: bool = True

    @property
    def name(self) -> str:
        """The function that sets it, for people."""
        return (self.in_program or self.write).__name__.strip("_")


@dataclass(frozen=True)
class SettingOfGraph:
    """A setting that the kernels of a graph obey: made before the graph runs, and what it is
    `after` the frame's stretch, also where the graph raises."""

    setting: Setting
    value: Any
    after: Any

    @property
    def write(self) -> Callable[[Any], Any]:
        """What the program calls to make it."""
        return self.setting.in_program or self.setting.write


class KernelSettings:
    """What a frame does to settings that kernels obey: before its graph, and after it."""

    def __init__(self) -> None:
        self.before: dict[Setting, Any] = {}
        self.after: dict[Setting, Any] = {}

    def write(self, setting: Setting, value: Any, recorded: bool) -> None:
        """Note a change, the last so far; are operations `recorded` already, which are to run as
        it was before?"""
        made = self.after if recorded else self.before
        made.pop(setting, None)
        made[setting] = value

    def now(self) -> dict[Setting, Any]:
        """What was changed, and what it is at this point of the program."""
        return {**self.before, **self.after}

    def of_graph(self) -> tuple[SettingOfGraph, ...]:
        """Those that are made before the graph."""
        now = self.now()
        return tuple(SettingOfGraph(one, value, now[one]) for one, value in self.before.items())


@contextmanager
def under(settings: Sequence[SettingOfGraph]) -> Iterator[None]:
    """A block in which torch is set as it is while a graph runs."""
    undone = [one for one in settings if one.setting.undone]
    before = [one.setting.read() for one in undone]
    try:
        for one in undone:
            one.setting.write(one.value)
        yield
    finally:
        for one, value in zip(undone, before, strict=True):
            one.setting.write(value)


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
