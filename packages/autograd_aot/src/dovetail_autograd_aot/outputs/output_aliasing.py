"""How the outputs of a trace relate to its inputs and to one another."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from torch.fx import Node

from dovetail_autograd_aot import boundary as b
from dovetail_autograd_aot.outputs.classify import Flow, Inputs, Planned, plan_outputs
from dovetail_autograd_aot.trace import autograd_queries
from dovetail_autograd_aot.trace.node_values import hint, same_size
from dovetail_autograd_aot.trace.storage import effective, read, track_of
from dovetail_autograd_aot.trace.tracer import Tracer

aten = torch.ops.aten


@dataclass
class Classified:
    """The outputs of a trace.

    `forward` are the nodes of the forward outputs, `tensors` what they are the values of (None for
    sizes, and for what is written outside of autograd); `roots` the tensors gradients flow back
    from, and `differentiable` their indices in `forward`. `mutated` are the inputs that are written
    to.
    """

    mutated: list[b.MutatedInput]
    infos: list[b.OutputInfo] = field(default_factory=list)
    forward: list[Any] = field(default_factory=list)
    roots: list[FakeTensor] = field(default_factory=list)
    differentiable: list[int] = field(default_factory=list)
    tensors: list[FakeTensor | None] = field(default_factory=list)
    hidden: int = 0
    sizes: int = 0


def classify_outputs(
    tracer: Tracer, outputs: list[Any], inputs: Inputs, mutated: list[b.MutatedInput]
) -> Classified:
    """Sort the user outputs into kinds and number the forward outputs. (The last outputs are what
    inputs were `set_` to.)"""
    planned = plan_outputs(tracer, outputs, inputs)
    primals = inputs.primals
    result = Classified(mutated)
    index_of: dict[int, int] = {}  # id of a base tensor -> its forward output
    tensors = result.tensors

    def add(tensor: FakeTensor) -> None:
        index_of[id(tensor)] = len(tensors)
        tensors.append(tensor)
        result.forward.append(read(tracer, tensor))

    for plan in planned:
        if plan.kind is b.OutputKind.FRESH:
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
        if mutation.reshaped:  # its gradient has its new shape
            result.forward.append(read(tracer, primal))
            continue
        # (Others that change their shape are written back in their old one.)
        storage = inputs.storages[mutation.index]
        value = storage.node
        for step in effective(storage, inputs.chains.get(mutation.index, ())):
            value = tracer.apply_view(step, value)
        result.forward.append(value)
    for plan in planned:
        if plan.base is not None and id(plan.base) not in index_of:
            add(plan.base)
            result.hidden += 1
    _separate(tracer, result.forward, tensors)

    result.infos = _infos(planned, inputs, index_of, _Sizes(result, _taken_together(planned)))
    for index, tensor in enumerate(tensors):
        if tensor is not None and autograd_queries.grad_flags(tensor) == (True, False):
            result.roots.append(tensor)
            result.differentiable.append(index)
    return result


def _infos(
    planned: list[Planned], inputs: Inputs, index_of: Mapping[int, int], sizes: _Sizes
) -> list[b.OutputInfo]:
    """What makes each output, and what autograd knows of it; `index_of` are the forward outputs of
    base tensors, by their ids."""
    primals = inputs.primals
    infos: list[b.OutputInfo] = []
    fresh = 0
    apart = autograd_queries.counters_apart(
        [(plan.value, _taken_from(plan, primals)) for plan in planned]
    )
    views = (b.OutputKind.VIEW_OF_INPUT, b.OutputKind.VIEW_OF_OUTPUT)
    regenerated = {id(plan.value): i for i, plan in enumerate(planned) if plan.kind in views}
    for plan, counter in zip(planned, apart, strict=True):
        value = plan.value
        is_tensor = isinstance(value, FakeTensor)
        requires_grad, is_leaf = autograd_queries.grad_flags(value) if is_tensor else (False, False)
        detached, seen_as_base = _detached(plan, primals)
        view_of = None if counter is not None else regenerated.get(id(seen_as_base))
        chain = tuple(sizes.replace(step) for step in plan.chain)
        base = _base_of_plan(plan, index_of)
        from_base = plan.primal is not None and not inputs.storages[plan.primal].shared
        if plan.kind in views:
            assert base is not None
            made: b.ReturnStep = b.ViewOf(
                base, chain, view_of, detached, from_base, of_set=plan.of_set
            )
        elif plan.kind is b.OutputKind.FRESH:
            made = _fresh_step(plan, fresh, base, chain, from_base)
            fresh += 1
        else:
            made = _same_step(plan)
        infos.append(
            b.OutputInfo(
                made,
                requires_grad=requires_grad,
                is_leaf=is_leaf,
                several=is_tensor and autograd_queries.one_of_several(value),
                by_user=requires_grad and not is_leaf and autograd_queries.made_by_user(value),
                counter=counter,
                lost=autograd_queries.why_lost(value) if is_tensor else "",
                untracked=is_leaf and _untracked(plan, primals),
            )
        )
    return infos


def _fresh_step(
    plan: Planned,
    forward: int,
    base: b.TensorRef | None,
    chain: tuple[b.ViewStep, ...],
    from_base: bool,
) -> b.ReturnStep:
    """What makes an output of the forward output that is its own."""
    if plan.flow is Flow.OTHER and base is not None:
        return b.InMemoryOf(forward, base, chain, from_base)
    return b.NewTensor(forward) if plan.truth is None else b.Comparison(forward, *plan.truth)


def _same_step(plan: Planned) -> b.ReturnStep:
    """What gives an output that nothing is computed for."""
    if plan.kind is b.OutputKind.INPUT:
        assert plan.primal is not None
        return b.InputItself(plan.primal)
    return b.Constant(plan.value) if plan.duplicate is None else b.Duplicate(plan.duplicate)


def _base_of_plan(plan: Planned, index_of: Mapping[int, int]) -> b.TensorRef | None:
    """What an output lies in: an input, or a forward output, by the numbers of their tensors."""
    if plan.primal is not None:
        return b.TensorRef(True, plan.primal)
    return None if plan.base is None else b.TensorRef(False, index_of[id(plan.base)])


def _taken_together(planned: list[Planned]) -> set[int]:
    """The calls of operators that took several views of which several outputs have their gradients:
    one node of autograd's joins those, which the views' own nodes would fill up and add."""
    views = (b.OutputKind.VIEW_OF_INPUT, b.OutputKind.VIEW_OF_OUTPUT)
    taken: dict[int, set[int]] = {}
    whole: set[int] = set()  # (of which there is one view)
    for plan in planned:
        if plan.kind in views and autograd_queries.grad_flags(plan.value) == (True, False):
            for step in plan.chain:
                if step.of is not None:
                    taken.setdefault(step.of.call, set()).add(step.index)
                    if step.of.count == 1:
                        whole.add(step.of.call)
    return whole.union(call for call, parts in taken.items() if len(parts) > 1)


def _taken_from(plan: Planned, primals: list[Any]) -> FakeTensor | None:
    """The tensor of the trace of which an output is a view that is taken again at run time."""
    if plan.kind is b.OutputKind.VIEW_OF_INPUT:
        assert plan.primal is not None
        return primals[plan.primal]  # type: ignore[no-any-return]
    return plan.base if plan.kind is b.OutputKind.VIEW_OF_OUTPUT else None


def _detached(plan: Planned, primals: list[Any]) -> tuple[int | None, Any]:
    """Of an output without a gradient that is taken of a tensor again, but is no view of that for
    autograd: the steps that lead to what it is a view of, and that, if they do."""
    base, value = _taken_from(plan, primals), plan.value
    if base is None or (autograd_queries.grad_flags(value)[0] and not value.is_leaf):
        return None, None
    own = value._base
    if own is None:
        return len(plan.chain), None
    if own is autograd_queries.seen_base(base):
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


def _untracked(plan: Planned, primals: list[Any]) -> bool:
    """Whether an output that is a tensor is a view, made under no_grad, of what requires grad: of
    the tensor that it is taken of again at run time, or, of one that is not, of any."""
    tensor, taken_from = plan.value, _taken_from(plan, primals)
    seen = tensor._base
    if taken_from is not None:
        if not taken_from.requires_grad or tensor is taken_from:
            return False
        if seen is not autograd_queries.seen_base(taken_from):
            return False
    elif plan.flow is Flow.OTHER or seen is None or not autograd_queries.grad_flags(seen)[0]:
        return False
    under_no_grad = torch._C._autograd.CreationMeta.NO_GRAD_MODE
    return bool(torch._C._autograd._get_creation_meta(tensor) == under_no_grad)


class _Sizes:
    """Numbers the size outputs that view steps need. `together` are the calls of operators whose
    views are taken again at once, not each by an operator for one."""

    def __init__(self, result: Classified, together: set[int]) -> None:
        self.result = result
        self.together = together
        self.known: dict[Node, b.SizeOutput] = {}

    def replace(self, step: b.ViewStep) -> b.ViewStep:
        kwargs = tuple((k, self._value(v)) for k, v in step.kwargs)
        args = tuple(self._value(a) for a in step.args)
        of = step.of if step.of is not None and step.of.call in self.together else None
        if of is not None:
            of = replace(of, args=tuple(self._value(a) for a in of.args))
        return replace(step, args=args, kwargs=kwargs, of=of)

    def _value(self, value: Any) -> Any:
        if isinstance(value, Node):
            if value not in self.known:
                self.known[value] = b.SizeOutput(self.result.sizes)
                self.result.forward.append(value)
                self.result.sizes += 1
            return self.known[value]
        if isinstance(value, (list, tuple)):
            return type(value)(self._value(v) for v in value)
        return value


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
    for step in effective(track.storage, track.chain):
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
