"""`set_stance`: what compiled functions do for the time being; `error_on_graph_break`."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from dovetail_capture._frame_hook import active, force_eager
from dovetail_capture.environment.torch_switches import torch_breaks_are_errors, torch_stance

F = TypeVar("F", bound=Callable[..., Any])

STANCES = (
    "default",
    "force_eager",
    "eager_on_recompile",
    "fail_on_recompile",
    "eager_then_compile",
    "aot_eager_then_compile",
)
_SAME = {"aot_eager_then_compile": "eager_then_compile"}

CONTEXTS: weakref.WeakSet[Any] = weakref.WeakSet()  # all capture contexts that are alive


@dataclass(frozen=True)
class _Stance:
    """A stance, and the backend that compiles whatever another was asked for, if one does."""

    name: str = "default"
    backend: Callable[..., Any] | None = None


class _State:
    """The process's stance, as with `torch.compiler.set_stance`: threads share it."""

    stance = _Stance()
    error_on_graph_break: bool | None = None


def current_stance() -> str:
    """The stance in force: that of `set_stance`, or else torch.compile's."""
    if _State.stance.name != "default":
        return _State.stance.name
    theirs = torch_stance()
    return _SAME.get(theirs, theirs) if theirs in STANCES else "default"


def breaks_are_errors() -> bool:
    """Is a graph break an error by `error_on_graph_break` (ours, or else torch.compile's)?"""
    if _State.error_on_graph_break is None:
        return torch_breaks_are_errors()
    return _State.error_on_graph_break


def stance_changed() -> None:
    """Let compiled functions run by the stance that is in force now."""
    force_eager(current_stance() == "force_eager")


def forced_backend() -> Callable[..., Any] | None:
    """The backend of the stance in force."""
    return _State.stance.backend


def _enter(stance: _Stance) -> None:
    changed = stance.backend is not _State.stance.backend
    _State.stance = stance
    if changed:  # what is compiled is another backend's
        for context in list(CONTEXTS):
            context.reset()
    stance_changed()


class _Block:
    """Something that holds in a `with` block, or (as a decorator) during calls of a function."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        pass

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


class _During(_Block):
    """A stance, asked for when the block begins; then it is as it was before the block."""

    def __init__(self, stance: Callable[[], _Stance]) -> None:
        self.stance = stance
        self.before: list[_Stance] = []

    def __enter__(self) -> None:
        self.before.append(_State.stance)
        _enter(self.stance())

    def __exit__(self, *raised: object) -> None:
        _enter(self.before.pop())


class set_stance:
    """Set the stance, for good, for a `with` block, or (as a decorator) for calls of a function.

    "default": compile. "force_eager": compiled functions run as if they were not. With
    "eager_on_recompile" what was compiled is used, and a call that fits none of it runs
    uncompiled; with "fail_on_recompile" such a call is an error. With "eager_then_compile" the
    first call of a function runs uncompiled; where the second one's sizes differ from it, they are
    compiled as dynamic ones. "aot_eager_then_compile" is the same here.

    `force_backend`, a callable, compiles meanwhile what another backend was asked for: all is
    compiled anew, and once more when it ends. `skip_guard_eval_unsafe` changes nothing: guards are
    always checked.
    """

    def __init__(
        self,
        stance: str = "default",
        *,
        skip_guard_eval_unsafe: bool = False,
        force_backend: Callable[..., Any] | None = None,
    ) -> None:
        if stance not in STANCES:
            raise ValueError(f"unknown stance {stance!r}; one of {', '.join(STANCES)}")
        if force_backend is not None and stance != "default":
            raise RuntimeError("force_backend goes with the stance 'default' alone")
        if active() is not None:
            raise RuntimeError("set_stance cannot be called inside a compiled function")
        self.stance = _Stance(_SAME.get(stance, stance), force_backend)
        self.before = _State.stance
        _enter(self.stance)

    def __enter__(self) -> None:
        _enter(self.stance)

    def __exit__(self, *raised: object) -> None:
        _enter(self.before)

    def __call__(self, function: F) -> F:
        _enter(self.before)  # a decorator: in force during calls only
        return _During(lambda: self.stance)(function)


class error_on_graph_break(_Block):
    """Within this block (or decorated function) a graph break is an error, or (with False) not,
    where `fullgraph` does not say so already. Unlike `fullgraph` it allows several graphs."""

    def __init__(self, flag: bool) -> None:
        self.flag = flag
        self.before: list[bool | None] = []

    def __enter__(self) -> None:
        self.before.append(_State.error_on_graph_break)
        _State.error_on_graph_break = self.flag

    def __exit__(self, *raised: object) -> None:
        _State.error_on_graph_break = self.before.pop()


def run(fn: Any = None) -> Any:
    """Compile nothing new in calls of `fn`, or in a `with` block: what was compiled is used, and
    calls that fit none of it run uncompiled."""
    block = _During(lambda: _Stance("eager_on_recompile", _State.stance.backend))
    return block if fn is None else block(fn)


def dont_skip_tracing(fn: Any = None) -> Any:
    """Look into all functions that captured code calls, in a `with` block or in calls of `fn`.
    That is always so: only frames that Python itself calls, torch's own say, run as they are."""
    return _Block() if fn is None else fn
