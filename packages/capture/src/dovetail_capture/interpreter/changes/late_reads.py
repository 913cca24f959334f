"""What a backward or a hook reads of what may be something else by the time that it runs.

It runs later than where it is captured, so it may only read what cannot have changed: what it is
given, what nobody else has, and what a program does not change (functions, classes, modules, and
numbers under names that are bound once: `rebound_names`). Whether the latter are what they were is
asked again when it runs. All else breaks the graph.
And whether a stretch of interpretation changes anything that was there before it."""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from dovetail_guards.source import (
    AttrSource,
    BuiltinSource,
    GlobalSource,
    ItemSource,
    ObjectSource,
    Source,
)
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.graphs.gradient_hooks import BackwardRead

from dovetail_capture.interpreter.inputs.rebound_names import (
    is_settled,
    may_be_bound_again,
    may_be_rebound,
)
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Lazy, Value
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    ListValue,
    SetValue,
    TupleValue,
)
from dovetail_capture.interpreter.values.functions import BoundMethod, CellValue, FunctionValue
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue
from dovetail_capture.skip import module_of

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter


# What a program does not replace between a forward and its backward.
LASTING = (
    types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, torch.dtype,
    torch.device, torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops._OpNamespace,
    types.MethodDescriptorType, types.WrapperDescriptorType,
)  # fmt: skip
NUMBERS = (bool, int, float, complex, str, type(None), torch.memory_format, torch.layout)
_IMMUTABLE = (
    *LASTING, *NUMBERS, bytes, enum.Enum, range, type(Ellipsis), torch.Size, torch.finfo,
    torch.iinfo,
)  # fmt: skip


def _is_immutable(real: Any) -> bool:
    if isinstance(real, _IMMUTABLE) or module_of(type(real)).startswith("triton.runtime."):
        return True  # (Triton's kernels are as functions are)
    if type(real) is frozenset or (isinstance(real, tuple) and not getattr(real, "__dict__", None)):
        return all(map(_is_immutable, real))
    parameters = getattr(type(real), "__dataclass_params__", None)
    if parameters is not None and parameters.frozen:
        names = [field.name for field in dataclasses.fields(real)]
        return all(_is_immutable(getattr(real, name, None)) for name in names)
    return False


def _is_default(source: Source) -> bool:
    """Is it a default of a parameter of a function (one of a keyword-only one)?"""
    if isinstance(source, AttrSource):
        return source.name == "__defaults__"
    held = source.base if isinstance(source, ItemSource) else None
    return isinstance(held, ObjectSource) and str(held).endswith(".__kwdefaults__")


class LateReads:
    """Watches what is read while `what` ("a backward", "a hook") is captured."""

    def __init__(self, vm: Interpreter, what: str, hint: str) -> None:
        self.vm = vm
        self.what = what
        self.hint = hint
        self.reads: list[BackwardRead] = []
        self.asks_grad_mode = False  # or sets it
        self._values: dict[int, Value] = {}
        self._asked: set[int] = set()
        self._frozen: set[int] = set()  # ids of the sources of what nobody can change

    def _refuse(self, text: str) -> NoReturn:
        raise GraphBreakSignal(f"{self.what} that reads {text}, which may change", self.hint)

    # --- what existed before the frame ------------------------------------------------------------

    def note(self, real: Any, source: Source, value: Value) -> None:
        """What existed before the frame is looked at; `value` stands for it."""
        if id(source) in self._asked:
            return
        self._asked.add(id(source))
        if isinstance(real, types.CellType):
            return  # what it holds is noted
        if id(getattr(source, "base", None)) in self._frozen:
            self._frozen.add(id(source))
            return
        kind = f"a {type(real).__name__}"
        if isinstance(value, SymbolicNumber):
            self._refuse(kind)  # it has changed before
        base = source
        while isinstance(base, ItemSource) and not isinstance(base.base, ObjectSource):
            base = base.base  # a part of a tuple
        if _is_default(base) and _is_immutable(real):
            return  # they stay with a function, as its code does
        if isinstance(base, (ObjectSource, BuiltinSource)):
            if not _is_immutable(real):
                self._refuse(kind)
            return
        found = self._binding(base)
        if found is None:
            self._refuse(kind)
        namespace, read, settled = found
        if settled and _is_immutable(real):
            return
        if not isinstance(real, torch.Tensor) and not _is_immutable(real):
            self._refuse(kind)
        if isinstance(real, types.ModuleType):
            return
        name = base.key if isinstance(base, ItemSource) else base.name  # type: ignore[attr-defined]
        frames = self.vm.frames
        for reader in {frame.code.co_filename for frame in (frames[0], frames[-1])}:
            if may_be_bound_again(namespace, name, real, reader):
                self._refuse(f"{name} ({kind})")
        place = f"{name} of {namespace.get('__name__')}"
        self.reads.append(BackwardRead(place, read, read()))

    def _binding(self, source: Source) -> tuple[dict[str, Any], Any, bool] | None:
        """Of a name in a module or a class: the module's names, how it is read, and whether nobody
        binds such names again."""
        if isinstance(source, GlobalSource):
            return _of_module(self.vm.session.globals_, source.name)
        if isinstance(source, ItemSource) and isinstance(source.base, ObjectSource):
            held = source.base.obj
            if isinstance(held, dict) and isinstance(source.key, str) and "__name__" in held:
                return _of_module(held, source.key)
        if isinstance(source, AttrSource):
            owner = self._owner(source.base)
            if isinstance(owner, types.ModuleType):
                return _of_module(vars(owner), source.name)
            if isinstance(owner, type):
                module = sys.modules.get(owner.__module__)
                namespace = vars(module) if module is not None else {}
                name, cls = source.name, owner

                return namespace, (lambda: getattr(cls, name)), is_settled(owner.__module__)
        return None

    def _owner(self, source: Source) -> Any:
        """The module or class that a source gives, if it can be told."""
        if isinstance(source, ObjectSource):
            return source.obj
        if isinstance(source, GlobalSource):
            return self.vm.session.globals_.get(source.name)
        if isinstance(source, ItemSource) and isinstance(source.base, ObjectSource):
            held = source.base.obj
            return held.get(source.key) if isinstance(held, dict) else None
        if isinstance(source, AttrSource):
            owner = self._owner(source.base)
            if isinstance(owner, (type, types.ModuleType)):
                return getattr(owner, source.name, None)
        return None

    def written(self, name: str) -> None:
        """A name is read that the frame has written to."""
        self._refuse(name)

    # --- values -----------------------------------------------------------------------------------

    def see(self, value: Any) -> None:
        """A value is on the stack."""
        if not isinstance(value, (ListValue, DictValue, SetValue, ObjectValue)):
            return
        if id(value) in self._values:
            return
        real = getattr(value, "real", None)
        if value.source is not None or real is not None:
            is_tuple = isinstance(getattr(value, "native", None), TupleValue)
            settled = is_tuple and not getattr(real, "__dict__", None)
            if not settled and (real is None or not _is_immutable(real)):
                self._refuse(value.describe())
            self._frozen.add(id(value.source))
            return
        self._values[id(value)] = value

    def cell(self, cell: CellValue, name: str) -> None:
        """What the cell of a variable holds is read."""
        if cell.real is None:
            self._values[id(cell)] = cell
            return
        if id(cell) in self._asked:
            return
        self._asked.add(id(cell))
        real, content = cell.real, cell.content
        if isinstance(content, Lazy):
            self._asked.add(id(content.source))  # (it is about to be noted what it holds)
        held = real.cell_contents
        kind = f"a {type(held).__name__}"
        if cell.mutated or isinstance(content, SymbolicNumber) or not _is_immutable(held):
            self._refuse(f"{name} ({kind}) of a function around it")
        if isinstance(held, types.ModuleType):
            return
        if may_be_rebound(self.vm.frames[-1].code, name):
            self._refuse(f"{name} ({kind}) of a function around it")
        self.reads.append(BackwardRead(name, lambda: real.cell_contents, held))

    def state(self) -> list[tuple[Value, Any]]:
        """What was read of what the frame has made, and its state."""
        return [(value, state_of(value)) for value in self._values.values()]


def _of_module(namespace: dict[str, Any], name: str) -> tuple[dict[str, Any], Any, bool]:
    settled = is_settled(str(namespace.get("__name__")))
    return namespace, (lambda: namespace[name]), settled


def _identity(item: Any) -> int:
    """What tells one part of a value from another; looking at it makes no other of it."""
    source = getattr(item, "source", None)
    return id(item) if source is None else id(source)


def state_of(value: Value) -> Any:
    """What tells a value that was changed from what it was."""
    if isinstance(value, ListValue):
        return list(map(_identity, value.items))
    if isinstance(value, DictValue):
        return [(key, _identity(item)) for key, (_, item) in value.entries.items()]
    if isinstance(value, SetValue):
        return list(value.items)
    if isinstance(value, CellValue):
        return _identity(value.content)
    if isinstance(value, ObjectValue):
        native = None if value.native is None else state_of(value.native)
        slots = [(name, _identity(item)) for name, item in value.slots.items()]
        return state_of(value.fields), slots, native
    return None


def share_memory(values: Iterable[Any], tensors: Iterable[Value]) -> list[int]:
    """The places of the values that share memory with one of these tensors."""
    storages = {id(t.fake._storage) for t in tensors if isinstance(t, TensorValue)}
    places = enumerate(values)
    return [i for i, v in places if isinstance(v, FakeTensor) and id(v._storage) in storages]


@contextmanager
def watching(vm: Interpreter, what: str, hint: str) -> Iterator[LateReads]:
    """A block that breaks the graph if it reads what may change."""
    session = vm.session
    before = vm.global_values, vm.class_attribute_values, session.late_reads.watch
    vm.global_values, vm.class_attribute_values = {}, {}
    session.late_reads.watch = found = LateReads(vm, what, hint)
    try:
        yield found
    finally:
        vm.global_values, vm.class_attribute_values, session.late_reads.watch = before


_MARKED = (ListValue, DictValue, SetValue, CellValue)


def _parts(value: Any) -> Iterator[Any]:
    """The values that a value made in the frame holds."""
    if isinstance(value, (ListValue, TupleValue)):
        yield from value.items
    elif isinstance(value, DictValue):
        yield from (item for _, item in value.entries.values())
    elif isinstance(value, CellValue):
        yield value.content
    elif isinstance(value, FunctionValue):
        yield from (*value.closure, *value.defaults, value.kwdefaults)
    elif isinstance(value, BoundMethod):
        yield from (value.function, value.receiver)
    elif isinstance(value, ObjectValue):
        yield from (value.fields, value.native, *value.slots.values())


def _reachable(roots: Iterable[Value]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    pending: list[Any] = list(roots)
    while pending:
        value = pending.pop()
        if isinstance(value, Value) and id(value) not in found:
            found[id(value)] = value
            pending.extend(_parts(value))
    return found


def _state(value: Any) -> Any:
    """Something that a change makes another."""
    if isinstance(value, _MARKED):
        return value.mutated
    if isinstance(value, ObjectValue):
        slots = {name: id(value.slots[name]) for name in value.slots_mutated if name in value.slots}
        return slots, len(value.slots_mutated)
    if isinstance(value, TensorValue):
        return {name: id(item) for name, item in value.attributes.items()}
    return None


def _written(vm: Interpreter) -> Any:
    """What was written, and what is to be called for its effect."""
    session = vm.session
    return (
        dict(session.effects.global_writes),
        {key: id(write.value) for key, write in session.effects.context_writes.items()},
        {
            key: dict(fields.entries)
            for key, (_, fields) in session.effects.attribute_writes.items()
        },
        list(session.iterators.steps),
        session.effects.kernel_settings.now(),
        (len(session.effects.calls), len(session.draws.calls), len(session.modes.locks)),
    )


@contextmanager
def no_changes(vm: Interpreter, roots: Iterable[Value], what: str) -> Iterator[None]:
    """A block that breaks the graph, for `what`, if it changes what existed before the frame, or
    what can be reached from `roots`."""
    values = _reachable([*vm.session.objects.known.values(), *roots])
    marked = [value for value in values.values() if isinstance(value, _MARKED) and value.mutated]
    for value in marked:
        value.mutated = False
    before = {key: _state(value) for key, value in values.items()}
    written = _written(vm)
    yield
    found = _reachable(v for v in vm.session.objects.known.values() if id(v) not in values)
    changed = any(_state(value) != before[key] for key, value in values.items())
    changed |= any(map(_is_changed, found.values()))
    if changed or _written(vm) != written:
        raise GraphBreakSignal(what)
    for value in marked:
        value.mutated = True


def _is_changed(value: Any) -> bool:
    if isinstance(value, _MARKED):
        return value.mutated
    return _state(value) not in (None, {}, ({}, 0))
