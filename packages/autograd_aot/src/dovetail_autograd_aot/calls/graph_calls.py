"""How compiled graphs are called: below autograd, with the inputs that they take, and one
compilation for each kind of inputs that guards do not tell apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from dovetail_autograd_aot.aot_log import AotLog
from dovetail_autograd_aot.boundary import JointGraph
from dovetail_autograd_aot.graph.op_info import is_custom
from dovetail_autograd_aot.trace.input_storages import base_of

Compiler = Callable[[GraphModule, list[Any]], Callable[..., Any]]
Compiled = Callable[..., Sequence[Any]]
Run = Callable[..., tuple[Any, ...]]

# Graphs that are kept of one captured graph, each for another way in which inputs share memory.
MAX_PLACEMENTS = 8
MAX_DROPPED = 8  # compilations that gave way, after which nothing is compiled any more

graph_is_kept = torch._C._autograd._get_current_graph_task_keep_graph
below_autograd = torch._C._AutoDispatchBelowADInplaceOrView
_grad_enabled = torch.is_grad_enabled
_set_grad = torch._C._set_grad_enabled


def unrecorded(call: Callable[..., Any], *args: Any) -> Any:
    """`call`, with kernels run as eager runs them where gradients are wanted: below autograd and
    its tracking of views, with gradients switched on. Some kernels ask (oneDNN's LSTM makes the
    workspace for its backward only then), also where a backward computes them again."""
    with below_autograd():
        before = _grad_enabled()
        _set_grad(True)
        try:
            return call(*args)
        finally:
            _set_grad(before)


def for_custom_operators(run: Compiled, gm: GraphModule) -> Compiled:
    """`run`, given tensors that require no gradient if the graph calls custom operators. Their
    kernels may be Python, which asks (`numpy()` does) and in eager is told that nothing is
    recorded: autograd switches gradients off for them, which here are on (see `unrecorded`)."""
    if not any(is_custom(node.target) for node in gm.graph.nodes):
        return run

    def run_detached(*inputs: Any) -> Any:
        return run(*map(detached, inputs))

    if hasattr(run, "run_consuming"):

        def consume(inputs: list[Any]) -> Any:
            inputs[:] = map(detached, inputs)
            return run_consuming(run, inputs)

        setattr(run_detached, "run_consuming", consume)  # noqa: B010
    return run_detached


def detached(value: Any) -> Any:
    """A tensor that requires no gradient; any other value as it is."""
    return value.detach() if isinstance(value, Tensor) and value.requires_grad else value


def apply_of(function: type[torch.autograd.Function]) -> Run:
    """The `apply` of an autograd function, for calls outside of function transforms: autograd's
    own, which raises an error within them. (Before torch 2.15, `apply` looks for transforms and
    for what is left of them in Python at each call.)"""
    run: Run = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return run


def context_of(results: Sequence[Any]) -> Any:
    """The context of a compiled function that gave these, if autograd recorded it."""
    nodes = (result.grad_fn for result in results if isinstance(result, Tensor))
    return next((node for node in nodes if node is not None), None)


def cutting(run: Callable[..., Any], unreached: list[int]) -> Callable[..., Any]:
    """`run`, given those inputs without their history: no gradient goes back to it, and as an edge
    of autograd's graph it would be kept alive, and its freed nodes be asked for gradients. (So it
    is with a state that goes from call to call, and that the graph detaches.)"""
    return _changing(run, unreached, detached)


def resolving(run: Callable[..., Any], unresolved: list[int]) -> Callable[..., Any]:
    """`run`, given values instead of the lazy conjugates and negatives among its inputs."""
    return _changing(run, unresolved, _resolved)


def _changing(
    run: Callable[..., Any], places: list[int], change: Callable[[Any], Any]
) -> Callable[..., Any]:
    """`run`, with the inputs at some places changed first."""
    if not places:
        return run

    def changed(*inputs: Any) -> Any:
        values = list(inputs)
        for i in places:
            values[i] = change(values[i])
        return run(*values)

    return changed


def _resolved(lazy: Tensor) -> Tensor:
    """The values of a lazy conjugate or negative, which lie in memory as it does: kernels and
    views address them so."""
    values = lazy.resolve_conj().resolve_neg()
    if values is lazy or (values.stride() == lazy.stride() and lazy.storage_offset() == 0):
        return values
    # It has gaps or overlaps or does not begin its memory, all of which a copy loses: copy the
    # memory that it lies in. (Its gradient is that of each element, wherever those lie.)
    last = sum((n - 1) * s for n, s in zip(lazy.shape, lazy.stride(), strict=True))
    end = lazy.storage_offset() + (last + 1 if lazy.numel() else 0)
    memory = lazy.detach().as_strided((end,), (1,), 0).resolve_conj().resolve_neg()
    values.data = memory.as_strided(lazy.shape, lazy.stride(), lazy.storage_offset())
    return values


def extension(joint: JointGraph) -> Callable[[tuple[Any, ...]], tuple[Any, ...]] | None:
    """Adds to the inputs what the functional graph takes besides: lifted attributes, storages."""
    lifted, storages, carriers = joint.added.constants, joint.added.storages, joint.added.carriers
    if not lifted and not storages:
        return None

    def extend(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        own = len(inputs) - carriers
        given = (*inputs[:own], *lifted)
        return (*given, *[base_of(shared, given) for shared in storages], *inputs[own:])

    return extend


def run_consuming(compiled: Compiled, arguments: list[Any]) -> Sequence[Any]:
    """Call a compiled graph; if it can take its inputs out of the list, each is freed after its
    last use."""
    consume: Callable[[list[Any]], Sequence[Any]] | None
    consume = getattr(compiled, "run_consuming", None)
    return compiled(*arguments) if consume is None else consume(arguments)


@dataclass(eq=False)
class InputVariants:
    """One compilation for each key of a call's inputs, the last used last; the oldest give way. If
    too many have, new ones are run by what `otherwise` gives, if it gives anything."""

    key_of: Callable[[Sequence[Any]], tuple[Any, ...]]
    compiled_for: Callable[[Sequence[Any]], Run]
    log: AotLog
    otherwise: Callable[[], Run | None]
    known: dict[tuple[Any, ...], Run] = field(default_factory=dict)
    dropped: int = 0

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        key = self.key_of(inputs)
        chosen = self.known.pop(key, None)
        if chosen is None:
            instead = self.otherwise() if self.dropped >= MAX_DROPPED else None
            if instead is not None:
                return instead(*inputs)
            chosen = self.compiled_for(inputs)
            if len(self.known) >= MAX_PLACEMENTS:
                del self.known[next(iter(self.known))]
                self.log.placements_dropped += 1
                self.dropped += 1
        self.known[key] = chosen
        return chosen(*inputs)


def run_by_eager(gm: GraphModule, log: AotLog, reason: str) -> Run:
    """The captured operators as they are. (The graph cannot end before one of them any more: the
    program was captured when its inputs lay otherwise.)"""

    def run(*inputs: Any) -> tuple[Any, ...]:
        log.note_eager_call(reason)
        return tuple(gm(*inputs))

    return run
