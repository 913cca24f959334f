"""What makes each user output of a call's inputs, forward outputs and earlier outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch

from dovetail_autograd_aot import boundary as b
from dovetail_autograd_aot.trace.autograd_queries import has_history

aten = torch.ops.aten
_UNCHANGED = nullcontext()  # (of the grad mode)


class CallOutputs(list[Any]):
    """The outputs of a call, as far as they are made. `together` are the views that one operator
    took at once, of which several are outputs, by its call in the trace, the id of the tensor that
    all of them were taken of, by way of others or not, and the grad mode; with that tensor."""

    def __init__(self, outputs: Iterable[Any]) -> None:
        super().__init__(outputs)
        self.together: dict[tuple[int, int, bool], tuple[Any, Sequence[Any]]] = {}


Maker = Callable[[Sequence[Any], Sequence[Any], CallOutputs], Any]


class _Lost(torch.autograd.Function):
    """A tensor that autograd lost track of: eager refuses to compute with it, here the backward
    through what is computed from it raises: any that is to come to one of `others`, too."""

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, tensor: torch.Tensor, why: str, *others: torch.Tensor
    ) -> torch.Tensor:
        ctx.why = why
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        raise RuntimeError(ctx.why)


class _UserView(torch.autograd.Function):
    """`made`, with its gradient, as a view of `base` that nobody may write to."""

    @staticmethod
    def forward(
        ctx: Any, base: torch.Tensor, made: torch.Tensor, view: Callable[[torch.Tensor], Any]
    ) -> Any:
        ctx.set_materialize_grads(False)
        return view(base)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        return None, gradient, None


def output_maker(info: b.OutputInfo, signature: b.Signature) -> Maker:
    """The function that makes one user output from inputs, forward outputs, earlier outputs; one
    with a version counter that is not its base's takes a base that has it as the only input."""
    if info.counter is not None:
        assert isinstance(info.step, b.ViewOf)
        info = replace(info, step=replace(info.step, base=b.TensorRef(True, 0)))
    of_input = info.kind is b.OutputKind.VIEW_OF_INPUT and info.counter is None
    if info.untracked and info.counter is None and (of_input or not info.lost):
        return _untracked_view(info, signature)
    make = _tracked_maker(info, signature)
    if not info.lost:
        changes = signature.changes
        writes = len(changes.mutated) + sum(count for _, count in changes.extra_writes)
        return _view_of_written(make, info, writes) if of_input and changes.mutated else make

    def lost(inputs: Sequence[Any], results: Sequence[Any], outputs: CallOutputs) -> Any:
        tensor = make(inputs, results, outputs)
        others = [o for o in outputs if o is not tensor and has_history(o)]
        anchor = torch.empty((), requires_grad=True)
        return _Lost.apply(anchor, tensor, info.lost, *filter(has_history, inputs), *others)

    return lost


@contextmanager
def _before_the_write(written: torch.Tensor, writes: int = 1) -> Iterator[None]:
    """The version counter of a tensor that was written to stands where it did so many writes
    before."""
    version = written._version
    torch._C._autograd._unsafe_set_version_counter((written,), (max(version - writes, 0),))
    try:
        yield
    finally:
        torch._C._autograd._unsafe_set_version_counter((written,), (version,))


def _view_of_written(make: Maker, info: b.OutputInfo, most: int) -> Maker:
    """A view of an input that may have been written to, and `most` times at most (other inputs may
    lie in its memory). If that is itself a view, made under no_grad, eager can only have taken this
    one before the first write: since then autograd refuses to."""
    primal = info.base
    assert primal is not None
    under_no_grad = torch._C._autograd.CreationMeta.NO_GRAD_MODE

    def view(inputs: Sequence[Any], results: Sequence[Any], outputs: CallOutputs) -> Any:
        try:
            return make(inputs, results, outputs)
        except RuntimeError:
            written = inputs[primal]
            made = torch._C._autograd._get_creation_meta
            if not written._is_view() or made(written) != under_no_grad:
                raise
            for writes in range(1, most):
                with suppress(RuntimeError), _before_the_write(written, writes):
                    return make(inputs, results, outputs)
            with _before_the_write(written, most):
                return make(inputs, results, outputs)

    return view


def _untracked_view(info: b.OutputInfo, signature: b.Signature) -> Maker:
    """A view that is made under no_grad: what it says of its gradient is autograd's answer, as in
    eager (`requires_grad`, and no `.grad` is ever given to it). One of an input, of a time before
    that was written to, autograd refuses."""
    base = info.base
    assert base is not None
    if info.kind is b.OutputKind.FRESH:

        def of_nothing(inputs: Sequence[Any], results: Sequence[Any], outputs: CallOutputs) -> Any:
            hidden = results[base].detach().requires_grad_()
            with torch.no_grad():
                return hidden.view_as(hidden)

        return of_nothing
    make = _tracked_maker(replace(info, requires_grad=True, is_leaf=False), signature)

    def untracked(inputs: Sequence[Any], results: Sequence[Any], outputs: CallOutputs) -> Any:
        with torch.no_grad():
            return make(inputs, results, outputs)

    def stale(inputs: Sequence[Any], results: Sequence[Any], outputs: CallOutputs) -> Any:
        with _before_the_write(inputs[base]):
            return untracked(inputs, results, outputs)

    return stale if info.lost else untracked


def _tracked_maker(info: b.OutputInfo, signature: b.Signature) -> Maker:
    """Interprets a return step."""
    match info.step:
        case b.Constant(value):
            return lambda inputs, results, outputs: value
        case b.InputItself(primal):
            return lambda inputs, results, outputs: inputs[primal]
        case b.Duplicate(output):
            return lambda inputs, results, outputs: outputs[output]
        case b.Comparison(forward, compare, number):
            return lambda inputs, results, outputs: compare(results[forward], number)
        case b.InMemoryOf():
            return _in_memory(info, info.step, signature)
        case b.NewTensor(forward):
            if info.requires_grad and info.is_leaf:
                return lambda inputs, results, outputs: results[forward].detach().requires_grad_()
            if info.protected:
                return _protected_maker(info)
            return lambda inputs, results, outputs: results[forward]
        case b.ViewOf(detached=None):
            return _view_maker(info, info.step, signature)
        case b.ViewOf():
            return _detached_maker(info, info.step, signature)


def _view_maker(info: b.OutputInfo, step: b.ViewOf, signature: b.Signature) -> Maker:
    """A view of an input or of a forward output, or of a view of that which is an output."""
    base, from_input, view_of = step.base.index, step.base.is_input, step.view_of
    steps = step.view if view_of is None else step.view[len(signature.outputs[view_of].view) :]
    view = make_view(steps, step.from_base, signature)
    tracked = info.requires_grad and not info.is_leaf
    leaf = info.requires_grad and info.is_leaf
    protect = _protection(info)

    def regenerate(inputs: Sequence[Any], results: Sequence[Any], outputs: CallOutputs) -> Any:
        origin = (inputs if from_input else results)[base]
        tensor = origin if view_of is None else outputs[view_of]
        if not tracked and (tensor.requires_grad or not steps):
            tensor = tensor.detach()
        elif not steps:
            tensor = tensor.view_as(tensor)
        tensor = view(tensor, results, origin, outputs)
        if protect is not None:
            protect(tensor)
        return tensor.requires_grad_() if leaf else tensor

    return regenerate


def _protection(info: b.OutputInfo) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What marks a view as one that autograd lets nobody write to, if it is."""
    kinds = torch._C._autograd.CreationMeta
    if not info.by_user and not info.several:
        return None
    kind = kinds.IN_CUSTOM_FUNCTION if info.by_user else kinds.MULTI_OUTPUT_NODE

    def protect(tensor: torch.Tensor) -> torch.Tensor:
        if tensor._is_view():
            torch._C._autograd._set_creation_meta(tensor, kind)
        return tensor

    return protect


def _protected_maker(info: b.OutputInfo) -> Maker:
    """A result as the view of a tensor that nobody else has."""
    base, protect = info.base, _protection(info)
    assert base is not None and protect is not None

    def protected(inputs: Sequence[Any], results: Sequence[Any], outputs: CallOutputs) -> Any:
        result = results[base]
        return protect(result.view_as(result)) if result.requires_grad else result

    return protected


def _detached_maker(info: b.OutputInfo, step: b.ViewOf, signature: b.Signature) -> Maker:
    """An output that is no view of its base for autograd."""
    base, from_input = step.base.index, step.base.is_input
    view_of, detached, steps = step.view_of, step.detached, step.view
    leaf = info.requires_grad and info.is_leaf
    before = make_view(steps[:detached], step.from_base, signature)
    after = make_view(steps[detached:], step.from_base, signature)

    def regenerate(inputs: Sequence[Any], results: Sequence[Any], outputs: CallOutputs) -> Any:
        origin = (inputs if from_input else results)[base]
        if view_of is None:
            tensor = before(origin.detach(), results, origin, outputs).detach()
        elif detached == len(steps):
            tensor = outputs[view_of].view_as(outputs[view_of])  # of all of it, but another tensor
        else:
            tensor = outputs[view_of]
        tensor = after(tensor, results, origin, outputs)
        return tensor.requires_grad_() if leaf else tensor

    return regenerate


def _in_memory(info: b.OutputInfo, step: b.InMemoryOf, signature: b.Signature) -> Maker:
    """An output whose gradient is its own, but not its memory."""
    own, number, from_input = step.forward, step.base.index, step.base.is_input
    view = make_view(step.view, step.from_base, signature)

    def maker(inputs: Sequence[Any], results: Sequence[Any], outputs: CallOutputs) -> Any:
        made = results[own]
        if info.is_leaf:
            made = made.detach().requires_grad_()
        base = (inputs if from_input else results)[number]
        if info.protected and made.requires_grad:
            return _UserView.apply(base, made, lambda tensor: view(tensor, results, base, outputs))
        made.data = view(base.detach(), results, base, outputs)
        return made

    return maker


def _real_parts(steps: tuple[b.ViewStep, ...]) -> tuple[b.ViewStep, ...]:
    """Real and imaginary parts as operators of their own: what they are made of does not take a
    lazy conjugate."""
    found: list[b.ViewStep] = []
    for step in steps:
        last = found[-1] if found else None
        if last is not None and last.op is aten.view_as_real.default:
            if step.op is aten.select.int and any(s.op is aten._conj.default for s in found):
                part = aten.imag.default if step.args[1] else aten.real.default
                found[-1] = b.ViewStep(part, (), grad_mode=step.grad_mode)
                continue
        found.append(step)
    return tuple(found)


def make_view(
    steps: tuple[b.ViewStep, ...], from_base: bool, signature: b.Signature
) -> Callable[[Any, Sequence[Any], Any, CallOutputs], Any]:
    """The function that leads from an output's base, or a view of it, to the output, given the
    forward outputs for sizes, the base for where the storage is counted from, and the outputs that
    are made."""
    steps = _real_parts(steps)
    first_size = signature.num_forward_outputs - signature.sizes
    places = from_base and any(step.op is aten.as_strided.default for step in steps)

    def number(value: Any, results: Sequence[Any]) -> Any:
        if isinstance(value, b.SizeOutput):
            return results[first_size + value.index]
        if isinstance(value, (list, tuple)):
            return [number(v, results) for v in value]
        return value

    several = [(i, s.of.call, s.index) for i, s in enumerate(steps) if s.of is not None][::-1]
    # (Without the layer of Python that calls of `torch.ops` go through.)
    calls = [(step, step.op._op, dict(step.kwargs)) for step in steps]

    def view(tensor: Any, results: Sequence[Any], base: Any, outputs: CallOutputs) -> Any:
        start = base.storage_offset() if places else 0
        origin, done = tensor, 0
        for i, call, index in several:  # (all that comes of one call has come the same way to it)
            graded = steps[i].grad_mode and torch.is_grad_enabled()
            made = outputs.together.get((call, id(origin), graded))
            if made is not None:
                tensor, done = made[1][index], i + 1
                break
        for step, op, kwargs in calls[done:]:
            of = step.of
            args: tuple[Any, ...] = (step if of is None else of).args
            if signature.sizes:
                args = tuple([number(a, results) for a in args])
                kwargs = {k: number(v, results) for k, v in step.kwargs}
            if places and step.op is aten.as_strided.default:
                args = (*args[:2], args[2] + start, *args[3:])
            with _UNCHANGED if step.grad_mode else torch.no_grad():
                if of is None:
                    tensor = op(tensor, *args, **kwargs)
                    continue
                views = of.op(tensor, *args)
                outputs.together[of.call, id(origin), torch.is_grad_enabled()] = origin, views
                tensor = views[step.index]
        return tensor

    return view
