"""From the values alive at the end of a capture to recipes. (Of changes: `effects`.)"""

from __future__ import annotations

import collections
import types
from collections.abc import Iterable
from typing import Any

from dovetail_guards.source import AttrSource, InstanceAttrSource, ObjectSource, Source
from torch.fx import Node

from dovetail_capture import rebuild
from dovetail_capture import recipe as r
from dovetail_capture._frame_hook import Switched
from dovetail_capture.interpreter.changes.late_reads import state_of
from dovetail_capture.interpreter.changes.messages import check_message
from dovetail_capture.interpreter.machine import Interpreter
from dovetail_capture.interpreter.machine.frame import GeneratorValue
from dovetail_capture.interpreter.protocols import dicts
from dovetail_capture.interpreter.recipes import object_recipes
from dovetail_capture.interpreter.session import cached_calls
from dovetail_capture.interpreter.session.ledgers import CallForEffect
from dovetail_capture.interpreter.signals import CannotRebuild
from dovetail_capture.interpreter.values import containers as c
from dovetail_capture.interpreter.values import functions as f
from dovetail_capture.interpreter.values.base import Constant, Lazy, Value
from dovetail_capture.interpreter.values.objects import ObjectValue, TokenValue
from dovetail_capture.interpreter.values.symbolic import IdOf, SymbolicNumber
from dovetail_capture.interpreter.values.tensors import ArrayValue, TensorValue, TruthOf
from dovetail_capture.interpreter.values.texts import LateText

_PLAIN_READS: tuple[Any, ...] = tuple(
    cls.__getattribute__ for cls in (object, type, types.ModuleType)
)


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
        self.positions: dict[Node, int] = {}
        self.at_places: list[tuple[r.Recipe, f.IteratorValue]] = []
        self._called: dict[int, r.Recipe] = {}
        self._holders: dict[int, Value] = {}  # what existed before, by the ids of sources
        self._remakes_classes = False
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
        known = self.vm.session.objects.known.get(id(item.real))
        if known is not None and known.source is item.source:
            return self.recipe(known)
        made = self._made.get(id(item.source))
        if made is None:
            self.check_lasts(item.real)
            self._check_source(item.source)
            made = self._made[id(item.source)] = r.Fetch(item.source)
        return made

    def returned(self, value: Value) -> r.Recipe:
        """The recipe of what the frame returns. (What goes on after a break would be guarded to
        have the very class that one call made, and be compiled for each call.)"""
        self._remakes_classes = True
        return self.recipe(value)

    def made_class(self, real: Any) -> r.Recipe | None:
        """How the program makes a class again that was made in the frame, if a recipe can tell."""
        if not self._remakes_classes:
            return None
        return self.vm.session.objects.class_recipes.get(id(real))

    def check_lasts(self, real: Any) -> None:
        """Refuse a class that was made for this capture only, and what belongs to it."""
        born = self.vm.session.objects.stand_ins.get(id(real))
        if born is not None:
            name = getattr(real, "__qualname__", type(real).__name__)
            raise CannotRebuild(f"{name}, made in the frame,", born)

    def _check_source(self, source: Source) -> None:
        if self.vm.session.objects.stand_ins:
            while not isinstance(source, ObjectSource):
                base = getattr(source, "base", None)
                if base is None:
                    return
                source = base
            self.check_lasts(source.obj)

    def _cycle(self, item: Value) -> r.Recipe:
        if isinstance(item, (c.ListValue, c.DictValue, c.SetValue)) and item.python_type() in (
            list, dict, set,
        ):  # fmt: skip
            new = self._made[id(item)] = r.NewEmpty(item.python_type().__name__)
            return new
        raise CannotRebuild(f"{item.describe()} that contains itself")

    def remember(self, item: Value, new: r.Recipe) -> r.Recipe:
        """Make `new` the recipe before the parts are visited, so that cycles find it."""
        self._made[id(item)] = new
        return new

    def _set(self, item: c.SetValue) -> r.Recipe:
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
        """What is constant, the graph gives or existed before; or else what the frame made."""
        if isinstance(item, LateText):
            parts = self.recipes(item.parts)
            return r.CallFunction(r.Const(item.template.format), parts)
        if isinstance(item, Constant) and not self._is_fetched(item):
            made = self.made_class(item.value)
            if made is not None:
                return made
            self.check_lasts(item.value)
            return r.Const(item.value)
        source = item.source
        if isinstance(item, c.DictValue) and item.is_instance_dict:
            return r.GetAttr(self.recipe(item.holder), "__dict__")
        if isinstance(item, TensorValue) and source is None:
            return object_recipes.tensor_recipe(self, item)
        if isinstance(item, SymbolicNumber) and source is None:
            if isinstance(item, TruthOf) and self.vm.session.recorder.data_env is None:
                if item.known is None:
                    raise CannotRebuild(item.describe(), item.born)
                return r.Const(item.known)
            return object_recipes.number_recipe(self, item)
        if source is not None:
            self._check_source(source)
            return r.Const(source.obj) if isinstance(source, ObjectSource) else r.Fetch(source)
        return self._make_anew(item)

    def _is_fetched(self, item: Constant) -> bool:
        """Is it a constant that nothing has looked at and that can be had without running code of
        the program's (a `__getattribute__`)?"""
        if item.unread is None:
            return False
        source: Any = item.source
        while (base := getattr(source, "base", None)) is not None:
            if isinstance(source, (AttrSource, InstanceAttrSource)):
                if not self._holders:
                    known = self.vm.session.objects.known.values()
                    self._holders = {id(value.source): value for value in known}
                holder = self._holders.get(id(base))
                if holder is None or holder.python_type().__getattribute__ not in _PLAIN_READS:
                    return False
            source = base
        return True

    def _make_anew(self, item: Value) -> r.Recipe:
        if isinstance(item, ArrayValue):
            array = r.CallFunction(r.Const(rebuild.as_array), (self.recipe(item.tensor),))
            if not item.is_scalar:
                return array
            return r.CallFunction(r.GetAttr(array, "__getitem__"), (r.Build("tuple", ()),))
        if isinstance(item, c.TupleValue):
            built = r.Build("tuple", self.recipes(item.items))
            return built if item.cls is tuple else r.CallFunction(r.Const(item.cls), (built,))
        if isinstance(item, c.ListValue):
            built = r.Build("list", self.recipes(item.items))
            if item.cls is list:
                return built
            return r.CallFunction(r.Const(item.cls), (built, r.Const(item.maxlen)))
        if isinstance(item, IdOf):
            return r.CallFunction(r.Const(id), (self.recipe(item.of),))
        if isinstance(item, c.MemoValue):
            raise CannotRebuild(item.describe(), item.born)
        if isinstance(item, c.DictValue):
            return self._dict(item)
        if isinstance(item, c.SetValue):
            return self._set(item)
        if isinstance(item, c.SliceValue):
            return r.Build("slice", self.recipes((item.start, item.stop, item.step)))
        if isinstance(item, ObjectValue):
            return object_recipes.object_recipe(self, item)
        if isinstance(item, f.BoundMethod):
            parts = (self.recipe(item.function), self.recipe(item.receiver))
            return r.CallFunction(r.Const(types.MethodType), parts)
        if isinstance(item, f.NativeMethod):
            return object_recipes.native_method_recipe(self, item)
        if isinstance(item, f.SuperValue):
            self.check_lasts(item.cls)
            return r.CallFunction(r.Const(super), (r.Const(item.cls), self.recipe(item.receiver)))
        if isinstance(item, c.DictView):
            return r.CallFunction(r.GetAttr(self.recipe(item.dictionary), item.kind))
        if isinstance(item, f.TracebackValue):
            return r.GetAttr(self.recipe(item.error), "__traceback__")
        if isinstance(item, f.CellValue):
            return self._cell(item)
        if isinstance(item, f.FunctionValue):
            return self._function(item)
        if isinstance(item, f.TransformValue) and item.inner is None:
            options = tuple((name, r.Const(option)) for name, option in item.options.items())
            transform = r.Const(item.transform)
            return r.CallFunction(transform, (self.recipe(item.function),), options)
        if isinstance(item, f.IteratorValue) and (item.plain or item.over is not None):
            return object_recipes.iterator_recipe(self, item)
        if isinstance(item, GeneratorValue) and item.finished:
            return r.CallFunction(r.Const(rebuild.ended_generator), (r.Const(item.frame.code),))
        if isinstance(item, f.HandleValue) and item.late is not None and not item.removed:
            if self._calls:
                raise CannotRebuild(f"{item.describe()} which a hook keeps", item.born)
            return self.call_for_effect(item.late)
        kinds = (f.IteratorValue, GeneratorValue, f.TransformValue, f.HandleValue, TokenValue)
        made = isinstance(item, kinds)
        born = item.born if made else 0  # type: ignore[attr-defined]
        raise CannotRebuild(item.describe(), born)

    def call_for_effect(self, wanted: CallForEffect) -> r.Recipe:
        """What a call gives that the frame makes for its effect; it is made behind those before."""
        for call in self.vm.session.effects.calls:
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

    def check_caches(self) -> None:
        """What a cache keeps stays inside, and as it was made."""
        for kept in self.vm.session.objects.cached_calls.values():
            cached_calls.check(kept, self._made)

    def check_hooks(self) -> None:
        """What a hook closes over is, when it runs, what it was when it was captured."""
        for hooked in self.vm.session.effects.hooks:
            for cell, content in hooked.cells:
                if cell.content is not content or id(cell) in self._made:
                    hooked.refuse("a variable that a hook closes over")
            inputs = [getattr(value, "fake", None) for _, value in self.vm.session.inputs.entries]
            outputs = [node.meta.get("val") for node in self.outputs]
            if hooked.takes_what_changes(inputs, outputs):
                hooked.refuse("a tensor that a hook closes over, and which may be written to,")

    def check_late_reads(self) -> None:
        """What a backward reads is, when it runs, what it was when it was captured."""
        for state in self.vm.session.late_reads.states:
            state.check(self._made, state_of)

    def check_messages(self) -> None:
        """What a message shows is, when it is written, what it was when the program wrote it."""
        for message in self.vm.session.effects.messages:
            check_message(self.vm.session, message)

    def check_copied_views(self) -> None:
        """What stands for a view of a NumPy array shows what the array holds."""
        outside = [getattr(value, "fake", None) for _, value in self.vm.session.inputs.entries]
        outside += [node.meta.get("val") for node in self.outputs]
        for copied in self.vm.session.effects.copied_views:
            copied.check(outside)

    def _dict(self, item: c.DictValue) -> r.Recipe:
        flat: list[r.Recipe] = []
        for key, value in dicts.materialise(self.vm, item).values():
            flat += (self.recipe(key), self.recipe(value))
        if item.cls is dict:
            return r.Build("dict", tuple(flat))
        if item.cls is collections.defaultdict:
            factory = self.recipe(item.default_factory or Constant(None))
            return r.CallFunction(r.Const(item.cls), (factory, r.Build("dict", tuple(flat))))
        pairs = tuple(r.Build("tuple", (flat[i], flat[i + 1])) for i in range(0, len(flat), 2))
        made = self.remember(item, r.CallFunction(r.Const(item.cls), (r.Build("list", pairs),)))
        for name, value in item.attributes.items():
            self.effects.append(r.SetAttr(made, name, self.recipe(value)))
        return made

    def change_dict(self, target: r.Recipe, item: c.DictValue) -> None:
        """The contents of a dictionary that existed before. Where keys left, and some came, they do
        so again, one by one: iterators over it may be under way, and a key that is back has another
        place."""
        overlay = item.origin is not None  # nothing has asked for all the keys that are there
        if item.left and (overlay or any(how != "pop" for how, _ in item.moves)):
            keys = self.recipes(key for _, key in item.moves)
            parts = (target, r.Const(tuple(how for how, _ in item.moves)), *keys)
            move = r.CallFunction(r.Const(rebuild.move_keys), parts)
            self.effects.append(r.RunCall(move))
        if not overlay:
            self.fill_dict(target, item)
        elif item.entries:
            self._fill(target, "grown dict", item.entries)

    def fill_dict(self, target: r.Recipe, item: c.DictValue) -> None:
        """The contents of a dictionary, put in place of what `target` holds."""
        self._fill(target, item.cls.__name__, dicts.materialise(self.vm, item))

    def _fill(self, target: r.Recipe, kind: str, entries: dict[Any, tuple[Value, Any]]) -> None:
        flat: list[r.Recipe] = []
        for key, value in entries.values():
            flat += (self.recipe(key), self.recipe(value))
        self.effects.append(r.ReplaceContents(target, kind, tuple(flat)))

    def _cell(self, item: f.CellValue) -> r.Recipe:
        new = self.remember(item, r.NewCell())
        if item.content is not None:
            self.effects.append(r.SetCell(new, self.recipe(item.content)))
        return new

    def _function(self, item: f.FunctionValue) -> r.Recipe:
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
        self.remember(item, new)
        if item.attributes is not None:
            self.effects.append(r.SetAttr(new, "__dict__", self.recipe(item.attributes)))
        for name, value in item.special.items():
            self.effects.append(r.SetAttr(new, name, self.recipe(value)))
        return new
