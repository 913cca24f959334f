"""Recipes of objects made in the frame: instances of classes (exceptions too), and iterators; and
of what the graph gives: tensors, leaves, and numbers over sizes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import os
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from dovetail_guards.expr import Expr
from dovetail_guards.shape_env import DataDependentError
from dovetail_guards.sym_node import expr_of
from dovetail_prims.wrappers import is_wrapper_type
from torch.fx import Node
from torch.utils import _pytree as pytree

from dovetail_capture import rebuild
from dovetail_capture import recipe as r
from dovetail_capture.interpreter.graph.fake_runs import as_inference
from dovetail_capture.interpreter.protocols import dicts, truth_and_length
from dovetail_capture.interpreter.protocols.weak_targets import is_proxy
from dovetail_capture.interpreter.signals import CannotRebuild, InnerTensor
from dovetail_capture.interpreter.values import containers, functions
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.computed_sources import as_class
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.recipes.rebuilder import Rebuilder
    from dovetail_capture.interpreter.session.session import Session


_OWN_FILES = os.path.dirname(os.path.abspath(rebuild.__file__)) + os.sep
# Exceptions that have fields besides `args`, which C code sets.
_WITH_FIELDS = (StopIteration, SystemExit, ImportError, OSError, SyntaxError, UnicodeError)


def object_recipe(rebuilder: Rebuilder, item: ObjectValue) -> r.Recipe:
    """A new instance; its contents and attributes are effects, so that it may be in them."""
    made_class = rebuilder.made_class(item.cls)
    if made_class is not None and isinstance(item.native, containers.TupleValue):
        parts = r.Build("tuple", rebuilder.recipes(item.native.items))
        return r.CallFunction(r.Const(tuple.__new__), (made_class, parts))
    rebuilder.check_lasts(item.cls)
    if item.base_new is functools.partial:
        return _partial(rebuilder, item)
    if item.base_new is types.MappingProxyType:
        mapping = rebuilder.recipe(item.slots["mapping"])
        return r.CallFunction(r.Const(types.MappingProxyType), (mapping,))
    if item.base_new is weakref.ReferenceType or is_proxy(item.base_new):
        target = rebuilder.recipe(item.slots["target"])
        make = weakref.proxy if is_proxy(item.base_new) else weakref.ref
        return r.CallFunction(r.Const(make), (target,))
    native = item.native
    args: tuple[r.Recipe, ...] = ()
    if isinstance(native, containers.TupleValue):
        args = (r.Build("tuple", rebuilder.recipes(native.items)),)
    elif issubclass(item.cls, BaseException):
        found = item.slots.get("args")
        args = rebuilder.recipes(found.items) if isinstance(found, containers.TupleValue) else ()
    new = rebuilder.remember(item, _new(item, args))
    if issubclass(item.cls, _WITH_FIELDS):
        base = next(base for base in item.cls.__mro__ if base.__module__ == "builtins")
        init = r.CallFunction(r.Const(base.__init__), (new, *args))  # type: ignore[misc]
        rebuilder.effects.append(r.RunCall(init))
    if isinstance(native, containers.ListValue):
        rebuilder.effects.append(r.ReplaceContents(new, "list", rebuilder.recipes(native.items)))
    elif isinstance(native, containers.SetValue):
        rebuilder.effects.append(
            r.ReplaceContents(new, "set", rebuilder.recipes(native.items.values()))
        )
    elif isinstance(native, containers.DictValue):
        rebuilder.fill_dict(new, native)
    _set_attributes(rebuilder, item, new)
    made = ("args", "value") if issubclass(item.cls, BaseException) else ()
    for name, slot in item.slots.items():
        if name not in made and not _is_own_traceback(item, slot):
            set_slot(rebuilder, item, new, name, slot)
    return new


def _partial(rebuilder: Rebuilder, item: ObjectValue) -> r.Recipe:
    """A partial, of a subclass maybe, and the attributes that were set on it."""
    function, args, keywords = (item.slots[n] for n in ("func", "args", "keywords"))
    assert isinstance(args, containers.TupleValue) and isinstance(keywords, containers.DictValue)
    new = r.CallFunction(
        r.Const(functools.partial.__new__),
        (r.Const(item.cls), rebuilder.recipe(function), *rebuilder.recipes(args.items)),
        tuple(
            (rebuilder.vm.as_python(key), rebuilder.recipe(value))
            for key, value in dicts.items(rebuilder.vm, keywords)
        ),
    )
    rebuilder.remember(item, new)
    _set_attributes(rebuilder, item, new)
    return new


def _set_attributes(rebuilder: Rebuilder, item: ObjectValue, target: r.Recipe) -> None:
    """Write the instance's `__dict__`."""
    for key, value in dicts.materialise(rebuilder.vm, item.fields).values():
        name = rebuilder.vm.as_python(key)
        rebuilder.effects.append(r.SetAttr(target, name, rebuilder.recipe(value), raw=True))


def set_slot(
    rebuilder: Rebuilder, item: ObjectValue, target: r.Recipe, name: str, slot: Value
) -> None:
    """Write a `__slots__` member, or a C field of an exception."""
    if issubclass(item.cls, BaseException):
        parts = (target, r.Const(name), rebuilder.recipe(slot))
        rebuilder.effects.append(r.RunCall(r.CallFunction(r.Const(object.__setattr__), parts)))
    else:
        raw = not issubclass(item.cls, torch._C._FunctionBase)  # its fields are C functions
        rebuilder.effects.append(r.SetAttr(target, name, rebuilder.recipe(slot), raw=raw))


def _new(item: ObjectValue, args: tuple[r.Recipe, ...]) -> r.Recipe:
    """A new object with the parts that its class's `__new__` takes."""
    new = r.NewObject(item.cls, item.base_new, args)
    traceback = item.slots.get("__traceback__")
    if not isinstance(traceback, functions.TracebackValue) or traceback.error is not item:
        return new
    passed = traceback.places[traceback.first :]
    places = tuple(
        rebuild.place_of_error(code, offset)
        for code, offset in passed
        if not code.co_filename.startswith(_OWN_FILES)  # C code, said in Python by us
    )
    return r.CallFunction(r.Const(rebuild.with_traceback), (new, r.Const(places)))


def _is_own_traceback(item: ObjectValue, slot: Value) -> bool:
    """Is it the traceback of this very exception? It is rebuilt together with it."""
    return isinstance(slot, functions.TracebackValue) and slot.error is item


def native_method_recipe(rebuilder: Rebuilder, item: functions.NativeMethod) -> r.Recipe:
    """A C method bound to its receiver: by name, unless (through `super`) another has it."""
    receiver, bind = item.receiver, r.Const(item.descriptor.__get__)
    if isinstance(receiver, Constant) and isinstance(receiver.value, type):
        cls = receiver.value
        if isinstance(item.descriptor, types.ClassMethodDescriptorType):
            if inspect.getattr_static(cls, item.name, None) is item.descriptor:
                return r.GetAttr(rebuilder.recipe(receiver), item.name)
            return r.CallFunction(bind, (r.Const(None), r.Const(cls)))
        # A method of its metaclass: its name may be one of the class's own.
        return r.CallFunction(bind, (rebuilder.recipe(receiver), r.Const(type(cls))))
    cls = receiver.python_type()
    by_name = not isinstance(receiver, ObjectValue)
    if by_name or inspect.getattr_static(cls, item.name, None) is item.descriptor:
        return r.GetAttr(rebuilder.recipe(receiver), item.name)
    return r.CallFunction(bind, (rebuilder.recipe(receiver), r.Const(cls)))


def iterator_recipe(rebuilder: Rebuilder, item: functions.IteratorValue) -> r.Recipe:
    """What is left of an iterator, over the same container or of the same parts."""
    over = item.over[0] if item.plain and item.over else None
    if isinstance(over, Constant) and type(over.value) in (range, str, bytes):
        # Of a range only its ends are written down: it may be long.
        left = over.value[:0] if item.ended else over.value[item.taken :]
        return r.CallFunction(r.Const(iter), (r.Const(left),))
    if item.plain or item.ended or item.over is None:
        rest = r.Build("tuple", () if item.ended else rebuilder.recipes(list(item.iterator)))
        return r.CallFunction(r.Const(iter), (rest,))
    if item.cls is enumerate:
        iterator, start = item.over
        count = r.Const(rebuilder.vm.as_python(start) + item.taken)
        return r.CallFunction(r.Const(enumerate), (rebuilder.recipe(iterator), count))
    new = r.CallFunction(r.Const(item.remake), rebuilder.recipes(item.over))
    if item.size is None:
        return new
    container = rebuilder.vm.native(item.over[0])
    if isinstance(container, containers.DictView):
        container = rebuilder.vm.native(container.dictionary)
    if isinstance(container, containers.ListValue) and container.cls is list:
        place = item.taken if item.remake is iter else item.size - 1 - item.taken
    elif truth_and_length.length(rebuilder.vm, container) == item.size and _as_begun(
        rebuilder, item, container
    ):
        place = item.taken
    else:
        raise CannotRebuild(f"{item.describe()}, whose container has changed,", item.born)
    found = r.CallFunction(r.Const(rebuild.go_on), (new, r.Const(place)))
    if isinstance(container, containers.SetValue):  # one made anew may have another order
        assert item.members is not None
        left = r.Build("tuple", rebuilder.recipes(member for _, member in item.members[place:]))
        parts = (rebuilder.recipe(item.over[0]), left, r.Const(item.size))
        found = r.CallFunction(r.Const(rebuild.rest_of_set), parts)
    if item.over[0].source is not None or container is not item.over[0]:
        rebuilder.at_places.append((found, item))
    return found


def _as_begun(rebuilder: Rebuilder, item: functions.IteratorValue, container: Value) -> bool:
    """Has the container that an iterator goes through the members of when it began?"""
    if (
        isinstance(container, (containers.DictValue, containers.ListValue, containers.SetValue))
        and container.left != item.left
    ):
        return False
    keys = [key for key, _ in item.members or ()]
    if isinstance(container, containers.DictValue):
        return list(dicts.materialise(rebuilder.vm, container)) == keys
    return not isinstance(container, containers.SetValue) or container.items.keys() == set(keys)


def replay_steps(rebuilder: Rebuilder) -> None:
    """The steps of iterators that existed before come first: no change is seen by them."""
    rebuilder.effects[:0] = [
        r.RunCall(r.CallFunction(r.Const(rebuild.advance), (rebuilder.recipe(it), r.Const(count))))
        for it, count in rebuilder.vm.session.iterators.steps
    ]


def check_iterators(rebuilder: Rebuilder) -> None:
    """An iterator over what existed before goes on where it is once all changes are made: no
    effect may need it before."""
    uses: dict[int, int] = {}
    if rebuilder.at_places:
        r.below(rebuilder.effects, uses)
    for found, item in rebuilder.at_places:
        if id(found) in uses:
            raise CannotRebuild(f"{item.describe()}, kept in what existed before,", item.born)


def tensor_recipe(rebuilder: Rebuilder, item: TensorValue) -> r.Recipe:
    """The recipe of a tensor that the graph gives."""
    if not rebuilder.vm.session.recorder.owns(item.node):
        raise InnerTensor
    if item.cls is torch.nn.Parameter:
        return _leaf(rebuilder, item, torch.nn.Parameter)
    for hooked in rebuilder.vm.session.effects.hooks:
        if hooked.tensor is item:
            hooked.refuse(hooked.kind)
    if id(item) in rebuilder.vm.session.effects.made_leaves:
        return _leaf(rebuilder, item, torch.Tensor.requires_grad_)
    position = rebuilder.positions.get(item.node)
    if position is None:
        position = rebuilder.positions[item.node] = len(rebuilder.outputs)
        rebuilder.outputs.append(item.node)
    given: r.Recipe = r.GraphOutput(position)
    if item.cls is not torch.Tensor and not is_wrapper_type(item.cls):
        given = r.CallFunction(r.Const(as_class), (given, r.Const(item.cls)))
    if item.inference and not torch.is_inference_mode_enabled():
        if item.cls is not torch.Tensor:
            raise CannotRebuild(f"an inference tensor of class {item.cls.__name__}")
        given = r.CallFunction(r.Const(as_inference), (given,))
    new = rebuilder.remember(item, given)
    for name, value in item.attributes.items():
        if name not in item.rebuilt:
            rebuilder.effects.append(r.SetAttr(new, name, rebuilder.recipe(value)))
    return new


def _leaf(rebuilder: Rebuilder, item: TensorValue, make: Callable[..., Any]) -> r.Recipe:
    """A parameter made in the frame (a copy of one), or what `requires_grad_()` made a leaf: of
    what the graph gives, a leaf is made. What has been computed from it would not know that
    leaf."""
    wanted = item.fake.requires_grad
    if wanted:
        nodes = [item.node, *rebuilder.vm.session.effects.left_nodes.get(id(item), ())]
        for user in (user for node in nodes for user in node.users):
            made = pytree.tree_leaves(user.meta.get("val"))
            if any(
                (isinstance(part, torch.Tensor) and part.requires_grad) and part is not item.fake
                for part in made
            ):
                born = rebuilder.vm.session.effects.made_leaves[id(item)]
                raise CannotRebuild("a leaf made here, and what is computed with it", born)
    recorder = rebuilder.vm.session.recorder
    node = recorder.graph.call_method("detach", (item.node,))
    with recorder.fake_mode:
        node.meta["val"] = item.fake.detach()
    rebuilder.outputs.append(node)
    output = r.GraphOutput(len(rebuilder.outputs) - 1)
    new = rebuilder.remember(item, r.CallFunction(r.Const(make), (output, r.Const(wanted))))
    for name, value in item.attributes.items():
        rebuilder.effects.append(r.SetAttr(new, name, rebuilder.recipe(value)))
    return new


def number_recipe(rebuilder: Rebuilder, item: SymbolicNumber) -> r.Recipe:
    """A number over sizes is computed by the graph (a truth value is decided here)."""
    if isinstance(item.value, torch.SymBool) and item.value.node.hint is not None:
        with contextlib.suppress(DataDependentError):  # of a size that is marked unbacked
            return r.Const(item.concrete())
    recorder = rebuilder.vm.session.recorder
    if isinstance(item.value, torch.SymInt) and not rebuilder.vm.session.exports:
        beside = _sum(rebuilder.vm.session, expr_of(item.value))
        if beside is not None:
            return beside
    try:
        node = recorder.sizes.node(item.value)
    except NotImplementedError as error:
        raise CannotRebuild(str(error)) from None
    if not isinstance(node, Node):
        return r.Const(node)
    position = rebuilder.positions.get(node)
    if position is None:
        position = rebuilder.positions[node] = len(rebuilder.outputs)
        rebuilder.outputs.append(node)
        recorder.operations += 1
    return r.GraphOutput(position)


def _sum(session: Session, expr: Expr) -> r.Recipe | None:
    """A sum of ints that the frame reads, such as a counter's next number: Python computes it
    beside the graph. None for any other number."""
    total = None
    for monomial, factor in expr.terms:
        part: r.Recipe = r.Const(factor)
        if monomial:
            ((atom, power), *others) = monomial
            source = session.shapes.env.sources.get(atom.name)
            if others or power != 1 or atom.kind != "sym" or source not in session.inputs.numbers:
                return None
            part = r.Fetch(source)
            if factor != 1:
                part = r.CallFunction(r.Const(operator.mul), (part, r.Const(factor)))
        total = part if total is None else r.CallFunction(r.Const(operator.add), (total, part))
    return total
