"""Building and unpacking of containers and strings; pattern matching."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dovetail_capture.interpreter.machine.decoding import (
    ALWAYS,
    FROM_313,
    UNTIL_312,
    Instruction,
    Row,
)
from dovetail_capture.interpreter.protocols import dicts, operands, sequences, truth_and_length
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.protocols.dicts import add_member
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, boolean
from dovetail_capture.interpreter.values.containers import (
    DictValue,
    ListValue,
    SetValue,
    SliceValue,
    TupleValue,
    hash_key,
)
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.interpreter.values.texts import joined, late_text

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter
    from dovetail_capture.interpreter.machine.frame import Frame


def _pop_many(frame: Frame, count: int) -> list[Value]:
    if not count:
        return []
    items = frame.stack[-count:]
    del frame.stack[-count:]
    return items


def build_tuple(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(TupleValue(_pop_many(frame, inst.arg)))


def build_list(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(ListValue(_pop_many(frame, inst.arg)))


def build_set(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(SetValue(_pop_many(frame, inst.arg)))


def build_map(frame: Frame, inst: Instruction) -> None:
    items = _pop_many(frame, 2 * inst.arg)
    _push_dict(frame, items[::2], items[1::2])


def build_const_key_map(frame: Frame, inst: Instruction) -> None:
    keys = list(frame.vm.iterate(frame.stack.pop()))
    _push_dict(frame, keys, _pop_many(frame, inst.arg))


def _push_dict(frame: Frame, keys: list[Value], values: list[Value]) -> None:
    dictionary = DictValue()
    for key, value in zip(keys, values, strict=True):
        dicts.put(frame.vm, dictionary, key, value)
    frame.stack.append(dictionary)


def build_slice(frame: Frame, inst: Instruction) -> None:
    parts = _pop_many(frame, inst.arg)
    frame.stack.append(SliceValue(parts[0], parts[1], parts[2] if inst.arg == 3 else NONE))


def build_string(frame: Frame, inst: Instruction) -> None:
    parts = _pop_many(frame, inst.arg)
    if all(isinstance(part, Constant) for part in parts):
        frame.stack.append(joined(parts))
    else:
        frame.stack.append(Constant("".join(map(frame.vm.as_python, parts))))


def list_append(frame: Frame, inst: Instruction) -> None:
    item = frame.stack.pop()
    target = frame.stack[-inst.arg]
    target.append(item)


def set_add(frame: Frame, inst: Instruction) -> None:
    item = frame.stack.pop()
    target = frame.stack[-inst.arg]
    add_member(frame.vm.session, target, item)


def map_add(frame: Frame, inst: Instruction) -> None:
    value = frame.stack.pop()
    key = frame.stack.pop()
    dicts.put(frame.vm, frame.stack[-inst.arg], key, value)


def is_iterable(vm: Interpreter, value: Value) -> bool:
    """Has its class what `iter()` asks for?"""
    if not isinstance(value, (Constant, ObjectValue)):
        return True
    names = ("__iter__", "__getitem__")
    return any(operands.dunder(vm, value, name) is not None for name in names)


def list_extend(frame: Frame, inst: Instruction) -> None:
    vm, items = frame.vm, frame.stack.pop()
    if not is_iterable(vm, items):
        text = f"Value after * must be an iterable, not {items.python_type().__name__}"
        vm.raise_error(TypeError, text)
    sequences.extend(vm, frame.stack[-inst.arg], items)


def set_update(frame: Frame, inst: Instruction) -> None:
    items = frame.stack.pop()
    target = frame.stack[-inst.arg]
    target.update(frame.vm.iterate(items), frame.vm.native(items))
    target.mutated = True


def dict_update(frame: Frame, inst: Instruction) -> None:
    vm, mapping = frame.vm, frame.stack.pop()
    if not isinstance(vm.native(mapping), DictValue) and vm.find_attr(mapping, "keys") is None:
        vm.raise_error(TypeError, f"'{mapping.python_type().__name__}' object is not a mapping")
    dicts.update(vm, frame.stack[-inst.arg], mapping)


def dict_merge(frame: Frame, inst: Instruction) -> None:
    vm = frame.vm
    mapping = frame.stack.pop()
    target = frame.stack[-inst.arg]
    native = vm.native(mapping)
    called = frame.stack[-inst.arg - 2] or frame.stack[-inst.arg - 3]  # the first may be a NULL
    if isinstance(native, DictValue):
        for key in dicts.keys(vm, native):
            if dicts.contains(vm, target, hash_key(key)):
                text = f"got multiple values for keyword argument {key.describe()}"
                vm.raise_error(TypeError, f"{function_text(vm, called)} {text}")
    elif vm.find_attr(mapping, "keys") is None:
        text = f"argument after ** must be a mapping, not {mapping.python_type().__name__}"
        vm.raise_error(TypeError, f"{function_text(vm, called)} {text}")
    dicts.update(vm, target, mapping)


def function_text(vm: Interpreter, function: Value) -> str:
    """What CPython calls a function in the error of a call."""
    names = [vm.find_attr(function, name) for name in ("__module__", "__qualname__")]
    module, name = (None if value is None else vm.as_python(value) for value in names)
    if not isinstance(name, str):
        return vm.to_text(function, "str")
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


def unpack_sequence(frame: Frame, inst: Instruction) -> None:
    items = list(itertools.islice(_unpacked(frame), inst.arg + 1))  # one too many tells
    if len(items) > inst.arg:
        text = f"too many values to unpack (expected {inst.arg})"
        frame.vm.raise_error(ValueError, text)
    if len(items) < inst.arg:
        text = f"not enough values to unpack (expected {inst.arg}, got {len(items)})"
        frame.vm.raise_error(ValueError, text)
    frame.stack.extend(reversed(items))


def _unpacked(frame: Frame) -> Iterator[Value]:
    """The items of what is on the stack, which is to be taken apart."""
    value = frame.stack.pop()
    cls = value.python_type()
    if isinstance(value, Constant) and not isinstance(value.value, type):
        if not hasattr(cls, "__iter__") and not hasattr(cls, "__getitem__"):
            text = f"cannot unpack non-iterable {cls.__name__} object"
            frame.vm.raise_error(TypeError, text)
    return frame.vm.iterate(value)


def unpack_ex(frame: Frame, inst: Instruction) -> None:
    before, after = inst.arg & 0xFF, inst.arg >> 8
    items = list(_unpacked(frame))
    if len(items) < before + after:
        least = f"expected at least {before + after}, got {len(items)}"
        text = f"not enough values to unpack ({least})"
        frame.vm.raise_error(ValueError, text)
    middle = len(items) - after
    frame.stack.extend(reversed(items[middle:]))
    frame.stack.append(ListValue(items[before:middle]))
    frame.stack.extend(reversed(items[:before]))


def format_value(frame: Frame, inst: Instruction) -> None:
    """FORMAT_VALUE of 3.11 and 3.12: conversion in the low bits, a spec if bit 2 is set."""
    spec = frame.stack.pop() if inst.arg & 4 else Constant("")
    _format(frame, frame.stack.pop(), inst.arg & 3, spec)


def convert_value(frame: Frame, inst: Instruction) -> None:
    _format(frame, frame.stack.pop(), inst.arg, None)


def format_simple(frame: Frame, inst: Instruction) -> None:
    _format(frame, frame.stack.pop(), 0, Constant(""))


def format_with_spec(frame: Frame, inst: Instruction) -> None:
    spec = frame.stack.pop()
    _format(frame, frame.stack.pop(), 0, spec)


def _format(frame: Frame, value: Value, conversion: int, spec: Value | None) -> None:
    vm = frame.vm
    text = None
    if spec is None or isinstance(spec, Constant):
        text = late_text(value, ("", "s", "r", "a")[conversion], spec.value if spec else "")
    if text is not None:
        frame.stack.append(text)
        return
    if conversion:
        real: object = vm.to_text(value, "repr" if conversion in (2, 3) else "str")
        if conversion == 3:
            real = ascii(vm.as_python(value)) if not isinstance(real, str) else real
    else:
        assert spec is not None
        frame.stack.append(vm.call(Constant(format), [value, spec], {}))
        return
    if spec is not None:
        try:
            real = format(real, vm.as_python(spec))
        except (TypeError, ValueError) as error:
            vm.raise_real(error)
    frame.stack.append(Constant(real))


def get_len(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(Constant(truth_and_length.length(frame.vm, frame.stack[-1])))


# Py_TPFLAGS_SEQUENCE, Py_TPFLAGS_MAPPING: a class has at most one of them, that of its first
# base or of the registration that came last.
_SEQUENCE, _MAPPING = 1 << 5, 1 << 6
_MISSING = Constant(object())


def match_mapping(frame: Frame, inst: Instruction) -> None:
    cls = frame.stack[-1].python_type()
    frame.stack.append(boolean(bool(cls.__flags__ & _MAPPING)))


def match_sequence(frame: Frame, inst: Instruction) -> None:
    cls = frame.stack[-1].python_type()
    frame.stack.append(boolean(bool(cls.__flags__ & _SEQUENCE)))


def match_keys(frame: Frame, inst: Instruction) -> None:
    vm = frame.vm
    subject, keys = frame.stack[-2], frame.stack[-1]
    getter, seen, found = vm.get_attr(subject, "get"), set(), []
    for key in vm.iterate(keys):
        hashed = hash_key(key)
        if hashed in seen:
            text = vm.to_text(key, "repr")
            vm.raise_error(ValueError, f"mapping pattern checks duplicate key ({text})")
        seen.add(hashed)
        value = vm.call(getter, [key, _MISSING], {})
        if isinstance(value, Constant) and value.value is _MISSING.value:
            frame.stack.append(NONE)
            return
        found.append(value)
    frame.stack.append(TupleValue(found))


_MATCHES_SELF = 1 << 22  # Py_TPFLAGS_MATCH_SELF: `case int(n)` and of classes derived from it


def _check_match_args(
    vm: Interpreter, cls: type, match_args: Any, count: int, matches_self: bool
) -> None:
    if not isinstance(match_args, tuple):
        if match_args is UNKNOWN:
            raise GraphBreakSignal(f"__match_args__ of {cls.__name__}")
        kind = type(match_args).__name__
        vm.raise_error(TypeError, f"{cls.__name__}.__match_args__ must be a tuple (got {kind})")
    allowed = 1 if matches_self else len(match_args)
    if count > allowed:
        vm.raise_error(
            TypeError,
            f"{cls.__name__}() accepts {allowed} positional sub-pattern{'s' * (allowed != 1)} "
            f"({count} given)",
        )
    for name in match_args[:count]:
        if not isinstance(name, str):
            kind = type(name).__name__
            vm.raise_error(TypeError, f"__match_args__ elements must be strings (got {kind})")


def _refused_pattern(pattern: Any) -> None:
    """Python's own error about a pattern that is no class."""
    match None:
        case pattern():
            pass


def match_class(frame: Frame, inst: Instruction) -> None:
    vm = frame.vm
    names = vm.as_python(frame.stack.pop())
    cls_value = frame.stack.pop()
    subject = frame.stack.pop()
    cls = vm.as_python(cls_value)
    if cls is UNKNOWN:
        raise GraphBreakSignal(f"a pattern of {cls_value.describe()}")
    if not isinstance(cls, type):
        try:
            _refused_pattern(cls)
        except TypeError as error:
            vm.raise_real(error)
    if not vm.is_instance(subject, cls_value):
        frame.stack.append(NONE)
        return
    count = inst.arg
    values: list[Value] = []
    if count:
        found = vm.find_attr(cls_value, "__match_args__")
        matches_self = found is None and bool(cls.__flags__ & _MATCHES_SELF)
        match_args = () if found is None else vm.as_python(found)
        _check_match_args(vm, cls, match_args, count, matches_self)
        if matches_self:
            values.append(subject)
        else:
            names = (*match_args[:count], *names)
    for place, name in enumerate(names):
        if name in names[:place]:
            text = f"{cls.__name__}() got multiple sub-patterns for attribute {name!r}"
            vm.raise_error(TypeError, text)
        value = vm.find_attr(subject, name)
        if value is None:
            frame.stack.append(NONE)
            return
        values.append(value)
    frame.stack.append(TupleValue(values))


ROWS = (
    Row("BUILD_TUPLE", ALWAYS, build_tuple),
    Row("BUILD_LIST", ALWAYS, build_list),
    Row("BUILD_SET", ALWAYS, build_set),
    Row("BUILD_MAP", ALWAYS, build_map),
    Row("BUILD_CONST_KEY_MAP", ALWAYS, build_const_key_map),
    Row("BUILD_SLICE", ALWAYS, build_slice),
    Row("BUILD_STRING", ALWAYS, build_string),
    Row("LIST_APPEND", ALWAYS, list_append),
    Row("SET_ADD", ALWAYS, set_add),
    Row("MAP_ADD", ALWAYS, map_add),
    Row("LIST_EXTEND", ALWAYS, list_extend),
    Row("SET_UPDATE", ALWAYS, set_update),
    Row("DICT_UPDATE", ALWAYS, dict_update),
    Row("DICT_MERGE", ALWAYS, dict_merge),
    Row("UNPACK_SEQUENCE", ALWAYS, unpack_sequence),
    Row("UNPACK_EX", ALWAYS, unpack_ex),
    Row("FORMAT_VALUE", UNTIL_312, format_value),
    Row("CONVERT_VALUE", FROM_313, convert_value),
    Row("FORMAT_SIMPLE", FROM_313, format_simple),
    Row("FORMAT_WITH_SPEC", FROM_313, format_with_spec),
    Row("GET_LEN", ALWAYS, get_len),
    Row("MATCH_MAPPING", ALWAYS, match_mapping),
    Row("MATCH_SEQUENCE", ALWAYS, match_sequence),
    Row("MATCH_KEYS", ALWAYS, match_keys),
    Row("MATCH_CLASS", ALWAYS, match_class),
)
