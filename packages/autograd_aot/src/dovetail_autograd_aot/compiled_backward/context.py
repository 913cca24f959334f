"""`compiled_autograd`: a context in which backward passes run as one compiled graph each."""

from __future__ import annotations

import threading
from contextlib import ContextDecorator
from typing import Any

import torch
from dovetail_guards.process_lock import ProcessLock
from dovetail_prims.fake_tensor import FakeTensor
from torch import Tensor
from torch.autograd.graph import GradientEdge

from dovetail_autograd_aot.aot_log import BackwardReport
from dovetail_autograd_aot.compiled_backward.description import EngineCall
from dovetail_autograd_aot.compiled_backward.passes import Engine, PassCache
from dovetail_autograd_aot.compiled_backward.sizes import Compiler
from dovetail_autograd_aot.native import nodes_module

_active = threading.local()  # `stack`: the contexts that this thread is in, or None


class compiled_autograd(ContextDecorator):
    """Inside `with compiled_autograd(compiler):`, `backward()` and `torch.autograd.grad` of this
    thread run as one graph each.

    The first pass of its kind runs on autograd's engine and is recorded; then `compiler` is given
    a graph of ATen operators and example inputs (`(GraphModule, list) -> callable`), and
    later passes of that kind run what it gave; for several sizes if it declares that it takes
    symbolic graphs (`dovetail_prims.graphs.backend_traits`) or gives the graph back. Make one
    and use it for all steps: it holds the compiled passes. `report` tells what became of the
    passes.
    """

    def __init__(self, compiler: Compiler) -> None:
        nodes_module()  # (tells at once if it is missing)
        self.passes = PassCache(compiler)

    @property
    def report(self) -> BackwardReport:
        """Counts and reasons."""
        return self.passes.report

    def __enter__(self) -> compiled_autograd:
        _stack().append(self)
        _Interception.enter()
        return self

    def __exit__(self, *_: object) -> None:
        _Interception.leave()
        _stack().pop()


def _stack() -> list[compiled_autograd | None]:
    stack: list[compiled_autograd | None] = _active.__dict__.setdefault("stack", [])
    return stack


class _Interception:
    """Stands before the engine as long as some thread is in a context."""

    lock = ProcessLock()
    count = 0
    original: Engine | None = None

    @classmethod
    def enter(cls) -> None:
        """One more context."""
        with cls.lock:
            cls.count += 1
            if cls.count == 1:
                cls.original = torch.autograd.graph._engine_run_backward
                cls._install(_intercepted)

    @classmethod
    def leave(cls) -> None:
        """One context less."""
        with cls.lock:
            cls.count -= 1
            if cls.count == 0:
                assert cls.original is not None
                cls._install(cls.original)

    @staticmethod
    def _install(engine: Engine) -> None:
        for module in (torch.autograd.graph, torch.autograd):
            setattr(module, "_engine_run_backward", engine)  # noqa: B010


def _intercepted(outputs: Any, *args: Any, **kwargs: Any) -> Any:
    engine = _Interception.original
    if engine is None:  # (called by a name bound while a context was open)
        raise RuntimeError("the engine was called after the last compiled_autograd context ended")
    stack = _stack()
    context = stack[-1] if stack else None
    if context is None or _is_traced():
        return engine(outputs, *args, **kwargs)
    call = _engine_call(outputs, *args, **kwargs)
    if call is None:
        return engine(outputs, *args, **kwargs)
    stack.append(None)  # a backward inside of this one is the engine's
    try:
        return context.passes.run(call, engine)
    finally:
        stack.pop()


def _is_traced() -> bool:
    """Whether some mode or transform watches: then the engine's work is its material."""
    if torch._C._len_torch_dispatch_stack() > 0:
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None


def _engine_call(
    outputs: Any,
    gradients: Any = (),
    keep_graph: Any = False,
    create_graph: Any = False,
    inputs: Any = (),
    allow_unreachable: Any = False,
    accumulate_grad: Any = False,
) -> EngineCall | None:
    """The arguments, if they are what autograd's functions pass."""
    inputs = () if inputs is None else inputs
    if not all(isinstance(v, (Tensor, GradientEdge)) for v in (*outputs, *inputs)):
        return None
    if any(isinstance(v, FakeTensor) for v in outputs):  # (something is being captured)
        return None
    return EngineCall(
        tuple(outputs),
        tuple(gradients),
        bool(keep_graph),
        bool(create_graph),
        tuple(inputs),
        bool(allow_unreachable),
        bool(accumulate_grad),
    )
