"""What a trace changed of its inputs: writes, other shapes, version counters; what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.node_error import blame

from dovetail_autograd_aot.boundary import (
    MutatedInput,
    OutputKind,
    ReshapedInput,
    SharedStorage,
    ViewOf,
    ViewStep,
)
from dovetail_autograd_aot.graph.op_info import CHANGES_OF_SHAPE
from dovetail_autograd_aot.outputs.output_aliasing import Classified
from dovetail_autograd_aot.trace.autograd_queries import grad_flags, grad_fn_of
from dovetail_autograd_aot.trace.input_storages import (
    lies_on_itself,
    memory_overlaps,
    refuse_graded_relatives,
    refuse_inner_overlap,
    shared_storage,
    storage_key,
)
from dovetail_autograd_aot.trace.storage import (
    StorageNeededError,
    TracedStorage,
    TraceError,
    refusal,
    track_of,
)

if TYPE_CHECKING:
    from dovetail_autograd_aot.joint.joint_trace import JointTrace

aten = torch.ops.aten


def shared_storages(trace: JointTrace, by_storage: list[int]) -> list[SharedStorage]:
    """The storages that are inputs: those of the inputs numbered in `by_storage`, each once."""
    found: dict[int, SharedStorage] = {}
    for index in by_storage:
        key = storage_key(trace.examples[index])
        members = list(trace.in_storage[key])
        # The one that asked comes first: its version counter is bumped by writes.
        members.sort(key=lambda i: i != index)
        found.setdefault(key, shared_storage(members, trace.examples))
    return list(found.values())


def mutated_inputs(trace: JointTrace) -> list[MutatedInput]:
    """The inputs that the graph wrote to; TraceError or StorageNeededError for writes that
    compiled code could not repeat."""
    mutated = []
    for index, primal in enumerate(trace.primals):
        if trace.leaves[index] is None:
            continue
        storage = trace.homes[index]
        if storage.version == 0 and not _has_new_history(trace, index, primal):
            continue
        try:
            found = _mutated(trace, index, primal, storage)
        except TraceError as error:
            writer = storage.writer or storage.rewriter
            if writer is not None:
                blame(error, writer)
            raise
        if found is not None:
            mutated.append(found)
    return _told_no_more_than(trace, mutated)


def _has_new_history(trace: JointTrace, index: int, primal: FakeTensor) -> bool:
    """Whether autograd saw a write to an input that left it as it was (`conj_physical_` of real
    numbers does)."""
    node = grad_fn_of(primal)
    if node is None or node is trace.grad_fns[index]:
        return False
    if not trace.tracer.reshaped.get(id(primal)):
        return True
    # A change of shape gives it a history, too; but its counter tells of one write only.
    sharing = [i for i, c in trace.counter_of.items() if c == trace.counter_of.get(index)]
    steps = sum(len(trace.tracer.reshaped.get(id(trace.primals[i]), ())) for i in sharing)
    return index in trace.versions and _writes_told(trace, index) > steps


def _mutated(
    trace: JointTrace, index: int, primal: FakeTensor, storage: TracedStorage
) -> MutatedInput | None:
    """How an input of a storage that was written to changes; None if its storage tells."""
    found = None
    # Autograd saw the write if it moved the input to another place in its graph.
    graded = primal.grad_fn is not trace.grad_fns[index]
    if storage.primal == index:
        if not storage.shared:
            _need_storage_if_on_itself(trace, index, storage.writer)
            _need_storage_if_overlapped(trace, index, storage.writer)
            if graded:
                # Those that had a history before get the same gradients from that one.
                siblings = trace.in_storage[storage_key(trace.examples[index])]
                tensors = [trace.examples[i] for i in siblings]
                without = [t for t in tensors if not t.requires_grad]
                refuse_graded_relatives(trace.examples[index], without, index)
        else:
            for i in trace.storages[index - trace.num_examples].members:
                if trace.examples[i].requires_grad:
                    refuse_inner_overlap(trace.examples[i], i)
        silent = not graded and index in trace.versions and not _tells(trace, index)
        found = MutatedInput(index, not graded, silent, grown=_grown(trace, storage))
    elif graded:
        members = trace.storages[trace.base_of[index] - trace.num_examples].members
        others = [trace.examples[i] for i in members]
        refuse_graded_relatives(trace.examples[index], others, index)
        found = MutatedInput(index, data_only=False)
    steps = trace.tracer.reshaped.get(id(primal), ())
    if graded and steps and found is not None:
        why = ""
        if any(step.op not in CHANGES_OF_SHAPE for step, _ in steps):
            why = "changes in place where it lies"
        elif not all(grad_mode for _, grad_mode in steps):
            why = "changes its shape in place under no_grad"
        if why:
            why = f"input {index} requires grad, is written to and {why}"
            raise refusal(why, trace.tracer.reshapers[id(primal)])
        found = replace(found, reshaped=True)
    return found


def _grown(trace: JointTrace, storage: TracedStorage) -> int | None:
    """How many elements a storage that is an input has in the end, if that are more than before."""
    if not storage.grown:
        return None
    assert storage.root is not None and storage.primal is not None
    member = trace.storages[storage.primal - trace.num_examples].members[0]
    if not trace.examples[member].untyped_storage().resizable():
        raise TraceError(f"input {member} is to have more elements than its memory, which is fixed")
    return int(storage.root._sizes[0])


def _need_storage_if_on_itself(trace: JointTrace, index: int, writer: str | None) -> None:
    """StorageNeededError if several elements of an input that is written to are one."""
    example = trace.examples[index]
    if example.requires_grad or grad_flags(trace.primals[index])[0]:
        refuse_inner_overlap(example, index)
    elif lies_on_itself([int(n) for n in example.shape], [int(s) for s in example.stride()]):
        raise StorageNeededError(index, writer)


def _need_storage_if_overlapped(trace: JointTrace, index: int, writer: str | None) -> None:
    """StorageNeededError if an input that is written to shares elements with another; that it
    does not is noted in `apart`, to be checked at each call."""
    example = trace.examples[index]
    for number in trace.in_storage[storage_key(example)]:
        other = trace.examples[number]
        if other is example:
            continue
        if memory_overlaps(example, other):
            raise StorageNeededError(index, writer)
        trace.apart.append((index, number))


def set_inputs(trace: JointTrace) -> tuple[int, ...]:
    """The inputs that were `set_`: whatever they were before, they become aliases in the end."""
    found = []
    for index, primal in enumerate(trace.primals):
        if trace.leaves[index] is None or id(primal) not in trace.tracer.set_inputs:
            continue
        why = ""
        if trace.examples[index].requires_grad or grad_flags(primal)[0]:
            why = f"set_ of input {index}, which requires grad"
        elif trace.wrapping is not None:
            why = f"set_ of input {index} beside tensor subclasses"
        if why:
            raise refusal(why, trace.tracer.set_inputs[id(primal)])
        found.append(index)
    return tuple(found)


def reshaped_inputs(trace: JointTrace) -> tuple[ReshapedInput, ...]:
    """The inputs that became other views of themselves."""
    found = []
    for index, primal in enumerate(trace.primals):
        if trace.leaves[index] is None or id(primal) in trace.tracer.set_inputs:
            continue
        steps = list(trace.tracer.reshaped.get(id(primal), ()))
        example = trace.examples[index]
        if example.requires_grad and not grad_flags(primal)[0]:
            steps.insert(0, (ViewStep(aten.detach_.default, ()), True))
        elif steps and example.requires_grad and example.is_leaf:
            why = f"input {index} is a leaf that requires grad and is reshaped"
            raise refusal(why, trace.tracer.reshapers[id(primal)])
        if steps:
            found.append(ReshapedInput(index, *zip(*steps, strict=True)))
    return tuple(found)


def refuse_graded_writes(trace: JointTrace) -> None:
    """Autograd replays views where their base or they are written to, but not the changes of
    their shape, and as_strided as if their base began where its storage does."""
    for tensor, why, writer in trace.tracer.written_without_gradients:
        base: Any = tensor._base
        if grad_flags(tensor)[0] or (base is not None and grad_flags(base)[0]):
            raise refusal(why, writer)


def take_views_of_reshaped(
    trace: JointTrace, result: Classified, reshaped: Sequence[ReshapedInput]
) -> None:
    """Let the views of an input that has a history and changes its shape be taken after that, with
    the steps that are left then: its gradient goes by way of the input in its new shape. One that
    was taken before is refused: autograd takes it again by strides."""
    for number, info in enumerate(result.infos):
        if info.kind is not OutputKind.VIEW_OF_INPUT or info.is_leaf or not info.requires_grad:
            continue
        base = info.base
        assert base is not None
        primal = trace.primals[base]
        if base not in {r.index for r in reshaped} or grad_fn_of(primal) is None:
            continue
        before = trace.chains.get(base, ())
        changes = track_of(primal).chain[len(before) :]
        assert isinstance(info.step, ViewOf)
        if info.view[: len(changes)] != changes or info.step.detached is not None:
            why = f"input {base} changes its shape in place, and a view of before that is returned"
            raise refusal(why, trace.tracer.reshapers[id(primal)])
        later = replace(info.step, view=info.view[len(changes) :], of_reshaped=True)
        result.infos[number] = replace(info, step=later)


def refuse_untracked_views(trace: JointTrace, result: Classified) -> None:
    """A view that is taken under no_grad of an input that changes its shape: eager takes it
    after the change, and autograd refuses it if it was taken before."""
    for info in result.infos:
        if info.kind is not OutputKind.VIEW_OF_INPUT or info.base is None:
            continue
        untracked = info.requires_grad and not all(s.grad_mode for s in info.view)
        number = id(trace.primals[info.base])
        if untracked and number in trace.tracer.reshapers:
            why = (
                f"input {info.base} requires grad, changes its shape in place, and a view of "
                "it that is taken under no_grad is returned"
            )
            raise refusal(why, trace.tracer.reshapers[number])


def _tells(trace: JointTrace, index: int) -> bool:
    """Whether an input's version counter tells of a write."""
    return index in trace.versions and _writes_told(trace, index) != 0


def counted_writes(
    trace: JointTrace, mutated: list[MutatedInput], reshaped: Sequence[ReshapedInput]
) -> tuple[tuple[int, int], ...]:
    """For inputs whose version counters tell of writes besides those of new values, how many: the
    first of those that share a counter. A change of shape is one."""
    new_values = Counter(
        trace.counter_of[m.index] for m in mutated if not m.silent and m.index in trace.counter_of
    )
    found = []
    for index in dict.fromkeys(trace.counter_of.values()):
        count = _writes_told(trace, index) - new_values[index]
        if count > 0:
            found.append((index, count))
    for change in reshaped:
        told = _tells(trace, change.index)
        if not told and any(step.op is not aten.detach_.default for step in change.steps):
            found.append((change.index, 1))
    return tuple(found)


def _writes_told(trace: JointTrace, index: int) -> int:
    """How many writes an input's version counter tells of."""
    return int(trace.primals[index]._version) - trace.versions[index]


def counted_inputs(trace: JointTrace, mutated: list[MutatedInput]) -> tuple[int, ...]:
    """The inputs with the version counter of one that gets a new value, but which get none."""
    new_values = {m.index: trace.counter_of.get(m.index) for m in mutated if not m.silent}
    written = set(new_values.values())
    return tuple(i for i, c in trace.counter_of.items() if c in written and i not in new_values)


def _told_no_more_than(trace: JointTrace, mutated: list[MutatedInput]) -> list[MutatedInput]:
    """With those silent whose new values would be more writes than a counter that inputs share
    tells of: some were written behind it."""
    left = {index: _writes_told(trace, index) for index in trace.counter_of.values()}
    found = []
    for one in mutated:
        counter = trace.counter_of.get(one.index)
        if counter is not None and not one.silent:
            left[counter] -= 1
            if left[counter] < 0 and one.data_only:
                left[counter] += 1
                one = replace(one, silent=True)
        found.append(one)
    return found


def bumped_inputs(trace: JointTrace, mutated: list[MutatedInput]) -> tuple[int, ...]:
    """The inputs whose version counters tell of a write though none of them is in `mutated`."""
    written = {m.index for m in mutated}
    bumped = tuple(i for i in trace.versions if i not in written and _tells(trace, i))
    for index in bumped:
        # Eager then takes views of it anew by strides, whose gradient is a mean over what
        # elements share.
        if trace.examples[index].requires_grad:
            refuse_inner_overlap(trace.examples[index], index)
    return bumped
