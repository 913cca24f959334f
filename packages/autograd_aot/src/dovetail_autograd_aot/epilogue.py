"""What is left to do after a compiled forward: write inputs back, make the user's outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch

from dovetail_autograd_aot.gradient_points import Give, node_giver, output_stages
from dovetail_autograd_aot.graphs import (
    GradientPoint,
    OutputInfo,
    OutputKind,
    PartitionedGraph,
    ReshapedInput,
    Signature,
    SizeOutput,
    ViewStep,
)

aten = torch.ops.aten

Epilogue = Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]]
_Maker = Callable[[Sequence[Any], Sequence[Any], list[Any]], Any]


def make_epilogue(signature: Signature, points: Sequence[GradientPoint] = ()) -> Epilogue | None:
    """(inputs, forward outputs) -> user outputs; None if the forward outputs are just those. It
    gives the forward outputs that are `points` their nodes. (`count_writes` is called before.)"""
    give = node_giver(points)
    if (
        not signature.mutated
        and not signature.reshaped
        and not signature.hidden
        and not signature.sizes
        and all(_is_plain(o) for o in signature.outputs)
    ):
        return None if give is None else _only_nodes(give)
    write_back = _make_write_back(signature)
    makers = [(_maker(info, signature), info.counter) for info in signature.outputs]
    apart = {
        info.counter: (info.kind is OutputKind.VIEW_OF_INPUT, info.base)
        for info in signature.outputs
        if info.counter is not None and info.base is not None
    }
    stages = output_stages(signature.outputs, points)
    later = range(1, len(stages))
    plain = all(_is_plain(o) for o in signature.outputs)
    fresh = signature.num_fresh

    def epilogue(inputs: Sequence[Any], results: Sequence[Any]) -> tuple[Any, ...]:
        if give is not None:
            give(0, results, None, None)
        if write_back is not None:
            write_back(inputs, results)
        if plain:
            outputs = list(results[:fresh])
            if give is not None:
                for stage in later:
                    give(stage, results, inputs, outputs)
        else:
            outputs = [None] * len(makers)
            others = {
                number: (inputs if from_input else results)[base].data
                for number, (from_input, base) in apart.items()
            }
            for stage, numbers in enumerate(stages):
                if stage and give is not None:
                    give(stage, results, inputs, outputs)
                for i in numbers:
                    make, counter = makers[i]
                    bases = inputs if counter is None else (others[counter],)
                    outputs[i] = make(bases, results, outputs)
        for reshaped in signature.reshaped:
            _reshape(inputs[reshaped.index], reshaped)
        return tuple(outputs)

    return epilogue


def _only_nodes(give: Give) -> Epilogue:
    def epilogue(inputs: Sequence[Any], results: Sequence[Any]) -> tuple[Any, ...]:
        give(0, results, None, None)
        return tuple(results)

    return epilogue


def _counts(reshaped: ReshapedInput, counted: set[int]) -> bool:
    """Whether a change of shape counts as a write, and is not counted as one yet."""
    steps = [step for step in reshaped.steps if step.op is not aten.detach_.default]
    return bool(steps) and reshaped.index not in counted


def _reshape(tensor: torch.Tensor, reshaped: ReshapedInput) -> None:
    """Change in place what an input's shape is (which `count_writes` has counted)."""
    counted = None if tensor.is_inference() else tensor._version
    for step, grad_mode in zip(reshaped.steps, reshaped.grad_mode, strict=True):
        with torch.set_grad_enabled(grad_mode):
            step.op(tensor, *step.args, **dict(step.kwargs))
    if counted is not None:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (counted,))


def _is_plain(info: OutputInfo) -> bool:
    leaf = info.requires_grad and info.is_leaf
    fresh = info.kind is OutputKind.FRESH and info.memory is None and info.truth is None
    return fresh and not leaf and not info.lost


def _make_write_back(
    signature: Signature,
) -> Callable[[Sequence[Any], Sequence[Any]], None] | None:
    """New values into the mutated inputs. A write that autograd saw is a differentiable copy_,
    the others are hidden from it; their version counters are bumped either way."""
    start = signature.num_fresh
    pairs = [(m, (m.index, start + i)) for i, m in enumerate(signature.mutated)]
    hidden = [pair for m, pair in pairs if m.data_only and m.silent]
    data = [pair for m, pair in pairs if m.data_only and not m.silent]
    graded = [pair for m, pair in pairs if not m.data_only]
    if not signature.mutated:
        return None
    # Copies of one dtype and device go to the GPU in few launches. Both are as when first called.
    groups: dict[bool, list[list[tuple[int, int]]]] = {}

    def copy(silent: bool, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        if silent not in groups:
            groups[silent] = _grouped(hidden if silent else data, inputs)
        with torch.no_grad():
            for group in groups[silent]:
                to_copy = [
                    (i, r)
                    for i, r in group
                    if results[r] is not inputs[i] and not _is_there(inputs[i], results[r])
                ]
                if len(to_copy) == 1:
                    ((index, result),) = to_copy
                    inputs[index].copy_(results[result])
                elif to_copy:
                    torch._foreach_copy_(
                        [inputs[i] for i, _ in to_copy], [results[r] for _, r in to_copy]
                    )

    first = graded if hidden or data else []

    def write_back(inputs: Sequence[Any], results: Sequence[Any]) -> None:
        for index, result in first:
            if _is_part_of_leaf(inputs[index]):  # autograd refuses, before anything is written
                inputs[index].copy_(results[result])
        if hidden:
            kept = tuple(inputs[i] for i, _ in hidden if not inputs[i].is_inference())
            versions = tuple(t._version for t in kept)
            copy(True, inputs, results)
            if kept:
                torch._C._autograd._unsafe_set_version_counter(kept, versions)
        if data:
            copy(False, inputs, results)
        for index, result in graded:
            inputs[index].copy_(results[result])

    return write_back


def count_writes(signature: Signature, inputs: Sequence[Any]) -> None:
    """Let the version counters of inputs that are not mutated tell of the writes to them, and of
    changes of their shapes: before such an input is saved, so that what is written after that is
    noticed, and before outputs are made (a view that is older than a write is lost to autograd)."""
    counted = {*signature.bumped, *(m.index for m in signature.mutated if not m.silent)}
    reshaped = [r.index for r in signature.reshaped if _counts(r, counted)]
    for index in (*signature.bumped, *reshaped):
        if not inputs[index].is_inference():
            torch.autograd.graph.increment_version(inputs[index])


def _is_part_of_leaf(tensor: torch.Tensor) -> bool:
    """Whether it is a view of a leaf that requires grad: autograd refuses writes to it."""
    base = tensor._base
    return base is not None and base.requires_grad and base.is_leaf


def write_ahead(
    signature: Signature, inputs: Sequence[Any], results: Sequence[Any], saved: Sequence[Any]
) -> None:
    """What the epilogue is about to write outside of autograd, written before it, but for what lies
    where something `saved` does.

    For hooks that take saved tensors: one may raise when it has seen enough, as the early stop of a
    checkpoint's recomputation does. Eager has written by then.
    """
    taken = {t.untyped_storage().data_ptr() for t in saved if isinstance(t, torch.Tensor)}
    for i, mutated in enumerate(signature.mutated):
        target, value = inputs[mutated.index], results[signature.num_fresh + i]
        if not mutated.data_only or target is value or target.is_inference():
            continue
        if target.untyped_storage().data_ptr() in taken:
            continue
        version = target._version  # the epilogue counts the write
        with torch.no_grad():
            target.copy_(value)
        torch._C._autograd._unsafe_set_version_counter((target,), (version,))


def tell_what_is_overwritten(parts: PartitionedGraph, given: int) -> None:
    """Mark the inputs of a forward graph without a backward that are written to: with
    `meta["overwritten"]`, the position of the output that is about to be copied over each of them.

    Not those whose version counter is to stay, nor what stands for a storage that inputs share
    (inputs from `given` on). Inputs of different storages do not overlap; those of one that were
    found apart are guarded to stay so.
    """
    placeholders = [n for n in parts.forward.graph.nodes if n.op == "placeholder"]
    for i, mutated in enumerate(parts.signature.mutated):
        if mutated.data_only and not mutated.silent and mutated.index < given:
            placeholders[mutated.index].meta["overwritten"] = parts.signature.num_fresh + i


def _is_there(target: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a new value of an input was computed in the input's own memory."""
    alias: bool = torch._C._is_alias_of(target, value)  # type: ignore[attr-defined]
    if not alias or target.data_ptr() != value.data_ptr():
        return False
    own, strides = target.stride(), value.stride()
    # (Strides of dimensions of one element say nothing of where elements are.)
    return own == strides or all(
        n == 1 or a == b for n, a, b in zip(target.shape, own, strides, strict=True)
    )


def _grouped(
    pairs: Sequence[tuple[int, int]], inputs: Sequence[Any]
) -> list[list[tuple[int, int]]]:
    """(input, result) pairs by the input's dtype and device; lazy conjugates and negatives each
    alone, as operators on lists do not take them."""
    groups: dict[Any, list[tuple[int, int]]] = {}
    for pair in pairs:
        target = inputs[pair[0]]
        alone = pair if target.is_conj() or target.is_neg() else None
        groups.setdefault((target.dtype, target.device, alone), []).append(pair)
    return list(groups.values())


class _Lost(torch.autograd.Function):
    """A tensor that autograd lost track of: eager refuses to compute with it, here the backward
    through what is computed from it raises."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, tensor: torch.Tensor, why: str) -> torch.Tensor:
        ctx.why = why
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        raise RuntimeError(ctx.why)


def _maker(info: OutputInfo, signature: Signature) -> _Maker:
    """The function that makes one user output from inputs, forward outputs, earlier outputs; one
    with a version counter that is not its base's takes a base that has it as the only input."""
    if info.counter is not None:
        info = replace(info, kind=OutputKind.VIEW_OF_INPUT, base=0)
    of_input = info.kind is OutputKind.VIEW_OF_INPUT and info.counter is None
    if info.untracked and info.counter is None and (of_input or not info.lost):
        return _untracked_view(info, signature)
    make = _tracked_maker(info, signature)
    if not info.lost:
        writes = len(signature.mutated) + len(signature.bumped)
        return _view_of_written(make, info, writes) if of_input and signature.mutated else make

    def lost(inputs: Sequence[Any], results: Sequence[Any], outputs: list[Any]) -> Any:
        anchor = torch.empty((), requires_grad=True)
        return _Lost.apply(anchor, make(inputs, results, outputs), info.lost)

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


def _view_of_written(make: _Maker, info: OutputInfo, most: int) -> _Maker:
    """A view of an input that may have been written to, and `most` times at most (other inputs may
    lie in its memory). If that is itself a view, made under no_grad, eager can only have taken this
    one before the first write: since then autograd refuses to."""
    primal = info.base
    assert primal is not None
    under_no_grad = torch._C._autograd.CreationMeta.NO_GRAD_MODE

    def view(inputs: Sequence[Any], results: Sequence[Any], outputs: list[Any]) -> Any:
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


def _untracked_view(info: OutputInfo, signature: Signature) -> _Maker:
    """A view that is made under no_grad: what it says of its gradient is autograd's answer, as in
    eager (`requires_grad`, and no `.grad` is ever given to it). One of an input, of a time before
    that was written to, autograd refuses."""
    base = info.base
    assert base is not None
    if info.kind is OutputKind.FRESH:

        def of_nothing(inputs: Sequence[Any], results: Sequence[Any], outputs: list[Any]) -> Any:
            hidden = results[base].detach().requires_grad_()
            with torch.no_grad():
                return hidden.view_as(hidden)

        return of_nothing
    make = _tracked_maker(replace(info, requires_grad=True, is_leaf=False), signature)

    def untracked(inputs: Sequence[Any], results: Sequence[Any], outputs: list[Any]) -> Any:
        with torch.no_grad():
            return make(inputs, results, outputs)

    def stale(inputs: Sequence[Any], results: Sequence[Any], outputs: list[Any]) -> Any:
        with _before_the_write(inputs[base]):
            return untracked(inputs, results, outputs)

    return stale if info.lost else untracked


def _tracked_maker(info: OutputInfo, signature: Signature) -> _Maker:
    base = info.base
    if info.kind is OutputKind.CONSTANT:
        value = info.value
        return lambda inputs, results, outputs: value
    assert base is not None
    if info.kind is OutputKind.INPUT:
        return lambda inputs, results, outputs: inputs[base]
    if info.kind is OutputKind.DUPLICATE:
        return lambda inputs, results, outputs: outputs[base]
    if info.truth is not None:
        compare, number = info.truth
        return lambda inputs, results, outputs: compare(results[base], number)
    if info.kind is OutputKind.FRESH:
        if info.memory is not None:
            return _in_memory(info, signature)
        if info.requires_grad and info.is_leaf:
            return lambda inputs, results, outputs: results[base].detach().requires_grad_()
        return lambda inputs, results, outputs: results[base]
    if info.detached is not None:
        return _detached_maker(info, signature)
    view_of = info.view_of
    if view_of is not None:
        info = replace(info, view=info.view[len(signature.outputs[view_of].view) :])
    view = make_view(info, signature)
    from_input = info.kind is OutputKind.VIEW_OF_INPUT
    tracked = info.requires_grad and not info.is_leaf
    leaf = info.requires_grad and info.is_leaf
    several = info.several
    set_creation_meta = torch._C._autograd._set_creation_meta
    one_of_several = torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE

    def regenerate(inputs: Sequence[Any], results: Sequence[Any], outputs: list[Any]) -> Any:
        if view_of is None:
            tensor = (inputs if from_input else results)[base]
        else:
            tensor = outputs[view_of]
        if not tracked and (tensor.requires_grad or not info.view):
            tensor = tensor.detach()
        elif not info.view:
            tensor = tensor.view_as(tensor)
        tensor = view(tensor, results)
        if several and tensor._is_view():
            set_creation_meta(tensor, one_of_several)
        return tensor.requires_grad_() if leaf else tensor

    return regenerate


def _detached_maker(info: OutputInfo, signature: Signature) -> _Maker:
    """An output that is no view of its base for autograd."""
    base, view_of, detached = info.base, info.view_of, info.detached
    assert base is not None
    from_input = info.kind is OutputKind.VIEW_OF_INPUT
    leaf = info.requires_grad and info.is_leaf
    before = make_view(replace(info, view=info.view[:detached]), signature)
    after = make_view(replace(info, view=info.view[detached:]), signature)

    def regenerate(inputs: Sequence[Any], results: Sequence[Any], outputs: list[Any]) -> Any:
        if view_of is None:
            tensor = before((inputs if from_input else results)[base].detach(), results).detach()
        elif detached == len(info.view):
            tensor = outputs[view_of].view_as(outputs[view_of])  # of all of it, but another tensor
        else:
            tensor = outputs[view_of]
        tensor = after(tensor, results)
        return tensor.requires_grad_() if leaf else tensor

    return regenerate


def _in_memory(info: OutputInfo, signature: Signature) -> _Maker:
    """An output whose gradient is its own, but not its memory."""
    assert info.memory is not None
    primal, output = info.memory
    number = primal if primal is not None else output
    assert number is not None and info.base is not None
    own = info.base
    view = make_view(info, signature)

    def maker(inputs: Sequence[Any], results: Sequence[Any], outputs: list[Any]) -> Any:
        made = results[own]
        if info.is_leaf:
            made = made.detach().requires_grad_()
        base = (results if primal is None else inputs)[number]
        made.data = view(base.detach(), results)
        return made

    return maker


def _real_parts(steps: tuple[ViewStep, ...]) -> tuple[ViewStep, ...]:
    """Real and imaginary parts as operators of their own: what they are made of does not take a
    lazy conjugate."""
    found: list[ViewStep] = []
    for step in steps:
        last = found[-1] if found else None
        if last is not None and last.op is aten.view_as_real.default:
            if step.op is aten.select.int and any(s.op is aten._conj.default for s in found):
                part = aten.imag.default if step.args[1] else aten.real.default
                found[-1] = ViewStep(part, (), grad_mode=step.grad_mode)
                continue
        found.append(step)
    return tuple(found)


def make_view(info: OutputInfo, signature: Signature) -> Callable[[Any, Sequence[Any]], Any]:
    """The function that leads from an output's base to the output, given the forward outputs for
    sizes."""
    steps = _real_parts(info.view)
    first_size = signature.num_forward_outputs - signature.sizes
    places = info.from_base and any(step.op is aten.as_strided.default for step in steps)

    def number(value: Any, results: Sequence[Any]) -> Any:
        if isinstance(value, SizeOutput):
            return results[first_size + value.index]
        if isinstance(value, (list, tuple)):
            return [number(v, results) for v in value]
        return value

    if signature.sizes == 0 and not places and all(s.grad_mode for s in steps):
        static = [(s.op, s.args, dict(s.kwargs)) for s in steps]

        def static_view(tensor: Any, results: Sequence[Any]) -> Any:
            for op, args, kwargs in static:
                tensor = op(tensor, *args, **kwargs)
            return tensor

        return static_view

    def view(tensor: Any, results: Sequence[Any]) -> Any:
        start = tensor.storage_offset() if places else 0
        for step in steps:
            args = [number(a, results) for a in step.args]
            kwargs = {k: number(v, results) for k, v in step.kwargs}
            if places and step.op is aten.as_strided.default:
                args[2] += start
            with torch.set_grad_enabled(step.grad_mode and torch.is_grad_enabled()):
                tensor = step.op(tensor, *args, **kwargs)
        return tensor

    return view
