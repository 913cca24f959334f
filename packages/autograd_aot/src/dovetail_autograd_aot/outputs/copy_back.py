"""The inputs that a compiled call writes to: their new values, and what tells of the writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dovetail_autograd_aot.boundary import MutatedInput, ReshapedInput, Signature

aten = torch.ops.aten


Write = Callable[[Sequence[Any], Sequence[Any]], None]


def make_write_back(signature: Signature) -> Write | None:
    """New values into the mutated inputs, hidden from autograd; their version counters are bumped.
    (Those that autograd is to see are written by `make_seen_writes`.)"""
    start = signature.num_fresh
    pairs = [(m, (m.index, start + i)) for i, m in enumerate(signature.changes.mutated)]
    hidden = [pair for m, pair in pairs if m.data_only and m.silent]
    data = [pair for m, pair in pairs if m.data_only and not m.silent]
    graded = [pair for m, pair in pairs if not m.data_only]
    if not hidden and not data:
        return None
    grows = any(m.grown is not None for m in signature.changes.mutated)
    # Copies of one dtype and device go to the GPU in few launches. Both are as when first called.
    groups: dict[bool, list[list[tuple[int, int]]]] = {}

    def copy(silent: bool, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        if silent not in groups:
            groups[silent] = _grouped(hidden if silent else data, inputs)
        for group in groups[silent]:
            to_copy = [
                (i, r)
                for i, r in group
                if results[r] is not inputs[i] and not _is_there(inputs[i], results[r])
            ]
            if not to_copy:
                continue  # (entering `no_grad` takes longer than all of this)
            with torch.no_grad():
                if len(to_copy) == 1:
                    ((index, result),) = to_copy
                    inputs[index].copy_(results[result])
                else:
                    torch._foreach_copy_(
                        [inputs[i] for i, _ in to_copy], [results[r] for _, r in to_copy]
                    )

    def write_back(inputs: Sequence[Any], results: Sequence[Any]) -> None:
        if grows:
            grow_storages(signature, inputs)
        for index, _ in data:
            _check_may_write(inputs[index])
        for index, result in graded:
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

    return write_back


def grow_storages(signature: Signature, inputs: Sequence[Any]) -> None:
    """Give storages that are inputs the memory that the graph gave them."""
    for mutated in signature.changes.mutated:
        if mutated.grown is not None:
            inputs[mutated.index].resize_((mutated.grown,))


def make_seen_writes(signature: Signature, stages: Mapping[int, int]) -> list[Write | None]:
    """For each stage, the writes of new values into inputs that autograd is to see: differentiable
    copies. `stages` are those of inputs, 0 where nothing is said."""
    start = signature.num_fresh
    changes = {r.index: r for r in signature.changes.reshaped}
    found: list[list[tuple[int, int, MutatedInput]]] = [
        [] for _ in range(max(stages.values(), default=0) + 1)
    ]
    for i, mutated in enumerate(signature.changes.mutated):
        if not mutated.data_only:
            found[stages.get(mutated.index, 0)].append((mutated.index, start + i, mutated))

    def writing(pairs: Sequence[tuple[int, int, MutatedInput]]) -> Write:
        def write(inputs: Sequence[Any], results: Sequence[Any]) -> None:
            for index, result, mutated in pairs:
                value = results[result]
                if mutated.reshaped:
                    value = _in_shape_before(value, inputs[index], changes[index])
                inputs[index].copy_(value)

        return write

    return [writing(pairs) if pairs else None for pairs in found]


def _in_shape_before(value: Any, target: Any, change: ReshapedInput) -> Any:
    """The new value of a target, which has the shape that this is about to get, in the shape that
    it has."""
    seen = target.data  # (with a version counter of its own)
    shapes = []
    for step in change.steps:
        shapes.append(seen.shape)
        step.op(seen, *step.args, **dict(step.kwargs))
    for step, shape in zip(reversed(change.steps), reversed(shapes), strict=True):
        exchanged = _EXCHANGES.get(step.op)
        if exchanged is not None:
            value = exchanged(value, *step.args)
        else:  # dimensions of one element have come, or gone
            value = value.view(shape)
    return value


_EXCHANGES: Mapping[Any, Callable[..., Any]] = {
    aten.t_.default: torch.t, aten.transpose_.default: torch.transpose,
    aten.swapaxes_.default: torch.transpose, aten.swapdims_.default: torch.transpose,
}  # fmt: skip


def count_writes(signature: Signature, inputs: Sequence[Any]) -> None:
    """Let the version counters of inputs tell of the writes to them, but for those of new values,
    and of changes of their shapes: before such an input is saved, so that what is written after
    that is noticed, and before outputs are made (a view that is older than a write is lost to
    autograd). Raises for an inference tensor outside of inference mode, as eager does."""
    for index, times in signature.changes.extra_writes:
        if not inputs[index].is_inference():
            torch.autograd.graph.increment_version([inputs[index]] * times)
        else:
            _check_may_write(inputs[index])


def _check_may_write(target: torch.Tensor) -> None:
    """Raise where eager does: a write to an inference tensor outside of inference mode."""
    if target.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed. "
            "You can make a clone to get a normal tensor before doing inplace update."
        )


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
    grow_storages(signature, inputs)
    taken = {t.untyped_storage().data_ptr() for t in saved if isinstance(t, torch.Tensor)}
    for i, mutated in enumerate(signature.changes.mutated):
        target, value = inputs[mutated.index], results[signature.num_fresh + i]
        if not mutated.data_only or target is value or target.is_inference():
            continue
        if target.untyped_storage().data_ptr() in taken:
            continue
        version = target._version  # the epilogue counts the write
        with torch.no_grad():
            target.copy_(value)
        torch._C._autograd._unsafe_set_version_counter((target,), (version,))


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
