"""Instructions that move values between the stack, local slots, cells and constants; globals,
attributes, imports."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, NoReturn

from dovetail_capture.interpreter.machine.decoding import (
    ALWAYS,
    FROM_312,
    FROM_313,
    UNTIL_311,
    UNTIL_312,
    VERSION,
    Instruction,
    Row,
)
from dovetail_capture.interpreter.protocols import dicts
from dovetail_capture.interpreter.protocols.global_variables import built_in, global_value
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Lazy, Value
from dovetail_capture.interpreter.values.containers import DictValue, TupleValue
from dovetail_capture.interpreter.values.functions import CellValue, SuperValue
from dovetail_capture.interpreter.values.objects import ProgramException

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter
    from dovetail_capture.interpreter.machine.frame import Frame


def nothing(frame: Frame, inst: Instruction) -> None:
    """NOP, RESUME, EXTENDED_ARG (folded into its successor) and the like."""


def pop_top(frame: Frame, inst: Instruction) -> None:
    frame.stack.pop()


def push_null(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(None)


def copy(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(frame.stack[-inst.arg])


def swap(frame: Frame, inst: Instruction) -> None:
    stack, depth = frame.stack, inst.arg
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


def load_const(frame: Frame, inst: Instruction) -> None:
    value = inst.cached
    if value is None:
        value = inst.cached = constant_value(inst.argval)
    frame.stack.append(value)


def constant_value(real: object) -> Value:
    """A constant of a code object; tuples are values of their own."""
    if type(real) is tuple:
        return TupleValue([constant_value(item) for item in real])
    return Constant(real)


def _load(frame: Frame, slot: int, name: str) -> Value:
    value = frame.slots[slot]
    if value is None:
        frame.vm.raise_error(
            UnboundLocalError,
            f"cannot access local variable '{name}' where it is not associated with a value",
        )
    if value.__class__ is Lazy:
        value = frame.slots[slot] = frame.vm.wrap(value.real, value.source)
    return value  # type: ignore[no-any-return]


def load_fast(frame: Frame, inst: Instruction) -> None:
    value = frame.slots[inst.arg]
    if value is None or value.__class__ is Lazy:
        value = _load(frame, inst.arg, inst.argval)
    frame.stack.append(value)


def load_fast_and_clear(frame: Frame, inst: Instruction) -> None:
    value = frame.slots[inst.arg]
    if value.__class__ is Lazy:
        value = _load(frame, inst.arg, inst.argval)
    if isinstance(value, CellValue):
        value.set_aside = frame.steps
    frame.stack.append(value)
    frame.slots[inst.arg] = None


def load_fast_load_fast(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(_load(frame, inst.arg >> 4, inst.argval[0]))
    frame.stack.append(_load(frame, inst.arg & 15, inst.argval[1]))


def store_fast(frame: Frame, inst: Instruction) -> None:
    frame.slots[inst.arg] = frame.stack.pop()


def store_fast_load_fast(frame: Frame, inst: Instruction) -> None:
    frame.slots[inst.arg >> 4] = frame.stack.pop()
    frame.stack.append(_load(frame, inst.arg & 15, inst.argval[1]))


def store_fast_store_fast(frame: Frame, inst: Instruction) -> None:
    frame.slots[inst.arg >> 4] = frame.stack.pop()
    frame.slots[inst.arg & 15] = frame.stack.pop()


def delete_fast(frame: Frame, inst: Instruction) -> None:
    if frame.slots[inst.arg] is None:
        _load(frame, inst.arg, inst.argval)  # raises
    frame.slots[inst.arg] = None


def make_cell(frame: Frame, inst: Instruction) -> None:
    frame.slots[inst.arg] = CellValue(frame.slots[inst.arg])


def copy_free_vars(frame: Frame, inst: Instruction) -> None:
    frame.slots[len(frame.slots) - inst.arg :] = frame.closure


def load_closure(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(frame.slots[inst.arg])


def _unbound(frame: Frame, name: str) -> NoReturn:
    if name in frame.code.co_cellvars:
        text = f"cannot access local variable '{name}' where it is not associated with a value"
        frame.vm.raise_error(UnboundLocalError, text)
    text = f"cannot access free variable '{name}' where it is not associated with a value in"
    frame.vm.raise_error(NameError, f"{text} enclosing scope", name=name)


def load_deref(frame: Frame, inst: Instruction) -> None:
    cell = frame.slots[inst.arg]
    if cell.content is None:
        _unbound(frame, inst.argval)
    frame.stack.append(frame.vm.resolve_cell(cell))


def store_deref(frame: Frame, inst: Instruction) -> None:
    cell = frame.slots[inst.arg]
    cell.content = frame.stack.pop()
    cell.mutated = True


def delete_deref(frame: Frame, inst: Instruction) -> None:
    cell = frame.slots[inst.arg]
    if cell.content is None:
        _unbound(frame, inst.argval)
    cell.content = None
    cell.mutated = True


def load_global(frame: Frame, inst: Instruction) -> None:
    value = global_value(frame.vm, frame.globals_, inst.argval)
    if inst.arg & 1:
        if VERSION >= (3, 13):
            frame.stack.append(value)
            frame.stack.append(None)
            return
        frame.stack.append(None)
    frame.stack.append(value)


def store_global(frame: Frame, inst: Instruction) -> None:
    frame.vm.set_global(frame.globals_, inst.argval, frame.stack.pop())


def delete_global(frame: Frame, inst: Instruction) -> None:
    global_value(frame.vm, frame.globals_, inst.argval)
    frame.vm.set_global(frame.globals_, inst.argval, None)


def load_attr(frame: Frame, inst: Instruction) -> None:
    value = frame.vm.get_attr(frame.stack.pop(), inst.argval)
    if VERSION >= (3, 12) and inst.arg & 1:
        _push_callable(frame, value)
    else:
        frame.stack.append(value)


def load_method(frame: Frame, inst: Instruction) -> None:
    _push_callable(frame, frame.vm.get_attr(frame.stack.pop(), inst.argval))


def _push_callable(frame: Frame, value: Value) -> None:
    if VERSION >= (3, 13):
        frame.stack.append(value)
        frame.stack.append(None)
    else:
        frame.stack.append(None)
        frame.stack.append(value)


def load_super_attr(frame: Frame, inst: Instruction) -> None:
    receiver = frame.stack.pop()
    cls = frame.stack.pop()
    frame.stack.pop()  # the global `super`; an overridden one is not followed
    if not isinstance(cls, Constant):
        raise GraphBreakSignal("super() of an unknown class")
    value = frame.vm.get_attr(SuperValue(cls.value, receiver), inst.argval)
    if inst.arg & 1:
        _push_callable(frame, value)
    else:
        frame.stack.append(value)


def store_attr(frame: Frame, inst: Instruction) -> None:
    obj = frame.stack.pop()
    frame.vm.set_attr(obj, inst.argval, frame.stack.pop())


def delete_attr(frame: Frame, inst: Instruction) -> None:
    frame.vm.del_attr(frame.stack.pop(), inst.argval)


def _raise_if_absent(vm: Interpreter, name: str) -> None:
    """Raise what Python raises where nothing gives a module of this name, which is guarded as far
    as modules that are loaded tell."""
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        return
    loaded = vm.held(sys.modules)
    assert isinstance(loaded, DictValue)
    dicts.get(vm, loaded, name)
    vm.raise_error(ModuleNotFoundError, f"No module named {name!r}", name=name)


def import_name(frame: Frame, inst: Instruction) -> None:
    from_list = frame.stack.pop()
    level = frame.stack.pop()
    vm = frame.vm
    built_in(vm, "__import__")
    names = vm.as_python(from_list)
    depth = vm.as_python(level)
    package = frame.globals_.get("__package__") or frame.globals_.get("__name__", "")
    absolute = (
        importlib.util.resolve_name("." * depth + inst.argval, package) if depth else inst.argval
    )
    if absolute not in sys.modules:
        _raise_if_absent(vm, absolute.partition(".")[0])
        raise GraphBreakSignal(
            f"`import {absolute}` loads a module", "import it before the function is compiled"
        )
    module = __import__(inst.argval, frame.globals_, None, names or (), depth)
    sources = vm.session.sources
    for name in (absolute, inst.argval.partition(".")[0]):  # another may take its place
        if name not in sys.modules:  # (of a relative import)
            continue
        place = sources.item(sources.held(sys.modules, "sys.modules"), name)
        vm.session.guards.pin(place, sys.modules[name])
    frame.stack.append(vm.held(module))


def _raise_not_there(vm: Interpreter, module: str, name: str) -> NoReturn:
    """Raise what Python says of a name that a module, loaded already, does not have."""
    try:
        exec(f"from {module} import {name}", {})
    except ImportError as error:
        try:
            vm.raise_error(ImportError, str(error), name=error.name)
        except ProgramException as raised:
            raised.value.slots["path"] = Constant(error.path)  # type: ignore[attr-defined]
            raise
    raise GraphBreakSignal(f"`{name}` of {module}, which came meanwhile")


def import_from(frame: Frame, inst: Instruction) -> None:
    module = frame.stack[-1]
    value = frame.vm.find_attr(module, inst.argval)
    if value is None:
        assert isinstance(module, Constant)
        full_name = f"{module.value.__name__}.{inst.argval}"
        if full_name not in sys.modules:
            _raise_not_there(frame.vm, module.value.__name__, inst.argval)
        value = frame.vm.held(sys.modules[full_name])
    frame.stack.append(value)


# --- class bodies --------------------------------------------------------------------------------


def _namespace(frame: Frame) -> DictValue:
    if frame.namespace is None:
        raise GraphBreakSignal("the code of a module")
    return frame.namespace


def load_name(frame: Frame, inst: Instruction) -> None:
    known = dicts.get(frame.vm, _namespace(frame), inst.argval)
    if known is None:
        known = global_value(frame.vm, frame.globals_, inst.argval)
    frame.stack.append(known)


def store_name(frame: Frame, inst: Instruction) -> None:
    dicts.put(frame.vm, _namespace(frame), Constant(inst.argval), frame.stack.pop())


def delete_name(frame: Frame, inst: Instruction) -> None:
    if not dicts.delete(frame.vm, _namespace(frame), inst.argval):
        text = f"name '{inst.argval}' is not defined"
        frame.vm.raise_error(NameError, text, name=inst.argval)


def load_locals(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(_namespace(frame))


def setup_annotations(frame: Frame, inst: Instruction) -> None:
    namespace = _namespace(frame)
    if dicts.get(frame.vm, namespace, "__annotations__") is None:
        dicts.put(frame.vm, namespace, Constant("__annotations__"), DictValue())


def load_class_deref(frame: Frame, inst: Instruction) -> None:
    """A name of the class body, else the variable of the function around it."""
    known = dicts.get(frame.vm, _namespace(frame), inst.argval)
    if known is None:
        load_deref(frame, inst)
    else:
        frame.stack.append(known)


def load_from_dict_or_deref(frame: Frame, inst: Instruction) -> None:
    frame.stack.pop()  # the namespace
    load_class_deref(frame, inst)


def load_from_dict_or_globals(frame: Frame, inst: Instruction) -> None:
    frame.stack.pop()
    load_name(frame, inst)


ROWS = (
    Row("CACHE", ALWAYS, nothing),
    Row("NOP", ALWAYS, nothing),
    Row("RESUME", ALWAYS, nothing),
    Row("EXTENDED_ARG", ALWAYS, nothing),
    Row("PRECALL", ((3, 11), (3, 11)), nothing),
    Row("POP_TOP", ALWAYS, pop_top),
    Row("PUSH_NULL", ALWAYS, push_null),
    Row("COPY", ALWAYS, copy),
    Row("SWAP", ALWAYS, swap),
    Row("LOAD_CONST", ALWAYS, load_const),
    Row("LOAD_FAST", ALWAYS, load_fast),
    Row("LOAD_FAST_CHECK", FROM_312, load_fast),
    Row("LOAD_FAST_AND_CLEAR", FROM_312, load_fast_and_clear),
    Row("LOAD_FAST_LOAD_FAST", FROM_313, load_fast_load_fast),
    Row("STORE_FAST", ALWAYS, store_fast),
    Row("STORE_FAST_LOAD_FAST", FROM_313, store_fast_load_fast),
    Row("STORE_FAST_STORE_FAST", FROM_313, store_fast_store_fast),
    Row("DELETE_FAST", ALWAYS, delete_fast),
    Row("MAKE_CELL", ALWAYS, make_cell),
    Row("COPY_FREE_VARS", ALWAYS, copy_free_vars),
    Row("LOAD_CLOSURE", UNTIL_312, load_closure),
    Row("LOAD_DEREF", ALWAYS, load_deref),
    Row("STORE_DEREF", ALWAYS, store_deref),
    Row("DELETE_DEREF", ALWAYS, delete_deref),
    Row("LOAD_NAME", ALWAYS, load_name),
    Row("STORE_NAME", ALWAYS, store_name),
    Row("DELETE_NAME", ALWAYS, delete_name),
    Row("SETUP_ANNOTATIONS", ALWAYS, setup_annotations),
    Row("LOAD_CLASSDEREF", UNTIL_311, load_class_deref),
    Row("LOAD_LOCALS", FROM_312, load_locals),
    Row("LOAD_FROM_DICT_OR_DEREF", FROM_312, load_from_dict_or_deref),
    Row("LOAD_FROM_DICT_OR_GLOBALS", FROM_312, load_from_dict_or_globals),
    Row("LOAD_GLOBAL", ALWAYS, load_global),
    Row("STORE_GLOBAL", ALWAYS, store_global),
    Row("DELETE_GLOBAL", ALWAYS, delete_global),
    Row("LOAD_ATTR", ALWAYS, load_attr),
    Row("LOAD_METHOD", UNTIL_311, load_method),
    Row("LOAD_SUPER_ATTR", FROM_312, load_super_attr),
    Row("STORE_ATTR", ALWAYS, store_attr),
    Row("DELETE_ATTR", ALWAYS, delete_attr),
    Row("IMPORT_NAME", ALWAYS, import_name),
    Row("IMPORT_FROM", ALWAYS, import_from),
)
