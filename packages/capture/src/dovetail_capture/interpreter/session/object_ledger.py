"""The objects that existed before the frame, by their ids, what stands for them, and how far their
iterators have gone.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from dovetail_guards.source import Source

from dovetail_capture.interpreter.session.cached_calls import Kept
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.containers import DictValue
from dovetail_capture.interpreter.values.functions import HeldIterator
from dovetail_capture.interpreter.values.objects import ObjectValue
from dovetail_capture.recipe import CallFunction

if TYPE_CHECKING:
    from dovetail_capture.interpreter.session.session import Session

V = TypeVar("V", bound=Value)


class ObjectLedger:
    """One value for each object that existed before, and what was asked of classes."""

    def __init__(self) -> None:
        self.known: dict[int, Value] = {}  # id of a pre-existing object -> its value
        # ids of the instance dictionaries of known objects -> their values
        self.instance_dicts: dict[int, DictValue] = {}
        self.keep_alive: list[Any] = []  # the objects whose ids `known` speaks of
        # What makes the values of the objects of a class, of those met (`wrap`)
        self.wrappers: dict[type, Callable[[Session, Any, Source], Value]] = {}
        self.cached_calls: dict[Any, Kept] = {}  # of what `functools.cache` wraps
        self.abstract_answers: dict[tuple[type, abc.ABCMeta], bool] = {}  # what was asked of ABCs
        self.symbolic_keys = False  # is a symbolic int a key of a dictionary?
        # ids of classes, and of parts of classes, made for this capture only -> the step they were
        # made in (see `library.local_classes`); `keep_alive` holds them
        self.stand_ins: dict[int, int] = {}
        # Weak references and proxies made in the frame, by the id of their target's value: Python
        # makes one of each kind
        self.weak_references: dict[tuple[int, type], Value] = {}
        # Of such classes, those that a call with constants makes anew where the frame returns them
        self.class_recipes: dict[int, CallFunction] = {}

    def bind(self, real: Any, value: V) -> V:
        """Let `value` stand for a pre-existing object, which is kept alive."""
        self.known[id(real)] = value
        self.keep_alive.append(real)
        return value

    def bind_instance_dict(self, attributes: dict[str, Any], value: DictValue) -> None:
        """Let `value` stand for the instance dictionary of a pre-existing object."""
        self.instance_dicts[id(attributes)] = value
        self.keep_alive.append(attributes)

    def note_stand_in(self, made: Any, step: int) -> None:
        """Remember that an object was made for this capture only, in a step of the top frame."""
        self.stand_ins[id(made)] = step
        self.keep_alive.append(made)

    def real_of(self, value: Value) -> Any:
        """The object that existed before and that `value` stands for; None if it is not known."""
        key = next((key for key, known in self.known.items() if known is value), None)
        return next((obj for obj in self.keep_alive if id(obj) == key), None)

    def let_go(self) -> None:
        """Part the values from the objects they stand for: values refer to one another in
        cycles."""
        for value in self.known.values():
            if hasattr(value, "real"):
                value.real = None
            if isinstance(value, ObjectValue):
                value.fields.holder = None
        self.known.clear()
        self.keep_alive.clear()


class IteratorLedger:
    """Which iterators the replacement code steps, and how often."""

    def __init__(self) -> None:
        # (iterator, how many in a row), in their order; what a step takes steps of itself is not
        # among them.
        self.steps: list[tuple[HeldIterator, int]] = []
        self.steps_within = 0
        self.stepped: dict[int, HeldIterator] = {}  # all that were stepped, by their ids

    def note_step(self, iterator: HeldIterator) -> None:
        """Let the replacement code take a step of an iterator that existed before."""
        self.stepped[id(iterator)] = iterator
        if self.steps_within:
            return
        steps = self.steps
        count = steps.pop()[1] if steps and steps[-1][0] is iterator else 0
        steps.append((iterator, count + 1))
