"""Which names of PyTorch's start a compiler, and what of ours stands for them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from dovetail_capture import OptimizedModule

from dovetail import compiler, logs
from dovetail.backends import registry
from dovetail.compilation import compile, compile_in_place
from dovetail.explanation import explain

_Wrap = Callable[[Any], Any]

# What only asks or marks: torch's own are understood where captured code calls them.
_UNDERSTOOD = frozenset(
    [
        "assume_constant_result",
        "config",
        "disable",
        "is_compiling",
        "is_dynamo_compiling",
        "is_exporting",
    ]
)

# Eagerly, higher-order operators run by torch.compile, given the operator and nothing else.
_INTERNAL = ("torch._higher_order_ops.", "torch.nn.attention.")

_ITSELF = ("torch:", "torch._dynamo")


def _optimize(
    backend: Any = "inductor", *, nopython: bool = False, dynamic: bool | None = None,
    disable: bool = False, guard_filter_fn: Any = None, **unused: Any,
) -> _Wrap:  # fmt: skip
    """`torch._dynamo.optimize(backend)(f)`. Its hooks for exports and errors are not ours."""
    options = None if guard_filter_fn is None else {"guard_filter_fn": guard_filter_fn}
    return lambda target: compile(
        target,
        backend=backend,
        fullgraph=nopython,
        dynamic=dynamic,
        disable=disable,
        options=options,
    )


def _optimize_assert(backend: Any, *, dynamic: bool | None = None, **unused: Any) -> _Wrap:
    """`torch._dynamo.optimize_assert(backend)(f)`: a graph break is an error."""
    return _optimize(backend, nopython=True, dynamic=dynamic)


LATE: Mapping[str, Mapping[str, Any]] = {
    "torch._dynamo": {
        "optimize": _optimize,
        "optimize_assert": _optimize_assert,
        "explain": explain,
        "reset": compiler.reset,
        "list_backends": compiler.list_backends,
        "lookup_backend": registry.lookup_backend,
        "register_backend": registry.register_backend,
    },
    "torch._inductor": {"cudagraph_mark_step_begin": compiler.cudagraph_mark_step_begin},
}


def torch_names() -> Iterator[tuple[Any, str, Any]]:
    """(owner, name, replacement) of what `import torch` has loaded."""
    own = _as(torch.compile, _compile, _INTERNAL)  # noqa: TID251
    yield torch, "compile", own
    yield torch.nn.Module, "compile", _as(torch.nn.Module.compile, _in_place)
    logging: Any = torch._logging
    told = functools.partial(logs.set_torch_logs, logging.set_logs)
    yield logging, "set_logs", _as(logging.set_logs, told)
    for name in compiler.__all__:
        theirs = getattr(torch.compiler, name, None)
        if theirs is None or name in _UNDERSTOOD:
            continue
        yield torch.compiler, name, own if name == "compile" else getattr(compiler, name)


def _compile(model: Any = None, **arguments: Any) -> Any:
    """`compile`, with the names of parameters that torch.compile gives: what is saved is loaded by
    programs that run without Dovetail."""
    if model is None:
        return functools.partial(_compile, **arguments)
    compiled = compile(model, **arguments)
    return compiled.prefixed() if type(compiled) is OptimizedModule else compiled


def _in_place(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
    if args:
        raise TypeError("nn.Module.compile takes the arguments of torch.compile by name")
    compile_in_place(self, **kwargs)


def late_names(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """(name, replacement) in a module that the program has imported."""
    for name, ours in LATE[module.__name__].items():
        theirs = getattr(module, name, None)
        if theirs is not None:
            # torch.compile itself, where it is still called, goes on by these.
            yield name, _as(theirs, ours, _ITSELF)


def _as(
    theirs: Callable[..., Any], ours: Callable[..., Any], kept: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """Our function by the name, text and signature of theirs, which modules whose names begin with
    `kept` still call."""

    @functools.wraps(theirs)
    def call(*args: Any, **kwargs: Any) -> Any:
        caller = f"{sys._getframe(1).f_globals.get('__name__')}:"
        chosen = theirs if caller.startswith(kept) else ours
        return chosen(*args, **kwargs)

    return call


# --- attributes replaced for a while, and given back as they were ---------------------------------

_MISSING = object()


@dataclass
class Replacements:
    """What was replaced, newest last: (owner, name, what stood there, what stands there now)."""

    _made: list[tuple[Any, str, Any, Any]] = field(default_factory=list)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Let `owner.name` be `value`, unless it is."""
        before = vars(owner).get(name, _MISSING)
        if before is not value:
            setattr(owner, name, value)
            self._made.append((owner, name, before, value))

    def undo(self) -> None:
        """Give back what stood there. What somebody else has replaced since stays theirs."""
        while self._made:
            owner, name, before, value = self._made.pop()
            if vars(owner).get(name, _MISSING) is not value:
                continue
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
