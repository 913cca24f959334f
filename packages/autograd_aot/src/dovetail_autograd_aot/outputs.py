"""How the outputs of a trace relate to its inputs and to one another."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction
from torch.fx import Node

from dovetail_autograd_aot.graphs import (
    MutatedInput,
    OutputInfo,
    OutputKind,
    SizeOutput,
    ViewStep,
)
from dovetail_autograd_aot.storage import (
    TracedStorage,
    TraceError,
    effective,
    read,
    refusal,
    refuse_strided_views,
    track_of,
)
from dovetail_autograd_aot.tracer import Tracer
from dovetail_autograd_aot.values import hint, same_size, same_strides
from dovetail_autograd_aot.version_counters import counters_apart
from dovetail_autograd_aot.views import PHYSICAL

aten = torch.ops.aten


@dataclass
class Classified:
    """The outputs of a trace.

    `forward` are the nodes of the forward outputs; `roots` the tensors gradients flow back from,
    and `differentiable` their indices in `forward`.
    """

    infos: list[OutputInfo] = field(default_factory=list)
    forward: list[Any] = field(default_factory=list)
    roots: list[FakeTensor] = field(default_factory=list)
    differentiable: list[int] = field(default_factory=list)
    hidden: int = 0
    sizes: int = 0

    def lose(self, errors: Mapping[int, str]) -> bool:
        """Let the roots number ... have no gradient, but the errors of their backward; False if one
        of them is not a result by itself."""
        found: dict[int, str] = {}
        for number, error in errors.items():
            index = self.differentiable[number]
            users = [i for i, info in enumerate(self.infos) if _rests_on(info, index)]
            if len(users) != 1 or self.infos[users[0]].kind is not OutputKind.FRESH:
                return False
            found[users[0]] = error
        for place, error in found.items():
            self.infos[place] = replace(self.infos[place], lost=error)
        kept = [i for i in range(len(self.roots)) if i not in errors]
        self.roots = [self.roots[i] for i in kept]
        self.differentiable = [self.differentiable[i] for i in kept]
        return bool(found)


def _rests_on(info: OutputInfo, forward: int) -> bool:
    """Whether an output is made of forward output number `forward`."""
    own = info.kind in (OutputKind.FRESH, OutputKind.VIEW_OF_OUTPUT) and info.base == forward
    return own or (info.memory is not None and info.memory[1] == forward)


class _Flow(Enum):
    """What autograd has between a tensor and one that it shares memory with."""

    VIEWS = "views"  # views only: taking them again gives the same gradients
    NOTHING = "nothing"  # the gradient ends before it comes to the other tensor
    OTHER = "other"  # a custom Function may return a view with a gradient of its own


@dataclass
class _Planned:
    """One user output before forward outputs are numbered. `base` is a forward output's tensor,
    `primal` an input's index, `duplicate` an earlier user output's."""

    kind: OutputKind
    value: Any = None
    base: FakeTensor | None = None
    primal: int | None = None
    duplicate: int | None = None
    chain: tuple[ViewStep, ...] = ()
    flow: _Flow = _Flow.VIEWS
    truth: tuple[Callable[[Any, int], bool], int] | None = None


@dataclass(frozen=True)
class Inputs:
    """The traced inputs; `chains` lead to those that lie in a storage that is an input (`members`
    of it, by its number)."""

    primals: list[Any]
    chains: dict[int, tuple[ViewStep, ...]]
    members: dict[int, tuple[int, ...]]


def classify_outputs(
    tracer: Tracer, outputs: list[Any], inputs: Inputs, mutated: list[MutatedInput]
) -> Classified:
    """Sort the user outputs into kinds and number the forward outputs."""
    planned = _plan(tracer, outputs, inputs)
    primals = inputs.primals
    result = Classified()
    index_of: dict[int, int] = {}  # id of a base tensor -> its forward output
    tensors: list[FakeTensor | None] = []

    def add(tensor: FakeTensor) -> None:
        index_of[id(tensor)] = len(tensors)
        tensors.append(tensor)
        result.forward.append(read(tracer, tensor))

    for plan in planned:
        if plan.kind is OutputKind.FRESH:
            if isinstance(plan.value, FakeTensor):
                add(plan.value)
            else:
                plan.truth, node = _comparison(tracer.sizes.node(plan.value))
                tensors.append(None)
                result.forward.append(node)
    for mutation in mutated:
        primal = primals[mutation.index]
        # Data-only writes take no gradient back: no tangent for them.
        tensors.append(None if mutation.data_only else primal)
        # (An input that changed its shape is written back in its old one.)
        value = track_of(primal).storage.node
        for step in inputs.chains.get(mutation.index, ()):
            value = tracer.apply_view(step, value)
        result.forward.append(value)
    for plan in planned:
        if plan.base is not None and id(plan.base) not in index_of:
            add(plan.base)
            result.hidden += 1
    _separate(tracer, result.forward, tensors)

    sizes = _Sizes(result)
    fresh = 0
    apart = counters_apart([(plan.value, _taken_from(plan, primals)) for plan in planned])
    views = (OutputKind.VIEW_OF_INPUT, OutputKind.VIEW_OF_OUTPUT)
    regenerated = {id(plan.value): i for i, plan in enumerate(planned) if plan.kind in views}
    for plan, counter in zip(planned, apart, strict=True):
        value = plan.value
        base: int | None = None
        memory = None
        if plan.kind is OutputKind.FRESH:
            base = fresh
            fresh += 1
            if plan.flow is _Flow.OTHER:
                memory = plan.primal, None if plan.base is None else index_of[id(plan.base)]
        elif plan.duplicate is not None:
            base = plan.duplicate
        elif plan.base is not None:
            base = index_of[id(plan.base)]
        elif plan.primal is not None:
            base = plan.primal
        is_tensor = isinstance(value, FakeTensor)
        requires_grad, is_leaf = grad_flags(value) if is_tensor else (False, False)
        detached, seen_as_base = _detached(plan, primals)
        view_of = None if counter is not None else regenerated.get(id(seen_as_base))
        result.infos.append(
            OutputInfo(
                kind=plan.kind,
                requires_grad=requires_grad,
                base=base,
                view=tuple(sizes.replace(step) for step in plan.chain),
                value=None if is_tensor or plan.kind is OutputKind.FRESH else value,
                is_leaf=is_leaf,
                memory=memory,
                truth=plan.truth,
                several=is_tensor and _one_of_several(value),
                counter=counter,
                lost=_why_lost(value) if is_tensor else "",
                untracked=is_leaf and _untracked(plan, primals),
                from_base=plan.primal is not None
                and not track_of(primals[plan.primal]).storage.shared,
                detached=detached,
                view_of=view_of,
            )
        )
    for index, tensor in enumerate(tensors):
        if tensor is not None and grad_flags(tensor) == (True, False):
            result.roots.append(tensor)
            result.differentiable.append(index)
    return result


def _taken_from(plan: _Planned, primals: list[Any]) -> FakeTensor | None:
    """The tensor of the trace of which an output is a view that is taken again at run time."""
    if plan.kind is OutputKind.VIEW_OF_INPUT:
        assert plan.primal is not None
        return primals[plan.primal]  # type: ignore[no-any-return]
    return plan.base if plan.kind is OutputKind.VIEW_OF_OUTPUT else None


def _detached(plan: _Planned, primals: list[Any]) -> tuple[int | None, Any]:
    """Of an output without a gradient that is taken of a tensor again, but is no view of that for
    autograd: the steps that lead to what it is a view of, and that, if they do."""
    base, value = _taken_from(plan, primals), plan.value
    if base is None or (grad_flags(value)[0] and not value.is_leaf):
        return None, None
    own = value._base
    if own is None:
        return len(plan.chain), None
    if own is seen_base(base):
        return None, None
    skipped = len(track_of(value).chain) - len(plan.chain)
    steps = len(track_of(own).chain) - skipped
    same = track_of(own).storage is track_of(value).storage
    if not same or steps < 0 or track_of(own).chain[skipped:] != plan.chain[:steps]:
        return 0, None  # (it may have changed its shape in place since)
    if any(step.op is aten.as_strided.default for step in plan.chain[steps:]):
        return 0, None
    return steps, own


def _comparison(node: Any) -> tuple[Any, Any]:
    """A symbolic truth as what is compared with a number: graphs return numbers."""
    if isinstance(node, Node) and node.target in _COMPARISONS:
        left, right = node.args
        if isinstance(left, Node) and type(right) is int:
            return (node.target, right), left
    return None, node


_COMPARISONS = (operator.le, operator.lt, operator.ge, operator.gt, operator.eq, operator.ne)


def grad_flags(tensor: FakeTensor) -> tuple[bool, bool]:
    """`requires_grad` and `is_leaf`. A view that autograd lost track of (made under no_grad, or one
    of several, its base written to after) says nothing but errors: it is taken for one without
    gradient."""
    try:
        return tensor.requires_grad, tensor.is_leaf
    except RuntimeError:
        return False, True


def _why_lost(tensor: FakeTensor) -> str:
    """The error of a view that autograd lost track of, or nothing."""
    try:
        tensor.grad_fn  # noqa: B018 (it is asked whether it can be asked)
    except RuntimeError as error:
        return str(error)
    return ""


def grad_fn_of(tensor: torch.Tensor) -> Any:
    """`tensor.grad_fn`; None of a view that autograd lost track of."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def _one_of_several(tensor: FakeTensor) -> bool:
    """Whether it is a view that an operator made together with others (split, unbind)."""
    several = torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE
    return tensor._is_view() and bool(torch._C._autograd._get_creation_meta(tensor) == several)


def _untracked(plan: _Planned, primals: list[Any]) -> bool:
    """Whether an output that is a tensor is a view, made under no_grad, of what requires grad: of
    the tensor that it is taken of again at run time, or, of one that is not, of any."""
    tensor, taken_from = plan.value, _taken_from(plan, primals)
    seen = tensor._base
    if taken_from is not None:
        if not taken_from.requires_grad or tensor is taken_from:
            return False
        if seen is not seen_base(taken_from):
            return False
    elif plan.flow is _Flow.OTHER or seen is None or not grad_flags(seen)[0]:
        return False
    under_no_grad = torch._C._autograd.CreationMeta.NO_GRAD_MODE
    return bool(torch._C._autograd._get_creation_meta(tensor) == under_no_grad)


def seen_base(tensor: torch.Tensor) -> Any:
    """What autograd takes for the base of views of a tensor."""
    return tensor if tensor._base is None else tensor._base


class _Sizes:
    """Numbers the size outputs that view steps need."""

    def __init__(self, result: Classified) -> None:
        self.result = result
        self.known: dict[Node, SizeOutput] = {}

    def replace(self, step: ViewStep) -> ViewStep:
        kwargs = tuple((k, self._value(v)) for k, v in step.kwargs)
        args = tuple(self._value(a) for a in step.args)
        return replace(step, args=args, kwargs=kwargs)

    def _value(self, value: Any) -> Any:
        if isinstance(value, Node):
            if value not in self.known:
                self.known[value] = SizeOutput(self.result.sizes)
                self.result.forward.append(value)
                self.result.sizes += 1
            return self.known[value]
        if isinstance(value, (list, tuple)):
            return type(value)(self._value(v) for v in value)
        return value


def _plan(tracer: Tracer, outputs: list[Any], inputs: Inputs) -> list[_Planned]:
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
            planned.append(_Planned(OutputKind.FRESH, value))
        elif not isinstance(value, FakeTensor):
            planned.append(_Planned(OutputKind.CONSTANT, value))
        elif id(value) in primal_index:
            planned.append(_Planned(OutputKind.INPUT, value, primal=primal_index[id(value)]))
        elif first_index[id(value)] != i:
            planned.append(_Planned(OutputKind.DUPLICATE, value, duplicate=first_index[id(value)]))
        else:
            planned.append(_plan_tensor(value, inputs, groups))
    return planned


def _plan_tensor(
    value: FakeTensor, inputs: Inputs, groups: dict[TracedStorage, list[FakeTensor]]
) -> _Planned:
    track = track_of(value)
    storage = track.storage
    refuse_strided_views(value)
    if storage.primal is not None:
        given = (*inputs.members.get(storage.primal, ()), storage.primal)
        # First what autograd has it for a view of: others may lie in the same place.
        for index in sorted(given, key=lambda i: value._base is not seen_base(inputs.primals[i])):
            start = inputs.chains.get(index, ())
            chain = track.chain
            if chain[: len(start)] == start:
                chain = chain[len(start) :]
            elif not chain or chain[0].op is not aten.as_strided.default:
                continue  # (as_strided gives the same of any tensor of a storage)
            flow = _flow(value, inputs.primals[index])
            plan = _Planned(OutputKind.VIEW_OF_INPUT, value, primal=index, chain=chain, flow=flow)
            if flow is not _Flow.OTHER:
                return plan
        _refuse_unrelated(value, groups[storage], storage)
        return replace(plan, kind=OutputKind.FRESH)
    group = groups[storage]
    if len(group) == 1 and not _lies_otherwise(value):
        return _Planned(OutputKind.FRESH, value)
    base = _base_of(group, storage)
    flow = _flow(value, base)
    if value is base:
        return _Planned(OutputKind.FRESH, value)
    if flow is _Flow.OTHER:
        _refuse_unrelated(value, group, storage)
    kind = OutputKind.FRESH if flow is _Flow.OTHER else OutputKind.VIEW_OF_OUTPUT
    chain = track.chain[len(track_of(base).chain) :]
    return _Planned(kind, value, base=base, chain=chain, flow=flow)


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


def _flow(value: FakeTensor, base: FakeTensor) -> _Flow:
    """What is between `value` and `base`."""
    requires_grad, is_leaf = grad_flags(value)
    if not requires_grad or is_leaf:
        return _Flow.VIEWS
    if not base.requires_grad:
        return _Flow.OTHER
    node = value.grad_fn
    targets = _with_aliased(base.grad_fn)
    while node is not None and node not in targets:
        if type(node).__name__ == "AccumulateGrad":
            own = base.is_leaf and node.variable is base  # type: ignore[attr-defined]
            return _Flow.VIEWS if own else _Flow.OTHER
        if isinstance(node, BackwardCFunction):  # a user's, whatever its name
            return _Flow.OTHER
        if type(node).__name__.split("Backward")[0] not in _VIEW_NODES:
            return _Flow.OTHER
        node = node.next_functions[0][0]
    return _Flow.NOTHING if node is None else _Flow.VIEWS


def _with_aliased(node: Any) -> list[Any]:
    """A node of autograd and those that it passes gradients on to as they are: an alias has
    another one after each write that autograd does not see."""
    found = [node]
    while type(node).__name__ == "AliasBackward0":
        node = node.next_functions[0][0]
        found.append(node)
    return found


_VIEW_OPS = frozenset(
    {
        aten.view.default, aten._unsafe_view.default, aten.permute.default, aten.expand.default,
        aten.slice.Tensor, aten.select.int, aten.unsqueeze.default, aten.squeeze.dims,
        aten.squeeze.dim, aten.squeeze.default, aten.as_strided.default, aten.diagonal.default,
        aten.unfold.default, aten.alias.default, aten.t.default, aten.transpose.int,
        aten._reshape_alias.default, aten.view.dtype, aten.view_as_real.default,
        aten.view_as_complex.default, aten.real.default, aten.imag.default, aten.detach.default,
    }
)  # fmt: skip


def is_view_node(node: Node) -> bool:
    """Whether a node's result shares memory with its first argument."""
    return node.op == "call_function" and node.target in _VIEW_OPS


def view_root(node: Node) -> Node:
    """The node whose memory `node` shows."""
    while is_view_node(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _separate(tracer: Tracer, forward: list[Any], tensors: list[FakeTensor | None]) -> None:
    """Forward outputs must not share memory with inputs or with one another: values that became
    equal while recording (a copy of an input, say) are cloned."""
    owned: set[Node] = set()
    for index, node in enumerate(forward):
        if not isinstance(node, Node) or not isinstance(node.meta.get("val"), FakeTensor):
            continue
        root = view_root(node)
        if root.op in ("placeholder", "get_attr") or root in owned:
            forward[index] = _cloned(tracer, node, tensors[index])
        else:
            owned.add(root)


def _cloned(tracer: Tracer, node: Node, tensor: FakeTensor | None) -> Node:
    """A copy; of a part of a tensor, with the strides that the part has."""
    track = None if tensor is None else track_of(tensor)
    if track is None or track.storage.primal is not None:
        return tracer.emit_clone(node)
    value = tracer.emit_clone(track.storage.node)
    for step in effective(track.chain):
        value = tracer.apply_view(step, value)
    return value


def storage_order_strides(sizes: tuple[Any, ...], strides: tuple[Any, ...]) -> tuple[Any, ...]:
    """The strides a gradient of such a tensor is expected in: its own if it is dense, else those
    of a dense tensor in its order, as of what eager makes of it (a contiguous one where elements
    lie on one another)."""
    order = sorted(
        (d for d in range(len(sizes)) if not same_size(sizes[d], 1)), key=lambda d: hint(strides[d])
    )
    expected: Any = 1
    dense = True
    for d in order:
        if not same_size(strides[d], expected):
            dense = False
            break
        expected = expected * sizes[d]
    if dense:
        return strides
    inner: list[int] = list(range(len(sizes) - 1, -1, -1))
    if all(hint(s) > 0 for s in strides):
        inner.sort(key=lambda d: hint(strides[d]))
    laid: list[Any] = [0] * len(sizes)
    expected = 1
    for d in inner:
        laid[d] = expected
        expected = expected * sizes[d] if not same_size(sizes[d], 0) else expected
    return tuple(laid)
