"""What each output of a trace is made of: an input, another output, or a tensor of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction

from dovetail_autograd_aot.boundary import OutputKind, ViewStep
from dovetail_autograd_aot.trace.autograd_queries import grad_flags, seen_base
from dovetail_autograd_aot.trace.node_values import same_strides
from dovetail_autograd_aot.trace.storage import (
    TracedStorage,
    TraceError,
    refusal,
    refuse_strided_views,
    track_of,
)
from dovetail_autograd_aot.trace.tracer import Tracer
from dovetail_autograd_aot.trace.views import PHYSICAL

aten = torch.ops.aten


class Flow(Enum):
    """What autograd has between a tensor and one that it shares memory with."""

    VIEWS = "views"  # views only: taking them again gives the same gradients
    NOTHING = "nothing"  # the gradient ends before it comes to the other tensor
    OTHER = "other"  # a custom Function may return a view with a gradient of its own


@dataclass
class Planned:
    """One user output before forward outputs are numbered. `base` is a forward output's tensor,
    `primal` an input's index, `duplicate` an earlier user output's."""

    kind: OutputKind
    value: Any = None
    base: FakeTensor | None = None
    primal: int | None = None
    duplicate: int | None = None
    chain: tuple[ViewStep, ...] = ()
    flow: Flow = Flow.VIEWS
    truth: tuple[Callable[[Any, int], bool], int] | None = None
    of_set: bool = False


@dataclass(frozen=True)
class Inputs:
    """The traced inputs; `chains` lead to those that lie in a storage that is an input (`members`
    of it, by its number). `storages` are those that they came in; some were `set_` to others:
    the numbers of these."""

    primals: list[Any]
    chains: dict[int, tuple[ViewStep, ...]]
    members: dict[int, tuple[int, ...]]
    storages: dict[int, TracedStorage]
    were_set: tuple[int, ...] = ()


def plan_outputs(tracer: Tracer, outputs: list[Any], inputs: Inputs) -> list[Planned]:
    """What each output is made of. The last ones are inputs that were `set_`, as what they are set
    to."""
    own = len(outputs) - len(inputs.were_set)
    primal_index: dict[int, int] = {}
    for i, primal in enumerate(inputs.primals):
        if isinstance(primal, FakeTensor):
            primal_index.setdefault(id(primal), i)
    first_index: dict[int, int] = {}
    groups: dict[TracedStorage, list[FakeTensor]] = {}
    for i, value in enumerate(outputs):
        if isinstance(value, torch.Tensor):
            if type(value) is not FakeTensor:
                outputs[i] = value = tracer.constant(value)
            if id(value) not in first_index:
                first_index[id(value)] = i
                groups.setdefault(track_of(value).storage, []).append(value)

    planned = []
    for i, value in enumerate(outputs):
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            planned.append(Planned(OutputKind.FRESH, value))
        elif not isinstance(value, FakeTensor):
            planned.append(Planned(OutputKind.CONSTANT, value))
        elif i >= own:
            planned.append(_plan_tensor(value, inputs, groups))
        elif id(value) in primal_index:
            planned.append(Planned(OutputKind.INPUT, value, primal=primal_index[id(value)]))
        elif first_index[id(value)] != i:
            planned.append(Planned(OutputKind.DUPLICATE, value, duplicate=first_index[id(value)]))
        else:
            plan = _of_set_input(value, inputs) if inputs.were_set else None
            planned.append(plan or _plan_tensor(value, inputs, groups))
    return planned


def _of_set_input(value: FakeTensor, inputs: Inputs) -> Planned | None:
    """The plan of an output that autograd has for a view of an input that was `set_`, of what that
    was set to; None if it is none."""
    for index in inputs.were_set:
        own, track = track_of(inputs.primals[index]), track_of(value)
        start = own.chain
        if value._base is not inputs.primals[index] or track.storage is not own.storage:
            continue
        chain = track.chain[len(start) :]
        places = any(step.op is aten.as_strided.default for step in chain)
        if track.chain[: len(start)] != start or places:
            raise TraceError(f"a view of input {index}, which is set_ to another storage")
        kind = OutputKind.VIEW_OF_INPUT
        return Planned(kind, value, primal=index, chain=chain, of_set=True)
    return None


def _plan_tensor(
    value: FakeTensor, inputs: Inputs, groups: dict[TracedStorage, list[FakeTensor]]
) -> Planned:
    track = track_of(value)
    storage = track.storage
    refuse_strided_views(value)
    if storage.primal is not None:
        given = (*inputs.members.get(storage.primal, ()), storage.primal)
        # First what autograd has it for a view of: others may lie in the same place.
        for index in sorted(given, key=lambda i: value._base is not seen_base(inputs.primals[i])):
            if index != storage.primal and index not in inputs.chains:
                continue  # (the very tensor of another member)
            start = inputs.chains.get(index, ())
            chain = track.chain
            if chain[: len(start)] == start:
                chain = chain[len(start) :]
            elif not chain or chain[0].op is not aten.as_strided.default:
                continue
            elif inputs.primals[index]._dtype is not storage.node.meta["val"]._dtype:
                continue  # (as_strided gives the same of any tensor of a storage with its elements)
            flow = _flow(value, inputs.primals[index])
            plan = Planned(OutputKind.VIEW_OF_INPUT, value, primal=index, chain=chain, flow=flow)
            if flow is not Flow.OTHER:
                return plan
        _refuse_unrelated(value, groups[storage], storage)
        return replace(plan, kind=OutputKind.FRESH)
    group = groups[storage]
    if len(group) == 1 and not _lies_otherwise(value):
        return Planned(OutputKind.FRESH, value)
    base = _base_of(group, storage)
    flow = _flow(value, base)
    if value is base:
        return Planned(OutputKind.FRESH, value)
    if flow is Flow.OTHER:
        _refuse_unrelated(value, group, storage)
    kind = OutputKind.FRESH if flow is Flow.OTHER else OutputKind.VIEW_OF_OUTPUT
    chain = track.chain[len(track_of(base).chain) :]
    return Planned(kind, value, base=base, chain=chain, flow=flow)


def _refuse_unrelated(value: FakeTensor, group: list[FakeTensor], storage: TracedStorage) -> None:
    """Views of one another for autograd can be handed out as such of one base only: not if a third
    tensor in the same memory is the base, which knows nothing of the writes to them."""
    if storage.writer is None:
        return
    base = seen_base(value)
    if any(other is not value and seen_base(other) is base for other in group):
        why = "views of a tensor and of what it was detached from, with other gradients,"
        raise refusal(f"{why} are returned, and one was written to", storage.writer)


def _leads_to(base: FakeTensor, group: list[FakeTensor]) -> bool:
    """Whether all of a group can be taken of a tensor, which may itself be a part of its storage
    (what was made with gaps is)."""
    start = track_of(base).chain
    for tensor in group:
        chain = track_of(tensor).chain
        if chain[: len(start)] != start:
            return False
        # (as_strided counts from the beginning of the storage, which an output does not have.)
        if start and any(step.op is aten.as_strided.default for step in chain[len(start) :]):
            return False
    return True


def _lies_otherwise(tensor: FakeTensor) -> bool:
    """Whether a lazy conjugate or negative, of which the graph has the values, lies in memory
    otherwise than those."""
    track = track_of(tensor)
    if track.storage.root is None or not any(step.op in PHYSICAL for step in track.chain):
        return False
    return not same_strides(track.node.meta["val"], tensor)


def _base_of(group: list[FakeTensor], storage: TracedStorage) -> FakeTensor:
    """The tensor the others of a group of aliasing outputs are regenerated from: an output that
    is the whole storage, else what autograd takes for their base, or the storage's first tensor, as
    a hidden output. One that changed its shape in place may be it, and has to be of tensors with
    gradients."""
    grad = any(grad_flags(t)[0] for t in group)
    if storage.reshaped:
        base = _reshaped_base_of(group)
        if base is not None:
            return base
        if grad:
            why = "views of a tensor of before it changed its shape in place are returned beside it"
            raise refusal(f"{why}, with gradients", storage.reshaper)
    whole = [t for t in group if not track_of(t).chain and grad_flags(t)[0] == grad]
    for tensor in sorted(whole, key=lambda t: t._is_view()):  # (an alias is a view of the others)
        return tensor
    # (A tensor made without a gradient and written to with one is not the storage's first one.)
    for tensor in group:
        seen = seen_base(tensor)
        if isinstance(seen, FakeTensor) and grad_flags(seen)[0] == grad:
            if track_of(seen).storage is storage and _leads_to(seen, group):
                return seen
    if storage.root is None:
        raise TraceError("outputs share a storage that no tensor of the graph covers")
    return storage.root


def _reshaped_base_of(group: list[FakeTensor]) -> FakeTensor | None:
    """What autograd takes for the base of the outputs that are views, if all are views of it."""
    bases: dict[int, FakeTensor] = {}
    for tensor in group:
        own = seen_base(tensor)
        bases[id(own)] = own
    base, *others = bases.values()
    chain = track_of(base).chain
    if others or any(track_of(t).chain[: len(chain)] != chain for t in group):
        return None
    return base


# Nodes of autograd that eager puts above a plain view, without "Backward" and a number.
_VIEW_NODES = frozenset(
    {
        "View", "Transpose", "Permute", "Select", "Slice", "Unsqueeze", "Squeeze", "Expand", "T",
        "Alias", "AsStrided", "Split", "SplitWithSizes", "Unbind", "Diagonal", "Unfold",
        "ReshapeAlias", "ViewAsReal", "ViewAsComplex", "Conj", "NegView",
    }
)  # fmt: skip


def _flow(value: FakeTensor, base: FakeTensor) -> Flow:
    """What is between `value` and `base`."""
    requires_grad, is_leaf = grad_flags(value)
    if not requires_grad or is_leaf:
        return Flow.VIEWS
    if not base.requires_grad:
        return Flow.OTHER
    node = value.grad_fn
    targets = _with_aliased(base.grad_fn)
    while node is not None and node not in targets:
        if type(node).__name__ == "AccumulateGrad":
            own = base.is_leaf and node.variable is base  # type: ignore[attr-defined]
            return Flow.VIEWS if own else Flow.OTHER
        if isinstance(node, BackwardCFunction):  # a user's, whatever its name
            return Flow.OTHER
        if type(node).__name__.split("Backward")[0] not in _VIEW_NODES:
            return Flow.OTHER
        node = node.next_functions[0][0]
    return Flow.NOTHING if node is None else Flow.VIEWS


def _with_aliased(node: Any) -> list[Any]:
    """A node of autograd and those that it passes gradients on to as they are: an alias has
    another one after each write that autograd does not see."""
    found = [node]
    while type(node).__name__ == "AliasBackward0":
        node = node.next_functions[0][0]
        found.append(node)
    return found
