"""A recorded backward pass: its graph, what is to be done with the graph's results, and the Python
functions inside of it: hooks, and backwards of `autograd.Function`s.

What such a function does besides computing cannot be known, so it is never traced: the graph holds
a call of it, as an operator that is neither merged, moved nor dropped. The operator finds the
functions of the pass that runs, the `Frame`, on its thread.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

# What functions raise that need the engine itself: to queue a callback, to know which pass runs.
_NEEDS_ENGINE = (
    "Final callbacks can only be installed during backward pass",
    "expected this hook to be called inside a backward call",
)


class Deviation(Exception):
    """A function did otherwise than when the pass was recorded (None for a tensor, another shape,
    a write to its argument): the engine takes over."""


@dataclass(frozen=True)
class OpaqueCall:
    """How a function was called, and what came of it, when the pass was recorded.

    `arguments` are positions in the list of tensors, or None, nested as the arguments were;
    `results` tells for each result whether it is a tensor, or is None if the function gave None;
    `single` whether it gave one value, no tuple; `written` are the tensors that it wrote to.
    """

    arguments: tuple[Any, ...]
    results: tuple[bool, ...] | None
    single: bool
    written: tuple[int, ...]


@dataclass
class Frame:
    """One run of a compiled pass: the functions by slot, and what they gave so far."""

    calls: Sequence[Callable[..., Any]]
    specs: dict[int, OpaqueCall]
    # By slot: the result, and the tensors given to the function (which it may have written to).
    done: dict[int, tuple[Any, list[Tensor]]] = field(default_factory=dict)
    included: Any = None
    excluded: Any = None


_running = threading.local()


@contextmanager
def running(frame: Frame) -> Iterator[None]:
    """Operators called in here find this frame."""
    frame.included = torch._C._dispatch_tls_local_include_set()
    frame.excluded = torch._C._dispatch_tls_local_exclude_set()
    stack = _running.__dict__.setdefault("stack", [])
    stack.append(frame)
    try:
        yield
    finally:
        stack.pop()


def run_opaque(
    inputs: Sequence[Tensor], layout: Sequence[int], outputs: str, slot: int
) -> list[Tensor]:
    """Call the function in a slot of the running frame."""
    frame: Frame = _running.stack[-1]
    spec = frame.specs[slot]
    # What the function keeps, or writes to, must be memory of its own.
    given = [t.clone() for t in inputs]
    versions = [t._version for t in given]
    keys = torch._C._ForceDispatchKeyGuard(frame.included, frame.excluded)
    with keys, torch.set_grad_enabled(False):
        try:
            result = frame.calls[slot](*unflatten(spec.arguments, given))
        except (RuntimeError, AssertionError) as error:
            if any(text in str(error) for text in _NEEDS_ENGINE):
                raise Deviation("a hook asks for the engine's state") from error
            raise
    frame.done[slot] = result, given
    written = tuple(i for i, t in enumerate(given) if t._version != versions[i])
    if (results_of(result), type(result) in (tuple, list)) != (spec.results, not spec.single):
        raise Deviation("a function gave other results than before")
    if written != spec.written:
        raise Deviation("a function wrote to its argument, or did not any more")
    found = [t for t in as_tuple(result) if isinstance(t, Tensor)] + [given[i] for i in written]
    return [_laid_out(t, wanted) for t, wanted in zip(found, parse(layout, outputs), strict=True)]


def as_tuple(result: Any) -> tuple[Any, ...]:
    """What a function gave, as a tuple."""
    if isinstance(result, (tuple, list)):
        return tuple(result)
    return () if result is None else (result,)


def results_of(result: Any) -> tuple[bool, ...] | None:
    """Which results are tensors; None for no result."""
    return None if result is None else tuple(isinstance(t, Tensor) for t in as_tuple(result))


def unflatten(arguments: Any, tensors: Sequence[Tensor]) -> Any:
    """Tensors for positions, nested."""
    if isinstance(arguments, tuple):
        return tuple(unflatten(a, tensors) for a in arguments)
    return None if arguments is None else tensors[arguments]


Layout = tuple[list[Any], list[Any], torch.dtype, torch.device]


def parse(layout: Sequence[Any], outputs: str) -> list[Layout]:
    """Sizes, strides, dtype and device of each result."""
    found: list[Layout] = []
    at = 0
    for text in outputs.split(",") if outputs else ():
        dtype, device, rank = text.split("/")
        n = int(rank)
        sizes, strides = list(layout[at : at + n]), list(layout[at + n : at + 2 * n])
        at += 2 * n
        found.append((sizes, strides, getattr(torch, dtype), torch.device(device)))
    return found


def describe_results(tensors: Sequence[Tensor]) -> tuple[list[int], str]:
    """The inverse of `parse`."""
    layout: list[int] = []
    texts = []
    for t in tensors:
        layout += [*t.shape, *t.stride()]
        texts.append(f"{str(t.dtype).removeprefix('torch.')}/{t.device}/{t.ndim}")
    return layout, ",".join(texts)


def _laid_out(t: Tensor, wanted: Layout) -> Tensor:
    sizes, strides, dtype, device = wanted
    if list(t.shape) != sizes or t.dtype != dtype or t.device != device:
        raise Deviation("a function gave a tensor of another shape or type than before")
    if t.layout is not torch.strided:
        raise Deviation(f"a function gave a tensor of layout {t.layout}")
    made = torch.empty_strided(sizes, strides, dtype=dtype, device=device)
    return made.copy_(t.detach())


def _fake(inputs: Sequence[Tensor], layout: Sequence[int], outputs: str, slot: int) -> list[Tensor]:
    return [
        torch.empty_strided(sizes, strides, dtype=dtype, device=device)
        for sizes, strides, dtype, device in parse(layout, outputs)
    ]


@functools.cache
def opaque_operator() -> Any:
    """The operator; made when it is first needed."""
    library: Any = torch.library.Library("dovetail_backward", "DEF")  # type: ignore[no-untyped-call]
    library.define(
        "call(Tensor[] inputs, SymInt[] layout, str outputs, int slot) -> Tensor[]",
        tags=(torch.Tag.nondeterministic_seeded,),
    )
    library.impl("call", run_opaque, "CompositeExplicitAutograd")
    torch.library.register_fake("dovetail_backward::call", _fake, lib=library)
    _libraries.append(library)
    return torch.ops.dovetail_backward.call.default


_libraries: list[Any] = []  # a library that is collected takes its operators with it


class LeafAction(Enum):
    """What becomes of a leaf's gradient after the graph ran."""

    SET = "set"  # the graph gives the new `.grad`
    ADD = "add"  # the graph gives what to add to `.grad`
    IN_GRAPH = "in graph"  # the graph has added to `.grad`
    NONE = "none"


@dataclass(frozen=True)
class LeafStep:
    """One leaf, in the engine's order: its gradient, the graph output it comes from, and the slots
    of the functions that are called then (with the output that hooks of the node are given)."""

    leaf: int
    action: LeafAction
    output: int = -1
    slots: tuple[int, ...] = ()
    given: int = -1


@dataclass(frozen=True)
class Program:
    """`graph` takes the description's tensors and gives what `returned` and `leaves` point to.

    `returned` are the gradients that the engine returns, as graph outputs or None; `passed` which
    gradients each compiled function of the forward did not get, and for which inputs it was asked.
    """

    graph: Graph
    returned: tuple[int | None, ...] | None
    leaves: tuple[LeafStep, ...]
    opaque: dict[int, OpaqueCall]
    passed: tuple[tuple[int, int], ...]

    def module(self) -> GraphModule:
        """The graph, callable."""
        return GraphModule(torch.nn.Module(), self.graph, "Backward")

    def replayed(self) -> Program:
        """What is kept to replay it: all but the graph."""
        return replace(self, graph=Graph())


def accumulate(variable: Tensor, gradient: Tensor) -> None:
    """What autograd does with a leaf's gradient."""
    if variable.grad is None:
        variable.grad = gradient
    else:
        variable.grad += gradient


def output_of(node: Node | None, outputs: list[Node]) -> int:
    """The position of a graph output, added if it is new."""
    assert node is not None
    if node not in outputs:
        outputs.append(node)
    return outputs.index(node)


def drop_unused(graph: Graph, kept: Sequence[Node]) -> None:
    """Take out operators that only compute, for nothing."""
    needed = set(kept)
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and node not in needed:
            graph.erase_node(node)
