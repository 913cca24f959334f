"""From the values alive at the end of a capture to recipes. (Of changes: `effects`.)"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import os
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from dovetail_guards.shape_env import DataDependentError
from dovetail_guards.source import ObjectSource, Source
from dovetail_prims.wrappers import is_wrapper_type
from torch.fx import Node
from torch.utils import _pytree as pytree

from dovetail_capture import rebuild
from dovetail_capture import recipe as r
from dovetail_capture._frame_hook import Switched
from dovetail_capture.interpreter import cached_calls
from dovetail_capture.interpreter.late_reads import state_of
from dovetail_capture.interpreter.machine import Interpreter
from dovetail_capture.interpreter.protocols import dicts, truth_and_length
from dovetail_capture.interpreter.session import CallForEffect
from dovetail_capture.interpreter.signals import CannotRebuild, InnerTensor
from dovetail_capture.interpreter.values.arrays import ArrayValue
from dovetail_capture.interpreter.values.base import Constant, Lazy, Value
from dovetail_capture.interpreter.values.checks import TruthOf
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    DictView,
    ListValue,
    MemoValue,
    SetValue,
    SliceValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.functions import (
    BoundMethod,
    CellValue,
    FunctionValue,
    GeneratorValue,
    HandleValue,
    IteratorValue,
    NativeMethod,
    SuperValue,
    TracebackValue,
    TransformValue,
)
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.plain import as_class
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue
from dovetail_capture.interpreter.values.texts import LateText

_OWN_FILES = os.path.dirname(os.path.abspath(rebuild.__file__)) + os.sep
# Exceptions that have fields besides `args`, which C code sets.
_WITH_FIELDS = (StopIteration, SystemExit, ImportError, OSError, SyntaxError, UnicodeError)


class Rebuilder:
    """Writes recipes. `outputs` are the graph nodes that the recipes use, in output order;
    `effects` are what must be replayed after the graph."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.outputs: list[Node] = []
        self.effects: list[r.Effect] = []
        self._made: dict[int, r.Recipe] = {}
        self._open: set[int] = set()
        self._keep_alive: list[Value] = []
        self._positions: dict[Node, int] = {}
        self._at_places: list[tuple[r.Recipe, IteratorValue]] = []
        self._called: dict[int, r.Recipe] = {}
        self._calls = False  # is the recipe of a call for its effect being made?

    # --- values --------------------------------------------------------------------------------

    def recipe(self, item: Any) -> r.Recipe:
        """The recipe of a value (one recipe per object, so that identity survives)."""
        if isinstance(item, Lazy):
            return self._fetch_lazy(item)
        made = self._made.get(id(item))
        if made is not None:
            return made
        if id(item) in self._open:
            return self._cycle(item)
        self._open.add(id(item))
        self._keep_alive.append(item)
        new = self._make(item)
        self._open.discard(id(item))
        early = self._made.get(id(item))
        if early is not None and early is not new:  # a cycle went through this container
            assert isinstance(new, r.Build)
            self.effects.append(r.ReplaceContents(early, new.kind, new.items))
            return early
        self._made[id(item)] = new
        return new

    def _fetch_lazy(self, item: Lazy) -> r.Recipe:
        known = self.vm.session.known.get(id(item.real))
        if known is not None and known.source is item.source:
            return self.recipe(known)
        made = self._made.get(id(item.source))
        if made is None:
            self._check_lasts(item.real)
            self._check_source(item.source)
            made = self._made[id(item.source)] = r.Fetch(item.source)
        return made

    def _check_lasts(self, real: Any) -> None:
        """Refuse a class that was made for this capture only, and what belongs to it."""
        born = self.vm.session.stand_ins.get(id(real))
        if born is not None:
            name = getattr(real, "__qualname__", type(real).__name__)
            raise CannotRebuild(f"{name}, made in the frame,", born)

    def _check_source(self, source: Source) -> None:
        if self.vm.session.stand_ins:
            while not isinstance(source, ObjectSource):
                base = getattr(source, "base", None)
                if base is None:
                    return
                source = base
            self._check_lasts(source.obj)

    def _cycle(self, item: Value) -> r.Recipe:
        if isinstance(item, (ListValue, DictValue, SetValue)) and item.python_type() in (
            list, dict, set,
        ):  # fmt: skip
            new = self._made[id(item)] = r.NewEmpty(item.python_type().__name__)
            return new
        raise CannotRebuild(f"{item.describe()} that contains itself")

    def _remember(self, item: Value, new: r.Recipe) -> r.Recipe:
        """Make `new` the recipe before the parts are visited, so that cycles find it."""
        self._made[id(item)] = new
        return new

    def _set(self, item: SetValue) -> r.Recipe:
        """Made of its members one by one, or as a copy, if only so they come in the same order."""
        keys, added = [key for key, _ in item.in_order()], set[Any]()
        for key in item.items:
            added.add(key)
        if keys != list(added) and all(isinstance(v, Constant) for v in item.items.values()):
            whole = frozenset(item.table())
            if keys == list(set(whole)):
                return r.CallFunction(r.Const(item.cls), (r.Const(whole),))
        return r.Build(item.cls.__name__, self.recipes(item.items.values()))

    def recipes(self, items: Iterable[Any]) -> tuple[r.Recipe, ...]:
        """Those of several values, in order."""
        return tuple(self.recipe(item) for item in items)

    def _make(self, item: Value) -> r.Recipe:
        if isinstance(item, LateText):
            parts = self.recipes(item.parts)
            return r.CallFunction(r.Const(item.template.format), parts)
        if isinstance(item, Constant):
            self._check_lasts(item.value)
            return r.Const(item.value)
        source = item.source
        if isinstance(item, DictValue) and item.is_instance_dict:
            return r.GetAttr(self.recipe(item.holder), "__dict__")
        if isinstance(item, TensorValue) and source is None:
            return self._tensor(item)
        if isinstance(item, SymbolicNumber) and source is None:
            if isinstance(item, TruthOf) and self.vm.session.recorder.data_env is None:
                if item.known is None:
                    raise CannotRebuild(item.describe(), item.born)
                return r.Const(item.known)
            return self._number(item)
        if source is not None:
            self._check_source(source)
            if isinstance(source, ObjectSource):
                return r.Const(source.obj)
            return r.Fetch(source)
        if isinstance(item, ArrayValue):
            array = r.CallFunction(r.Const(rebuild.as_array), (self.recipe(item.tensor),))
            empty = r.Build("tuple", ())
            return (
                r.CallFunction(r.GetAttr(array, "__getitem__"), (empty,))
                if item.is_scalar
                else array
            )
        if isinstance(item, TupleValue):
            built = r.Build("tuple", self.recipes(item.items))
            return built if item.cls is tuple else r.CallFunction(r.Const(item.cls), (built,))
        if isinstance(item, ListValue):
            built = r.Build("list", self.recipes(item.items))
            if item.cls is list:
                return built
            return r.CallFunction(r.Const(item.cls), (built, r.Const(item.maxlen)))
        if isinstance(item, MemoValue):
            raise CannotRebuild(item.describe(), item.born)
        if isinstance(item, DictValue):
            return self._dict(item)
        if isinstance(item, SetValue):
            return self._set(item)
        if isinstance(item, SliceValue):
            return r.Build("slice", self.recipes((item.start, item.stop, item.step)))
        if isinstance(item, ObjectValue):
            return self._object(item)
        if isinstance(item, BoundMethod):
            parts = (self.recipe(item.function), self.recipe(item.receiver))
            return r.CallFunction(r.Const(types.MethodType), parts)
        if isinstance(item, NativeMethod):
            return self._native_method(item)
        if isinstance(item, SuperValue):
            self._check_lasts(item.cls)
            return r.CallFunction(r.Const(super), (r.Const(item.cls), self.recipe(item.receiver)))
        if isinstance(item, DictView):
            return r.CallFunction(r.GetAttr(self.recipe(item.dictionary), item.kind))
        if isinstance(item, TracebackValue):
            return r.GetAttr(self.recipe(item.error), "__traceback__")
        if isinstance(item, CellValue):
            return self._cell(item)
        if isinstance(item, FunctionValue):
            return self._function(item)
        if isinstance(item, TransformValue) and item.inner is None:
            options = tuple((name, r.Const(option)) for name, option in item.options.items())
            transform = r.Const(item.transform)
            return r.CallFunction(transform, (self.recipe(item.function),), options)
        if isinstance(item, IteratorValue) and (item.plain or item.over is not None):
            return self._iterator(item)
        if isinstance(item, GeneratorValue) and item.finished:
            return r.CallFunction(r.Const(rebuild.ended_generator), (r.Const(item.frame.code),))
        if isinstance(item, HandleValue) and item.late is not None and not item.removed:
            if self._calls:
                raise CannotRebuild(f"{item.describe()} which a hook keeps", item.born)
            return self.call_for_effect(item.late)
        made = isinstance(item, (IteratorValue, GeneratorValue, TransformValue, HandleValue))
        born = item.born if made else 0  # type: ignore[attr-defined]
        raise CannotRebuild(item.describe(), born)

    def call_for_effect(self, wanted: CallForEffect) -> r.Recipe:
        """What a call gives that the frame makes for its effect; it is made behind those before."""
        for call in self.vm.session.calls_for_effect:
            if id(call) not in self._called:
                function, args, kwargs = call
                self._calls = True
                named = tuple((name, self.recipe(value)) for name, value in kwargs.items())
                given = self.recipes(args)
                self._calls = False
                # Run with capture off: what it calls is no part of the program.
                made = r.CallFunction(r.Const(Switched(function, None)), given, named)
                self._called[id(call)] = made
                self.effects.append(r.RunCall(made))
            if call is wanted:
                break
        return self._called[id(wanted)]

    def _iterator(self, item: IteratorValue) -> r.Recipe:
        """What is left of an iterator, over the same container or of the same parts."""
        over = item.over[0] if item.plain and item.over else None
        if isinstance(over, Constant) and type(over.value) in (range, str, bytes):
            # Of a range only its ends are written down: it may be long.
            left = over.value[:0] if item.ended else over.value[item.taken :]
            return r.CallFunction(r.Const(iter), (r.Const(left),))
        if item.plain or item.ended or item.over is None:
            rest = r.Build("tuple", () if item.ended else self.recipes(list(item.iterator)))
            return r.CallFunction(r.Const(iter), (rest,))
        if item.cls is enumerate:
            iterator, start = item.over
            count = r.Const(self.vm.as_python(start) + item.taken)
            return r.CallFunction(r.Const(enumerate), (self.recipe(iterator), count))
        new = r.CallFunction(r.Const(item.remake), self.recipes(item.over))
        if item.size is None:
            return new
        container = self.vm.native(item.over[0])
        if isinstance(container, DictView):
            container = self.vm.native(container.dictionary)
        if isinstance(container, ListValue) and container.cls is list:
            place = item.taken if item.remake is iter else item.size - 1 - item.taken
        elif truth_and_length.length(self.vm, container) == item.size and self._as_begun(
            item, container
        ):
            place = item.taken
        else:
            raise CannotRebuild(f"{item.describe()}, whose container has changed,", item.born)
        found = r.CallFunction(r.Const(rebuild.go_on), (new, r.Const(place)))
        if isinstance(container, SetValue):  # one made anew may have another order
            assert item.members is not None
            left = r.Build("tuple", self.recipes(member for _, member in item.members[place:]))
            parts = (self.recipe(item.over[0]), left, r.Const(item.size))
            found = r.CallFunction(r.Const(rebuild.rest_of_set), parts)
        if item.over[0].source is not None or container is not item.over[0]:
            self._at_places.append((found, item))
        return found

    def _as_begun(self, item: IteratorValue, container: Value) -> bool:
        """Has the container that an iterator goes through the members of when it began?"""
        if isinstance(container, (DictValue, ListValue, SetValue)) and container.left != item.left:
            return False
        keys = [key for key, _ in item.members or ()]
        if isinstance(container, DictValue):
            return list(dicts.materialise(self.vm, container)) == keys
        return not isinstance(container, SetValue) or container.items.keys() == set(keys)

    def iterator_steps(self) -> None:
        """The steps of iterators that existed before come first: no change is seen by them."""
        self.effects[:0] = [
            r.RunCall(r.CallFunction(r.Const(rebuild.advance), (self.recipe(it), r.Const(count))))
            for it, count in self.vm.session.iterator_steps
        ]

    def check_caches(self) -> None:
        """What a cache keeps stays inside, and as it was made."""
        for kept in self.vm.session.cached_calls.values():
            cached_calls.check(kept, self._made)

    def check_hooks(self) -> None:
        """What a hook closes over is, when it runs, what it was when it was captured."""
        for hooked in self.vm.session.hooks:
            for cell, content in hooked.cells:
                if cell.content is not content or id(cell) in self._made:
                    hooked.refuse("a variable that a hook closes over")
            inputs = [getattr(value, "fake", None) for _, value in self.vm.session.inputs]
            outputs = [node.meta.get("val") for node in self.outputs]
            if hooked.takes_what_changes(inputs, outputs):
                hooked.refuse("a tensor that a hook closes over, and which may be written to,")

    def check_late_reads(self) -> None:
        """What a backward reads is, when it runs, what it was when it was captured."""
        for state in self.vm.session.late_states:
            state.check(self._made, state_of)

    def check_copied_views(self) -> None:
        """What stands for a view of a NumPy array shows what the array holds."""
        outside = [getattr(value, "fake", None) for _, value in self.vm.session.inputs]
        outside += [node.meta.get("val") for node in self.outputs]
        for copied in self.vm.session.copied_views:
            copied.check(outside)

    def check_iterators(self) -> None:
        """An iterator over what existed before goes on where it is once all changes are made: no
        effect may need it before."""
        uses: dict[int, int] = {}
        if self._at_places:
            r.below(self.effects, uses)
        for found, item in self._at_places:
            if id(found) in uses:
                raise CannotRebuild(f"{item.describe()}, kept in what existed before,", item.born)

    def _native_method(self, item: NativeMethod) -> r.Recipe:
        """A C method bound to its receiver: by name, unless (through `super`) another has it."""
        receiver, bind = item.receiver, r.Const(item.descriptor.__get__)
        if isinstance(receiver, Constant) and isinstance(receiver.value, type):
            cls = receiver.value
            if isinstance(item.descriptor, types.ClassMethodDescriptorType):
                if inspect.getattr_static(cls, item.name, None) is item.descriptor:
                    return r.GetAttr(self.recipe(receiver), item.name)
                return r.CallFunction(bind, (r.Const(None), r.Const(cls)))
            # A method of its metaclass: its name may be one of the class's own.
            return r.CallFunction(bind, (self.recipe(receiver), r.Const(type(cls))))
        cls = receiver.python_type()
        by_name = not isinstance(receiver, ObjectValue)
        if by_name or inspect.getattr_static(cls, item.name, None) is item.descriptor:
            return r.GetAttr(self.recipe(receiver), item.name)
        return r.CallFunction(bind, (self.recipe(receiver), r.Const(cls)))

    def _tensor(self, item: TensorValue) -> r.Recipe:
        if not self.vm.session.recorder.owns(item.node):
            raise InnerTensor
        if item.cls is torch.nn.Parameter:
            return self._leaf(item, torch.nn.Parameter)
        for hooked in self.vm.session.hooks:
            if hooked.tensor is item:
                hooked.refuse(hooked.kind)
        if id(item) in self.vm.session.made_leaves:
            return self._leaf(item, torch.Tensor.requires_grad_)
        position = self._positions.get(item.node)
        if position is None:
            position = self._positions[item.node] = len(self.outputs)
            self.outputs.append(item.node)
        given: r.Recipe = r.GraphOutput(position)
        if item.cls is not torch.Tensor and not is_wrapper_type(item.cls):
            given = r.CallFunction(r.Const(as_class), (given, r.Const(item.cls)))
        new = self._remember(item, given)
        for name, value in item.attributes.items():
            self.effects.append(r.SetAttr(new, name, self.recipe(value)))
        return new

    def _leaf(self, item: TensorValue, make: Callable[..., Any]) -> r.Recipe:
        """A parameter made in the frame (a copy of one), or what `requires_grad_()` made a leaf: of
        what the graph gives, a leaf is made. What has been computed from it would not know that
        leaf."""
        wanted = item.fake.requires_grad
        if wanted:
            nodes = [item.node, *self.vm.session.left_nodes.get(id(item), ())]
            for user in (user for node in nodes for user in node.users):
                made = pytree.tree_leaves(user.meta.get("val"))
                if any(_needs_gradient(part) and part is not item.fake for part in made):
                    born = self.vm.session.made_leaves[id(item)]
                    raise CannotRebuild("a leaf made here, and what is computed with it", born)
        recorder = self.vm.session.recorder
        node = recorder.graph.call_method("detach", (item.node,))
        with recorder.fake_mode:
            node.meta["val"] = item.fake.detach()
        self.outputs.append(node)
        output = r.GraphOutput(len(self.outputs) - 1)
        new = self._remember(item, r.CallFunction(r.Const(make), (output, r.Const(wanted))))
        for name, value in item.attributes.items():
            self.effects.append(r.SetAttr(new, name, self.recipe(value)))
        return new

    def _number(self, item: SymbolicNumber) -> r.Recipe:
        """A number over sizes is computed by the graph (a truth value is decided here)."""
        if isinstance(item.value, torch.SymBool) and item.value.node.hint is not None:
            with contextlib.suppress(DataDependentError):  # of a size that is marked unbacked
                return r.Const(item.concrete())
        recorder = self.vm.session.recorder
        try:
            node = recorder.sizes.node(item.value)
        except NotImplementedError as error:
            raise CannotRebuild(str(error)) from None
        if not isinstance(node, Node):
            return r.Const(node)
        position = self._positions.get(node)
        if position is None:
            position = self._positions[node] = len(self.outputs)
            self.outputs.append(node)
            recorder.operations += 1
        return r.GraphOutput(position)

    def _dict(self, item: DictValue) -> r.Recipe:
        flat: list[r.Recipe] = []
        for key, value in dicts.materialise(self.vm, item).values():
            flat += (self.recipe(key), self.recipe(value))
        if item.cls is dict:
            return r.Build("dict", tuple(flat))
        if item.cls is collections.defaultdict:
            factory = self.recipe(item.default_factory or Constant(None))
            return r.CallFunction(r.Const(item.cls), (factory, r.Build("dict", tuple(flat))))
        pairs = tuple(r.Build("tuple", (flat[i], flat[i + 1])) for i in range(0, len(flat), 2))
        return r.CallFunction(r.Const(item.cls), (r.Build("list", pairs),))

    def _object(self, item: ObjectValue) -> r.Recipe:
        self._check_lasts(item.cls)
        if item.base_new is functools.partial:
            return self._partial(item)
        if item.base_new is types.MappingProxyType:
            mapping = self.recipe(item.slots["mapping"])
            return r.CallFunction(r.Const(types.MappingProxyType), (mapping,))
        if item.base_new is weakref.ReferenceType:
            target = self.recipe(item.slots["target"])
            return r.CallFunction(r.Const(weakref.ref), (target,))
        native = item.native
        args_: tuple[r.Recipe, ...] = ()
        if isinstance(native, TupleValue):
            args_ = (r.Build("tuple", self.recipes(native.items)),)
        elif issubclass(item.cls, BaseException):
            found = item.slots.get("args")
            args_ = self.recipes(found.items) if isinstance(found, TupleValue) else ()
        new = self._remember(item, self._new(item, args_))
        if issubclass(item.cls, _WITH_FIELDS):
            base = next(base for base in item.cls.__mro__ if base.__module__ == "builtins")
            init = r.CallFunction(r.Const(base.__init__), (new, *args_))  # type: ignore[misc]
            self.effects.append(r.RunCall(init))
        if isinstance(native, ListValue):
            self.effects.append(r.ReplaceContents(new, "list", self.recipes(native.items)))
        elif isinstance(native, SetValue):
            self.effects.append(r.ReplaceContents(new, "set", self.recipes(native.items.values())))
        elif isinstance(native, DictValue):
            self.fill_dict(new, native)
        for key, value in dicts.materialise(self.vm, item.fields).values():
            name = self.vm.as_python(key)
            self.effects.append(r.SetAttr(new, name, self.recipe(value), raw=True))
        made = ("args", "value") if issubclass(item.cls, BaseException) else ()
        for name, slot in item.slots.items():
            if name not in made and not _is_own_traceback(item, slot):
                self.set_slot(item, new, name, slot)
        return new

    def _partial(self, item: ObjectValue) -> r.Recipe:
        """A partial, of a subclass maybe, and the attributes that were set on it."""
        function, args, keywords = (item.slots[n] for n in ("func", "args", "keywords"))
        assert isinstance(args, TupleValue) and isinstance(keywords, DictValue)
        new = r.CallFunction(
            r.Const(functools.partial.__new__),
            (r.Const(item.cls), self.recipe(function), *self.recipes(args.items)),
            tuple(
                (self.vm.as_python(key), self.recipe(value))
                for key, value in dicts.items(self.vm, keywords)
            ),
        )
        self._remember(item, new)
        for key, value in dicts.materialise(self.vm, item.fields).values():
            name = self.vm.as_python(key)
            self.effects.append(r.SetAttr(new, name, self.recipe(value), raw=True))
        return new

    def set_slot(self, item: ObjectValue, target: r.Recipe, name: str, slot: Value) -> None:
        """Write a `__slots__` member, or a C field of an exception."""
        if issubclass(item.cls, BaseException):
            parts = (target, r.Const(name), self.recipe(slot))
            self.effects.append(r.RunCall(r.CallFunction(r.Const(object.__setattr__), parts)))
        else:
            raw = not issubclass(item.cls, torch._C._FunctionBase)  # its fields are C functions
            self.effects.append(r.SetAttr(target, name, self.recipe(slot), raw=raw))

    def _new(self, item: ObjectValue, args: tuple[r.Recipe, ...]) -> r.Recipe:
        """A new object with the parts that its class's `__new__` takes."""
        new = r.NewObject(item.cls, item.base_new, args)
        traceback = item.slots.get("__traceback__")
        if not isinstance(traceback, TracebackValue) or traceback.error is not item:
            return new
        passed = traceback.places[traceback.first :]
        places = tuple(
            rebuild.place_of_error(code, offset)
            for code, offset in passed
            if not code.co_filename.startswith(_OWN_FILES)  # C code, said in Python by us
        )
        return r.CallFunction(r.Const(rebuild.with_traceback), (new, r.Const(places)))

    def change_dict(self, target: r.Recipe, item: DictValue) -> None:
        """The contents of a dictionary that existed before. Where keys left, and some came, they do
        so again, one by one: iterators over it may be under way, and a key that is back has another
        place."""
        if item.left and any(how != "pop" for how, _ in item.moves):
            keys = self.recipes(key for _, key in item.moves)
            parts = (target, r.Const(tuple(how for how, _ in item.moves)), *keys)
            move = r.CallFunction(r.Const(rebuild.move_keys), parts)
            self.effects.append(r.RunCall(move))
        self.fill_dict(target, item)

    def fill_dict(self, target: r.Recipe, item: DictValue) -> None:
        """The contents of a dictionary, put in place of what `target` holds."""
        flat: list[r.Recipe] = []
        for key, value in dicts.materialise(self.vm, item).values():
            flat += (self.recipe(key), self.recipe(value))
        self.effects.append(r.ReplaceContents(target, item.cls.__name__, tuple(flat)))

    def _cell(self, item: CellValue) -> r.Recipe:
        new = self._remember(item, r.NewCell())
        if item.content is not None:
            self.effects.append(r.SetCell(new, self.recipe(item.content)))
        return new

    def _function(self, item: FunctionValue) -> r.Recipe:
        defaults = r.Build("tuple", self.recipes(item.defaults)) if item.defaults else None
        kwdefaults = None if item.kwdefaults is None else self.recipe(item.kwdefaults)
        new = r.NewFunction(
            item.code,
            r.Const(item.globals_),
            item.name,
            defaults,
            kwdefaults,
            self.recipes(item.closure),
            None if item.annotations is None else self.recipe(item.annotations),
        )
        self._remember(item, new)
        if item.attributes is not None:
            self.effects.append(r.SetAttr(new, "__dict__", self.recipe(item.attributes)))
        for name, value in item.special.items():
            self.effects.append(r.SetAttr(new, name, self.recipe(value)))
        return new


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _is_own_traceback(item: ObjectValue, slot: Value) -> bool:
    """Is it the traceback of this very exception? It is rebuilt together with it."""
    return isinstance(slot, TracebackValue) and slot.error is item
