"""What a trace changed of its inputs: writes, other shapes, version counters; what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from dovetail_prims.node_facts import blame

from dovetail_autograd_aot import boundary as b
from dovetail_autograd_aot.graph.op_info import CHANGES_OF_SHAPE
from dovetail_autograd_aot.joint.primals import Examples, Primals
from dovetail_autograd_aot.outputs.output_aliasing import Classified
from dovetail_autograd_aot.trace.autograd_queries import grad_flags, grad_fn_of
from dovetail_autograd_aot.trace.input_storages import (
    lies_on_itself,
    memory_overlaps,
    refuse_graded_relatives,
    refuse_inner_overlap,
)
from dovetail_autograd_aot.trace.storage import (
    StorageNeededError,
    TracedStorage,
    TraceError,
    refusal,
    track_of,
)
from dovetail_autograd_aot.trace.tracer import Tracer

aten = torch.ops.aten


def mutated_inputs(primals: Primals) -> list[b.MutatedInput]:
    """The inputs that the graph wrote to; TraceError or StorageNeededError for writes that
    compiled code could not repeat."""
    mutated = []
    for index, primal in primals.tensors():
        storage = primal.storage
        assert storage is not None
        if storage.version == 0 and not _has_new_history(primals, index):
            continue
        try:
            found = _mutated(primals, index, storage)
        except TraceError as error:
            writer = storage.writer or storage.rewriter
            if writer is not None:
                blame(error, writer)
            raise
        if found is not None:
            mutated.append(found)
    return _told_no_more_than(primals, mutated)


def inputs_apart(
    primals: Primals, mutated: Sequence[b.MutatedInput]
) -> tuple[tuple[int, int], ...]:
    """The pairs of an input that is written to and one in the same storage that was found to share
    no element with it."""
    examples = primals.examples
    return tuple(
        (one.index, other)
        for one in mutated
        if (storage := primals[one.index].storage) is not None
        if storage.primal == one.index and not storage.shared
        for other in examples.in_storage_of(one.index)
        if examples[other] is not examples[one.index]
    )


def _has_new_history(primals: Primals, index: int) -> bool:
    """Whether autograd saw a write to an input that left it as it was (`conj_physical_` of real
    numbers does)."""
    primal, reshaped = primals[index], primals.tracer.reshaped
    node = grad_fn_of(primal.value)
    if node is None or node is primal.grad_fn:
        return False
    if not reshaped.get(id(primal.value)):
        return True
    # A change of shape gives it a history, too; but its counter tells of one write only.
    sharing = primals.sharing_counter(index)
    steps = sum(len(reshaped.get(id(primals[i].value), ())) for i in sharing)
    return primal.writes > steps


def _mutated(primals: Primals, index: int, storage: TracedStorage) -> b.MutatedInput | None:
    """How an input of a storage that was written to changes; None if its storage tells."""
    examples, primal = primals.examples, primals[index]
    found = None
    # Autograd saw the write if it moved the input to another node of its graph.
    graded = primal.value.grad_fn is not primal.grad_fn
    if storage.primal == index:
        if not storage.shared:
            _need_storage_if_on_itself(primals, index, storage.writer)
            _need_storage_if_overlapped(examples, index, storage.writer)
            if graded:
                # Those that had a history before get the same gradients from that one.
                tensors = [examples[i] for i in examples.in_storage_of(index)]
                without = [t for t in tensors if not t.requires_grad]
                refuse_graded_relatives(examples[index], without, index)
        else:
            for i in examples.members(index):
                if examples[i].requires_grad:
                    refuse_inner_overlap(examples[i], i)
        silent = not graded and primal.version is not None and not primal.writes
        found = b.MutatedInput(index, not graded, silent, grown=_grown(examples, storage))
    elif graded:
        others = [examples[i] for i in examples.members(examples.base_of[index])]
        refuse_graded_relatives(examples[index], others, index)
        found = b.MutatedInput(index, data_only=False)
    steps = primals.tracer.reshaped.get(id(primal.value), ())
    if graded and steps and found is not None:
        why = ""
        if any(step.op not in CHANGES_OF_SHAPE for step, _ in steps):
            why = "changes in place where it lies"
        elif not all(grad_mode for _, grad_mode in steps):
            why = "changes its shape in place under no_grad"
        if why:
            why = f"input {index} requires grad, is written to and {why}"
            raise refusal(why, primals.tracer.reshapers[id(primal.value)])
        found = replace(found, reshaped=True)
    return found


def _grown(examples: Examples, storage: TracedStorage) -> int | None:
    """How many elements a storage that is an input has in the end, if that are more than before."""
    if not storage.grown:
        return None
    assert storage.root is not None and storage.primal is not None
    member = examples.members(storage.primal)[0]
    if not examples[member].untyped_storage().resizable():
        raise TraceError(f"input {member} is to have more elements than its memory, which is fixed")
    return int(storage.root._sizes[0])


def _need_storage_if_on_itself(primals: Primals, index: int, writer: str | None) -> None:
    """StorageNeededError if several elements of an input that is written to are one."""
    example = primals.examples[index]
    if example.requires_grad or grad_flags(primals[index].value)[0]:
        refuse_inner_overlap(example, index)
    elif lies_on_itself([int(n) for n in example.shape], [int(s) for s in example.stride()]):
        raise StorageNeededError(index, writer)


def _need_storage_if_overlapped(examples: Examples, index: int, writer: str | None) -> None:
    """StorageNeededError if an input that is written to shares elements with another. (That it does
    not is checked at each call, see `inputs_apart`.)"""
    example = examples[index]
    for number in examples.in_storage_of(index):
        if examples[number] is not example and memory_overlaps(example, examples[number]):
            raise StorageNeededError(index, writer)


def inputs_set(primals: Primals, *, beside_subclasses: bool) -> tuple[int, ...]:
    """The inputs that were `set_`: whatever they were before, they become aliases in the end."""
    nodes = primals.tracer.set_inputs
    found = []
    for index, primal in primals.tensors():
        if id(primal.value) not in nodes:
            continue
        why = ""
        if primals.examples[index].requires_grad or grad_flags(primal.value)[0]:
            why = f"set_ of input {index}, which requires grad"
        elif beside_subclasses:
            why = f"set_ of input {index} beside tensor subclasses"
        if why:
            raise refusal(why, nodes[id(primal.value)])
        found.append(index)
    return tuple(found)


def reshaped_inputs(primals: Primals) -> tuple[b.ReshapedInput, ...]:
    """The inputs that became other views of themselves."""
    tracer = primals.tracer
    found = []
    for index, primal in primals.tensors():
        if id(primal.value) in tracer.set_inputs:
            continue
        steps = list(tracer.reshaped.get(id(primal.value), ()))
        example = primals.examples[index]
        if example.requires_grad and not grad_flags(primal.value)[0]:
            steps.insert(0, (b.ViewStep(aten.detach_.default, ()), True))
        elif steps and example.requires_grad and example.is_leaf:
            why = f"input {index} is a leaf that requires grad and is reshaped"
            raise refusal(why, tracer.reshapers[id(primal.value)])
        if steps:
            found.append(b.ReshapedInput(index, *zip(*steps, strict=True)))
    return tuple(found)


def refuse_graded_writes(tracer: Tracer) -> None:
    """Autograd replays views where their base or they are written to, but not the changes of
    their shape, and as_strided as if their base began where its storage does."""
    for tensor, why, writer in tracer.written_without_gradients:
        base: Any = tensor._base
        if grad_flags(tensor)[0] or (base is not None and grad_flags(base)[0]):
            raise refusal(why, writer)


def take_views_of_reshaped(
    primals: Primals, result: Classified, reshaped: Sequence[b.ReshapedInput]
) -> None:
    """Let the views of an input that has a history and changes its shape be taken after that, with
    the steps that are left then: its gradient goes through the input in its new shape. One that
    was taken before is refused: autograd takes it again by strides."""
    for number, info in enumerate(result.infos):
        if info.kind is not b.OutputKind.VIEW_OF_INPUT or info.is_leaf or not info.requires_grad:
            continue
        base = info.base
        assert base is not None
        primal = primals[base]
        if base not in {r.index for r in reshaped} or grad_fn_of(primal.value) is None:
            continue
        changes = track_of(primal.value).chain[len(primal.chain) :]
        assert isinstance(info.step, b.ViewOf)
        if info.view[: len(changes)] != changes or info.step.detached is not None:
            why = f"input {base} changes its shape in place, and a view of before that is returned"
            raise refusal(why, primals.tracer.reshapers[id(primal.value)])
        later = replace(info.step, view=info.view[len(changes) :], of_reshaped=True)
        result.infos[number] = replace(info, step=later)


def refuse_untracked_views(primals: Primals, result: Classified) -> None:
    """A view that is taken under no_grad of an input that changes its shape: eager takes it
    after the change, and autograd refuses it if it was taken before."""
    reshapers = primals.tracer.reshapers
    for info in result.infos:
        if info.kind is not b.OutputKind.VIEW_OF_INPUT or info.base is None:
            continue
        untracked = info.requires_grad and not all(s.grad_mode for s in info.view)
        number = id(primals[info.base].value)
        if untracked and number in reshapers:
            why = (
                f"input {info.base} requires grad, changes its shape in place, and a view of "
                "it that is taken under no_grad is returned"
            )
            raise refusal(why, reshapers[number])


def input_changes(
    primals: Primals,
    mutated: Sequence[b.MutatedInput],
    reshaped: tuple[b.ReshapedInput, ...],
    set_inputs: tuple[int, ...],
) -> b.InputChanges:
    """All that a trace changed of its inputs, version counters included."""
    new_values = {m.index: primals[m.index].counter for m in mutated if not m.silent}
    told = set(new_values.values())
    return b.InputChanges(
        mutated=tuple(mutated),
        reshaped=reshaped,
        set_inputs=set_inputs,
        bumped=_bumped_inputs(primals, {m.index for m in mutated}),
        extra_writes=_extra_writes(primals, Counter(new_values.values()), reshaped),
        counted=tuple(i for i, p in primals.counted() if p.counter in told and i not in new_values),
    )


def _extra_writes(
    primals: Primals, new_values: Counter[int | None], reshaped: Sequence[b.ReshapedInput]
) -> tuple[tuple[int, int], ...]:
    """For inputs whose version counters tell of writes besides those of new values, how many: the
    first of those that share a counter. A change of shape is one."""
    found = []
    for index in dict.fromkeys(primal.counter for _, primal in primals.counted()):
        assert index is not None
        count = primals[index].writes - new_values[index]
        if count > 0:
            found.append((index, count))
    for change in reshaped:
        told = primals[change.index].writes != 0
        if not told and any(step.op is not aten.detach_.default for step in change.steps):
            found.append((change.index, 1))
    return tuple(found)


def _told_no_more_than(primals: Primals, mutated: list[b.MutatedInput]) -> list[b.MutatedInput]:
    """With those silent whose new values would be more writes than a counter that inputs share
    tells of: some were written behind it."""
    left = {i: primal.writes for i, primal in primals.counted() if primal.counter == i}
    found = []
    for one in mutated:
        counter = primals[one.index].counter
        if counter is not None and not one.silent:
            left[counter] -= 1
            if left[counter] < 0 and one.data_only:
                left[counter] += 1
                one = replace(one, silent=True)
        found.append(one)
    return found


def _bumped_inputs(primals: Primals, written: set[int]) -> tuple[int, ...]:
    """The inputs whose version counters tell of a write though they are not among the `written`."""
    bumped = tuple(i for i, primal in primals.counted() if i not in written and primal.writes)
    for index in bumped:
        # Eager then takes views of it anew by strides, whose gradient is a mean over what
        # elements share.
        if primals.examples[index].requires_grad:
            refuse_inner_overlap(primals.examples[index], index)
    return bumped


# --- inputs that are views ------------------------------------------------------------------------
# A view that has a history gets another node in autograd's graph whenever its version counter tells
# of a write, or of a change of its shape: autograd takes it anew of its base, and leaves the old
# node to what was computed before. If autograd saw the write, the base has another node, too. A
# compiled graph knows one node of each input, that of before it runs. So such a write is left to
# eager: the graph is to end before it.

_TAKEN_ANEW = (
    "input {} is a view that autograd takes anew of its base after a write: gradients asked for at "
    "it, or at the base, would not be eager's"
)
_RETAINED = (
    "input {} retains its gradient, is written to and changes its shape in place: eager retains "
    "that of before the change"
)


def moved_inputs(
    primals: Primals,
    paths: Sequence[bool],
    mutated: Sequence[b.MutatedInput],
    reshaped: Sequence[b.ReshapedInput],
    infos: Sequence[b.OutputInfo],
) -> tuple[b.MovedInput, ...]:
    """The inputs of a trace that would get another node if they were such views; TraceError if one
    is. `paths` tell which autograd has a path to from an output."""
    graded = {m.index for m in mutated if not m.data_only}
    changed = {m.index for m in mutated if m.reshaped}
    viewed = {
        info.base
        for info in infos
        if info.kind is b.OutputKind.VIEW_OF_INPUT and info.requires_grad and not info.is_leaf
    }
    whatever_is_used = graded | {r.index for r in reshaped}
    found = []
    for index, primal in primals.counted():
        used = index in viewed or bool(paths and paths[index])
        example = primals.examples[index]
        if isinstance(example, torch.nn.Parameter):
            continue  # (of which types are guarded: never a view with a history)
        if index in whatever_is_used or (used and primal.writes):
            moved = b.MovedInput(index, index in graded, index in viewed, index in changed)
            if gets_another_node(moved, example):
                why = _TAKEN_ANEW if example._is_view() else _RETAINED
                raise refusal(why.format(index), _writer(primals, index))
            found.append(moved)
    return tuple(found)


def _writer(primals: Primals, index: int) -> str | None:
    """The captured graph's node that wrote first to what an input shares its counter with, or
    changed the input's shape."""
    tracer = primals.tracer
    reshaper = tracer.reshapers.get(id(primals[index].value))
    if reshaper is not None:
        return reshaper
    sharing = (index, *primals.sharing_counter(index))
    writers = [storage.writer for i in sharing if (storage := primals[i].storage) is not None]
    writers += [tracer.shape_changes.get(i) for i in sharing]
    return next((writer for writer in writers if writer is not None), None)


def gets_another_node(moved: b.MovedInput, value: torch.Tensor) -> bool:
    """Whether this input of a call is a view that the write gives a node of autograd's graph which
    no compiled graph knows. (One without a history has no old node. But where autograd sees the
    write, views of it that are older are taken of its base then, and not of it. What retains its
    gradient, is written to and changes its shape does so at the node between the two.)"""
    if moved.reshaped and value.retains_grad:
        return True
    if not value._is_view():
        return False
    return grad_fn_of(value) is not None or (moved.graded and moved.with_views)


def inputs_moved(moved: Sequence[b.MovedInput], inputs: Sequence[Any]) -> tuple[int, ...]:
    """Those inputs of a call that a compiled graph does not hold for."""
    found: tuple[int, ...] = ()
    for one in moved:
        if (one.reshaped or inputs[one.index]._is_view()) and gets_another_node(
            one, inputs[one.index]
        ):
            found = (*found, one.index)
    return found
