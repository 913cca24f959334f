"""Code that is replaced after capture: methods, properties, defaults, code objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_capture.api import optimize

from . import programs


class Base:
    kind = "base"

    def scale(self, t: torch.Tensor) -> torch.Tensor:
        return t * 2

    @property
    def factor(self) -> int:
        return 3

    @classmethod
    def shift(cls, t: torch.Tensor) -> torch.Tensor:
        return t + 1

    @staticmethod
    def half(t: torch.Tensor) -> torch.Tensor:
        return t / 2

    def over(self, t: torch.Tensor) -> torch.Tensor:
        return t - 1

    def __len__(self) -> int:
        return 4


class Middle(Base):
    pass


class Derived(Middle):
    def over(self, t: torch.Tensor) -> torch.Tensor:
        return super().over(t) * 5


def with_defaults(t: torch.Tensor, by: int = 2, *, more: int = 3) -> torch.Tensor:
    return t * by + more


def replaced_body(t: torch.Tensor, by: int = 2, *, more: int = 3) -> torch.Tensor:
    return t - by - more


def program(t: torch.Tensor, thing: Derived) -> Any:
    t = thing.half(thing.shift(thing.scale(t))) * thing.factor * len(thing)
    return with_defaults(thing.over(t)), thing.kind, bool(thing)


Change = Callable[[pytest.MonkeyPatch], None]


def _class(owner: type, name: str, value: Any) -> Change:
    return lambda patch: patch.setattr(owner, name, value, raising=False)


def _kwdefault(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(with_defaults.__kwdefaults__, "more", 7)


CHANGES: dict[str, Change] = {
    "method": _class(Base, "scale", lambda self, t: t * 7),
    "method of a class between": _class(Middle, "scale", lambda self, t: t * 7),
    "method of the class itself": _class(Derived, "scale", lambda self, t: t * 7),
    "property": _class(Base, "factor", property(lambda self: 9)),
    "property becomes data": _class(Derived, "factor", 9),
    "class method": _class(Base, "shift", classmethod(lambda cls, t: t + 9)),
    "class method below": _class(Derived, "shift", classmethod(lambda cls, t: t + 9)),
    "static method": _class(Base, "half", staticmethod(lambda t: t / 9)),
    "static method below": _class(Middle, "half", staticmethod(lambda t: t / 9)),
    "method under super": _class(Base, "over", lambda self, t: t - 9),
    "method that comes before under super": _class(Middle, "over", lambda self, t: t - 9),
    "special method": _class(Base, "__len__", lambda self: 6),
    "special method that was absent": _class(Derived, "__bool__", lambda self: False),
    "class data below": _class(Middle, "kind", "middle"),
    "defaults": lambda patch: patch.setattr(with_defaults, "__defaults__", (5,)),
    "keyword defaults": lambda patch: patch.setattr(with_defaults, "__kwdefaults__", {"more": 8}),
    "keyword default in place": _kwdefault,
    "code": lambda patch: patch.setattr(with_defaults, "__code__", replaced_body.__code__),
    "__getattribute__": _class(
        Derived, "__getattribute__", lambda self, name: _odd_getattribute(self, name)
    ),
}


def _odd_getattribute(self: Any, name: str) -> Any:
    return 11 if name == "factor" else object.__getattribute__(self, name)


@pytest.mark.parametrize("name", CHANGES)
def test_a_replacement_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = programs.CountingBackend()
    captured = optimize(program, backend, fullgraph=True)
    thing, t = Derived(), torch.ones(2)
    before = program(t, thing)
    assert programs.same(captured(t, thing), before)
    assert programs.same(captured(t, thing), before)
    assert len(backend.graphs) == 1
    CHANGES[name](monkeypatch)
    after = program(t, thing)
    assert not programs.same(before, after)
    assert programs.same(captured(t, thing), after)
    assert len(backend.graphs) == 2
    monkeypatch.undo()
    assert programs.same(captured(t, thing), before)


def test_what_was_not_read_of_a_class_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = programs.CountingBackend()
    captured = optimize(program, backend, fullgraph=True)
    thing, t = Derived(), torch.ones(2)
    captured(t, thing)
    monkeypatch.setattr(Base, "unrelated", 5, raising=False)
    captured(t, thing)
    assert len(backend.graphs) == 1
