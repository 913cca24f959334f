"""Effects: what a frame changed of what existed before, and how it leaves torch's state."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch

from dovetail_capture import recipe as r
from dovetail_capture.interpreter.changes.messages import is_said_first
from dovetail_capture.interpreter.protocols import dicts
from dovetail_capture.interpreter.recipes.object_recipes import set_slot
from dovetail_capture.interpreter.recipes.rebuilder import Rebuilder
from dovetail_capture.interpreter.signals import CannotRebuild
from dovetail_capture.interpreter.values.base import Constant, Lazy
from dovetail_capture.interpreter.values.containers import DictValue, ListValue, SetValue
from dovetail_capture.interpreter.values.functions import CellValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.tensors import TensorValue


def changes(rebuilder: Rebuilder) -> None:
    """Effects for everything pre-existing that the frame changed."""
    session = rebuilder.vm.session
    for call in itertools.takewhile(partial(is_said_first, session), session.effects.calls):
        rebuilder.call_for_effect(call)
    for value in list(session.objects.known.values()):
        if isinstance(value, ListValue) and value.mutated:
            kind = value.cls.__name__ if value.read is None else "grown list"
            target = rebuilder.recipe(value)
            items = value.items if value.read is None else value.appended
            rebuilder.effects.append(r.ReplaceContents(target, kind, rebuilder.recipes(items)))
        elif isinstance(value, SetValue) and value.mutated:
            target = rebuilder.recipe(value)
            members = rebuilder.recipes(value.items.values())
            rebuilder.effects.append(r.ReplaceContents(target, value.cls.__name__, members))
        elif isinstance(value, DictValue) and value.mutated:
            rebuilder.change_dict(rebuilder.recipe(value), value)
        elif isinstance(value, CellValue) and value.mutated:
            content = None if value.content is None else rebuilder.recipe(value.content)
            rebuilder.effects.append(r.SetCell(rebuilder.recipe(value), content))
        elif isinstance(value, ObjectValue) and value.real is not None:
            _object_changes(rebuilder, value)
        elif isinstance(value, TensorValue):
            if value.data is not None:
                _new_data(rebuilder, value, value.data)
            for name, attribute in value.attributes.items():
                change = r.SetAttr(rebuilder.recipe(value), name, rebuilder.recipe(attribute))
                rebuilder.effects.append(change)
    for value, fields in session.effects.attribute_writes.values():
        for key, item in dicts.items(rebuilder.vm, fields):
            name = rebuilder.vm.as_python(key)
            rebuilder.effects.append(
                r.SetAttr(rebuilder.recipe(value), name, rebuilder.recipe(item))
            )
    for (dict_id, name), written in session.effects.global_writes.items():
        globals_ = r.Const(session.effects.global_dicts[dict_id])
        content = None if written is None else rebuilder.recipe(written)
        rebuilder.effects.append(r.SetGlobal(globals_, name, content))
    for write in session.effects.context_writes.values():
        setter = r.GetAttr(rebuilder.recipe(write.variable), "set")
        rebuilder.effects.append(
            r.RunCall(r.CallFunction(setter, (rebuilder.recipe(write.value),)))
        )
    for call in session.effects.calls:
        rebuilder.call_for_effect(call)


def _new_data(rebuilder: Rebuilder, value: TensorValue, data: TensorValue) -> None:
    """The memory that `value.data = ...` gave to a tensor, which keeps its version counter; where
    it was written to since, autograd is told."""
    target = rebuilder.recipe(value)
    rebuilder.effects.append(r.SetAttr(target, "data", rebuilder.recipe(data)))
    if data.fake._version:
        told = r.CallFunction(r.Const(torch.autograd.graph.increment_version), (target,))
        rebuilder.effects.append(r.RunCall(told))


def _object_changes(rebuilder: Rebuilder, value: ObjectValue) -> None:
    fields = value.fields
    if fields.mutated and fields.is_instance_dict and fields.holder is value:
        target = rebuilder.recipe(value)
        before = object.__getattribute__(value.real, "__dict__")
        left = _left(fields, before)
        for key in before:
            if key in left and key in fields.entries:
                rebuilder.effects.append(r.DelAttr(target, key, raw=True))  # it comes last now
        for key in list(fields.entries):
            item = fields.entries[key][1]
            if (isinstance(item, Lazy) or fields.read.get(key) is item) and key not in left:
                continue
            item = dicts.get(rebuilder.vm, fields, key)
            rebuilder.effects.append(r.SetAttr(target, key, rebuilder.recipe(item), raw=True))
        gone = fields.deleted if fields.origin is not None else set(before) - set(fields.entries)
        for key in gone:
            rebuilder.effects.append(r.DelAttr(target, key, raw=True))
    for name in sorted(value.slots_mutated):
        set_slot(rebuilder, value, rebuilder.recipe(value), name, value.slots[name])
    native = value.native
    if native is not None and getattr(native, "mutated", False):
        target = rebuilder.recipe(value)
        if isinstance(native, DictValue):
            rebuilder.change_dict(target, native)
        elif isinstance(native, ListValue):
            kind = native.cls.__name__
            rebuilder.effects.append(
                r.ReplaceContents(target, kind, rebuilder.recipes(native.items))
            )
        elif isinstance(native, SetValue):
            members = rebuilder.recipes(native.items.values())
            rebuilder.effects.append(r.ReplaceContents(target, native.cls.__name__, members))


def _left(fields: DictValue, before: dict[str, Any]) -> set[Any]:
    """The names of attributes that were deleted, those that are there again among them."""
    if any(how == "clear" for how, _ in fields.moves):
        return set(before)
    return {key.value for how, key in fields.moves if how != "put" and isinstance(key, Constant)}


def under_locks(rebuilder: Rebuilder) -> None:
    """Take the locks that the frame took before the changes, in its order; release them after."""
    for lock in reversed(rebuilder.vm.session.modes.locks):
        rebuilder.effects = [r.UnderLock(rebuilder.recipe(lock), tuple(rebuilder.effects))]


def modes(rebuilder: Rebuilder) -> None:
    """Blocks of autocast or inference mode that are open at a break: the graph leaves them,
    what follows is to find them entered, by the block's own context manager; likewise those of
    `error_on_graph_break`."""
    for mode in reversed(rebuilder.vm.session.modes.open_modes):
        rebuilder.vm.session.recorder.state_change(mode.leave, mode.node)
    for mode in rebuilder.vm.session.modes.open_modes:
        enter = r.GetAttr(rebuilder.recipe(mode.manager), "__enter__")
        rebuilder.effects.append(r.RunCall(r.CallFunction(enter)))
    for block, _ in rebuilder.vm.session.modes.error_blocks:
        enter = r.GetAttr(rebuilder.recipe(block), "__enter__")
        rebuilder.effects.append(r.RunCall(r.CallFunction(enter)))
    _function_modes(rebuilder)


def _function_modes(rebuilder: Rebuilder) -> None:
    """Leave torch's stack of function modes as the program does."""
    before, now = (
        rebuilder.vm.session.modes.first_function_modes,
        rebuilder.vm.session.modes.function_modes,
    )
    same = 0
    while same < min(len(before), len(now)) and before[same] is now[same]:
        same += 1
    for _ in before[same:]:
        call = r.CallFunction(r.Const(torch._C._pop_torch_function_stack))
        rebuilder.effects.append(r.RunCall(call))
    for mode in now[same:]:
        push: Any = torch._C._push_on_torch_function_stack
        rebuilder.effects.append(
            r.RunCall(r.CallFunction(r.Const(push), (rebuilder.recipe(mode),)))
        )


def settings(rebuilder: Rebuilder) -> None:
    """Leave torch's settings as the program does: the graph puts them back, so that what
    compiles it finds them as they were."""
    for setting, value in rebuilder.vm.session.effects.kernel_settings.after.items():
        write = r.Const(setting.in_program or setting.write)
        rebuilder.effects.append(r.RunCall(r.CallFunction(write, (r.Const(value),))))
    for setting, before in rebuilder.vm.session.effects.settings.items():
        if setting.obeyed_by_kernels:
            continue
        left = setting.read()
        if left != before:
            rebuilder.vm.session.recorder.state_change(setting.write, before)
            call = r.CallFunction(r.Const(setting.write), (r.Const(left),))
            rebuilder.effects.append(r.RunCall(call))


def grad_mode(rebuilder: Rebuilder, at_start: bool, at_end: bool) -> None:
    """Leave torch in the grad mode that the program has set."""
    if at_start != at_end:
        call = r.CallFunction(r.Const(torch._C._set_grad_enabled), (r.Const(at_end),))
        rebuilder.effects.append(r.RunCall(call))


def check_made_leaves(rebuilder: Rebuilder) -> None:
    """A compiler differentiates a graph for the inputs that require a gradient; if none does
    of those that the graph takes, what only requires_grad_() or `requires_grad=True` makes
    require one would come out without."""
    session = rebuilder.vm.session
    made = session.effects.made_leaves
    taken = [v for _, v in session.inputs.entries if isinstance(v, TensorValue) and v.node.users]
    if not made or any(value.fake.requires_grad for value in taken):
        return
    for node in rebuilder.outputs:
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor) and fake.requires_grad:
            raise CannotRebuild("what needs a gradient of a leaf made here", min(made.values()))
