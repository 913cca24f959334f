"""Failures of the compiler itself: which errors they are, what is kept and said of them."""

from __future__ import annotations

import functools
import platform
import signal
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import CodeType

import torch
from dovetail_prims.node_facts import Refusal
from torch.fx import GraphModule

from dovetail_capture.environment.callers import warn_caller

_PACKAGES = ("dovetail", "dovetail-capture", "torch", "triton", "sympy", "numpy")
_INNERMOST = 3  # frames of a traceback that a warning shows
_MISTAKES = (AssertionError, AttributeError, LookupError, NameError, TypeError, ArithmeticError)
_OF_PROGRAM = (MemoryError, torch.OutOfMemoryError, KeyboardInterrupt, SystemExit)


class UncompiledWarning(RuntimeWarning):
    """A graph runs uncompiled, for what the compiler does not compile."""


class InternalErrorWarning(UncompiledWarning):
    """The compiler failed: a graph, or a frame, runs uncompiled."""


@dataclass(frozen=True)
class Failure:
    """An error inside the compiler, for which a graph or a frame runs uncompiled.

    `stage` is what failed ("capture", "compiling the graph", ...), `place` the user's function,
    file and line, `graph` the text of the graph that was being compiled ("" if there was none).
    `refused` is what the compiler says that it does not compile ("": it is a failure indeed).
    """

    stage: str
    place: str
    error: str
    innermost: str
    traceback: str
    graph: str = ""
    refused: str = ""

    def as_text(self) -> str:
        """One line."""
        return f"{self.stage} failed for {self.place}: {self.error.splitlines()[0]}"

    def in_full(self) -> str:
        """All that a report to the developers needs."""
        parts = [
            f"{self.stage} failed for {self.place}",
            self.error,
            "versions: " + ", ".join(_versions()),
            self.traceback.rstrip(),
        ]
        if self.graph:
            parts.append(f"graph:\n{self.graph.strip()}")
        return "\n\n".join(parts) + "\n"


@functools.cache
def _versions() -> tuple[str, ...]:
    found = [f"Python {platform.python_version()} ({platform.platform()})"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return tuple(found)


def failure_of(
    stage: str, error: BaseException, place: str, graph: GraphModule | None = None
) -> Failure:
    """What is kept of an error."""
    frames = traceback.extract_tb(origin(error).__traceback__)[-_INNERMOST:]
    innermost = "".join(f"\n  {f.filename}:{f.lineno} in {f.name}" for f in frames)
    text = "".join(traceback.format_exception(error))
    refused = next((str(e) for e in _chain(error) if isinstance(e, Refusal)), "")
    return Failure(stage, place, _summary(error), innermost, text, _text_of(graph), refused)


def note_failure(failures: list[Failure], failure: Failure) -> None:
    """Keep a failure, and warn of it unless one of the same kind is known."""
    known = any(failure.as_text() == other.as_text() for other in failures)
    failures.append(failure)
    if not known and failure.refused:
        warn_caller(
            f"a graph of {failure.place} runs uncompiled, slower but right: {failure.refused}. "
            "options={'on_error': 'raise'} raises an error.",
            UncompiledWarning,
        )
    elif not known:
        warn_caller(
            f"an internal error of Dovetail: {failure.as_text()}{failure.innermost}\n"
            f"({', '.join(_versions())})\n"
            "It runs uncompiled: slower, but right. Please report this, unless the error tells "
            "what this machine lacks, with dovetail.report(compiled).failures[-1].in_full(). "
            "options={'on_error': 'raise'} raises the error.",
            InternalErrorWarning,
        )


def place_in(gm: GraphModule, name: str | None = None) -> str:
    """Where in the program the node of that name is from, or the first one that is from anywhere:
    `file:line in function`, innermost call last."""
    nodes = [node for node in gm.graph.nodes if node.meta.get("stack_trace")]
    chosen = next((node for node in nodes if node.name == name), nodes[0] if nodes else None)
    if chosen is None:
        return "a graph of no known line"
    return str(chosen.meta["stack_trace"]).strip().splitlines()[-1].strip()


def error_of_program(error: BaseException) -> BaseException | None:
    """The error in the chain of `error` that is the program's, if there is one: memory ran out, or
    a handler of signals raised it, which may run anywhere."""
    handlers = _codes_of_handlers()
    for one in _chain(error):
        if isinstance(one, _OF_PROGRAM):
            return one
        if any(f.f_code in handlers for f, _ in traceback.walk_tb(one.__traceback__)):
            return one
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it was raised from. (The context of an error may be one that the
    program handles while it calls what is compiled.)"""
    following: BaseException | None = error
    while following is not None:
        yield following
        following = following.__cause__


def origin(error: BaseException) -> BaseException:
    """The error that was raised to begin with, of those that are each the cause of the next."""
    return list(_chain(error))[-1]


def is_mistake(error: BaseException) -> bool:
    """Whether an error does not say what cannot be compiled, but is a slip of the compiler."""
    return isinstance(origin(error), _MISTAKES)


def _codes_of_handlers() -> set[CodeType]:
    found: set[CodeType] = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        for function in (handler, getattr(type(handler), "__call__", None)):  # noqa: B004
            code = getattr(getattr(function, "__func__", function), "__code__", None)
            if isinstance(code, CodeType):
                found.add(code)
    return found


def _summary(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text_of(graph: GraphModule | None) -> str:
    """A graph as code, with the values of its inputs; a graph that cannot be printed is no second
    error."""
    if graph is None:
        return ""
    try:
        inputs: Sequence[str] = [
            f"# {node.name}: {node.meta.get('val')!r}"
            for node in graph.graph.nodes
            if node.op == "placeholder"
        ]
        return "\n".join([*inputs, graph.code])
    except Exception as error:
        return f"(not printable: {_summary(error)})"
