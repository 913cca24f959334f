"""Exceptions, `with` blocks and generators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail_capture.interpreter.machine.decoding import (
    ALWAYS,
    FROM_312,
    VERSION,
    Instruction,
    Row,
)
from dovetail_capture.interpreter.machine.frame import MAKE_GENERATOR, YIELD, GeneratorValue
from dovetail_capture.interpreter.protocols import class_attributes, object_attributes
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.protocols.global_variables import built_in
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import NONE, Constant, boolean
from dovetail_capture.interpreter.values.functions import HandlerMark
from dovetail_capture.interpreter.values.objects import ObjectValue, ProgramException

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine.frame import Frame


def push_exc_info(frame: Frame, inst: Instruction) -> None:
    error = frame.stack.pop()
    frame.stack.append(HandlerMark(frame.handled))
    frame.stack.append(error)
    frame.handled = error


def pop_except(frame: Frame, inst: Instruction) -> None:
    mark = frame.stack.pop()
    assert isinstance(mark, HandlerMark)
    mark.active = False
    frame.handled = mark.previous


def check_exc_match(frame: Frame, inst: Instruction) -> None:
    value = frame.stack.pop()
    wanted = frame.vm.as_python(value)
    classes = wanted if isinstance(wanted, tuple) else (wanted,)
    if wanted is UNKNOWN:
        raise GraphBreakSignal(f"an `except` clause with {value.describe()}")
    if not all(isinstance(cls, type) and issubclass(cls, BaseException) for cls in classes):
        frame.vm.raise_error(
            TypeError, "catching classes that do not inherit from BaseException is not allowed"
        )
    raised = frame.stack[-1].python_type()
    caught = any(class_attributes.is_subclass(frame.vm, raised, cls) for cls in classes)
    frame.stack.append(boolean(caught))


def load_assertion_error(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(Constant(AssertionError))


def raise_varargs(frame: Frame, inst: Instruction) -> None:
    vm = frame.vm
    cause = frame.stack.pop() if inst.arg == 2 else None
    if inst.arg == 0:
        error = vm.handled_exception()
        if error is None:
            vm.raise_error(RuntimeError, "No active exception to reraise")
        assert error is not None
        raise ProgramException(error)
    value = vm.as_exception(frame.stack.pop())
    if value.real is not None:  # its traceback gets further entries, where Python raises it
        raise GraphBreakSignal("raising an exception that was made before the graph")
    if cause is not None:
        if not (isinstance(cause, Constant) and cause.value is None):
            cause = vm.as_exception(cause, "exception causes")
        value.slots["__cause__"] = cause
        value.slots["__suppress_context__"] = boolean(True)
    vm.note_context(value)
    raise ProgramException(value)


def reraise(frame: Frame, inst: Instruction) -> None:
    value = frame.stack.pop()
    raise ProgramException(value)


def before_with(frame: Frame, inst: Instruction) -> None:
    vm = frame.vm
    manager = frame.stack.pop()
    methods = []
    for name in ("__enter__", "__exit__"):
        owner, method = class_attributes.class_lookup(vm, manager.python_type(), name)
        if method is class_attributes.MISSING:
            text = f"'{manager.python_type().__name__}' object does not support the context manager"
            which = "" if name == "__enter__" else " (missed __exit__ method)"
            vm.raise_error(TypeError, f"{text} protocol{which}")
        methods.append(object_attributes.bind_to_instance(vm, manager, owner, name, method))
    frame.stack.append(methods[1])
    frame.stack.append(vm.call(methods[0], [], {}))


def with_except_start(frame: Frame, inst: Instruction) -> None:
    error = frame.stack[-1]
    leave = frame.stack[-4]
    cls = Constant(error.python_type())
    traceback = frame.vm.get_attr(error, "__traceback__")
    frame.stack.append(frame.vm.call(leave, [cls, error, traceback], {}))


def return_generator(frame: Frame, inst: Instruction) -> int:
    generator = frame.result = GeneratorValue(frame)
    generator.born = frame.vm.frames[0].steps
    frame.vm.generators.append(generator)
    return MAKE_GENERATOR


def yield_value(frame: Frame, inst: Instruction) -> int:
    frame.result = frame.stack.pop()
    return YIELD


def get_yield_from_iter(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(frame.vm.get_iter(frame.stack.pop()))


def send(frame: Frame, inst: Instruction) -> None:
    vm, stack = frame.vm, frame.stack
    sent = stack.pop()
    receiver = stack[-1]
    try:
        if isinstance(receiver, GeneratorValue):
            item = vm.resume(receiver, sent)
            returned = receiver.frame.result if item is None else None
        elif isinstance(sent, Constant) and sent.value is None:
            own = isinstance(receiver, ObjectValue)  # `next_value` drops what it returned
            item = vm.call_method(receiver, "__next__", []) if own else vm.next_value(receiver)
            returned = NONE
        else:
            item, returned = vm.call_method(receiver, "send", [sent]), NONE
    except ProgramException as error:
        if not issubclass(error.value.python_type(), StopIteration):
            raise
        item, returned = None, vm.get_attr(error.value, "value")
    if item is not None:
        stack.append(item)
        return
    if VERSION < (3, 12):
        stack[-1] = returned or NONE
    else:
        stack.append(returned or NONE)
    frame.next_index = inst.target


def end_send(frame: Frame, inst: Instruction) -> None:
    del frame.stack[-2]


def cleanup_throw(frame: Frame, inst: Instruction) -> None:
    error = frame.stack.pop()
    if not issubclass(error.python_type(), StopIteration):
        raise ProgramException(error)
    del frame.stack[-2:]
    assert isinstance(error, ObjectValue)
    value = frame.vm.get_attr(error, "value")
    frame.stack.append(NONE)
    frame.stack.append(value)


def load_build_class(frame: Frame, inst: Instruction) -> None:
    frame.stack.append(built_in(frame.vm, "__build_class__"))


def break_by_design(frame: Frame, inst: Instruction) -> None:
    """Instructions of constructs that are left to Python."""
    raise GraphBreakSignal(f"the construct behind the instruction {inst.opname}")


# Module code, asynchronous code, exception groups, the prompt's printing: none of them holds tensor
# work that a graph could take.
BREAKS_BY_DESIGN = (
    "IMPORT_STAR", "PRINT_EXPR", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH", "END_ASYNC_FOR",
    "ASYNC_GEN_WRAP", "GET_AWAITABLE", "CHECK_EG_MATCH", "PREP_RERAISE_STAR", "CALL_INTRINSIC_2",
    "RESERVED",
)  # fmt: skip

ROWS = (
    Row("PUSH_EXC_INFO", ALWAYS, push_exc_info),
    Row("POP_EXCEPT", ALWAYS, pop_except),
    Row("CHECK_EXC_MATCH", ALWAYS, check_exc_match),
    Row("LOAD_ASSERTION_ERROR", ALWAYS, load_assertion_error),
    Row("RAISE_VARARGS", ALWAYS, raise_varargs),
    Row("RERAISE", ALWAYS, reraise),
    Row("BEFORE_WITH", ALWAYS, before_with),
    Row("WITH_EXCEPT_START", ALWAYS, with_except_start),
    Row("RETURN_GENERATOR", ALWAYS, return_generator),
    Row("YIELD_VALUE", ALWAYS, yield_value),
    Row("GET_YIELD_FROM_ITER", ALWAYS, get_yield_from_iter),
    Row("SEND", ALWAYS, send),
    Row("END_SEND", FROM_312, end_send),
    Row("CLEANUP_THROW", FROM_312, cleanup_throw),
    Row("LOAD_BUILD_CLASS", ALWAYS, load_build_class),
    *(Row(name, ALWAYS, break_by_design) for name in BREAKS_BY_DESIGN),
)
