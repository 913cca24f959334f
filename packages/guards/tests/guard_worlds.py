"""Random object graphs, every clause that can be said about them, and random changes to them."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch
from dovetail_guards import clauses as c
from dovetail_guards import source as s
from dovetail_guards.evaluate import constants_equal, instance_dict


class Plain:
    """Ordinary instances; their attributes are stored inline until `__dict__` is asked for."""

    shared = 3

    @property
    def computed(self) -> int:
        return 7


class Other(Plain):
    """What a `Plain` can turn into by assigning `__class__`."""


class Record:
    """Members of `__slots__` and, in its base, none."""

    __slots__ = ("__weakref__", "a", "b", "weight")


SLOTS = {name: Record.__dict__[name] for name in ("a", "b", "weight")}


class OtherRecord(Record):
    """The same layout; what `a` means is its own business."""

    __slots__ = ()
    a = property(lambda self: 5)


def first(t: Any, k: int = 1, *, w: int = 2) -> Any:
    return t


def second(u: Any, k: int = 3, *, w: int = 4) -> Any:
    v = u
    return v


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.norm = torch.nn.LayerNorm(width)
        self.scale = 1.5
        self.register_buffer("mask", torch.ones(width))


class OtherBlock(Block):
    pass


def clause_for_tensor(source: s.Source, tensor: torch.Tensor) -> c.TensorIs:
    strided = tensor.layout is torch.strided
    return c.TensorIs(
        source,
        type(tensor),
        tensor.dtype,
        tensor.device,
        tensor.requires_grad,
        tuple(tensor.size()),
        tuple(tensor.stride()) if strided else None,
        tensor.layout,
        tensor.is_conj(),
        tensor.is_neg(),
    )


_CONSTANTS = (int, float, str, bool, type(None), tuple, bytes, torch.dtype)


class World:
    """A value reachable from the frame function's roots, and the clauses that describe it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.objects: list[Any] = []  # everything mutable in it
        self.root = self.plain(4)
        for name in ("a", "b", "weight"):
            setattr(self.root, name, self.make(3))
        self.objects.append(self.root)
        self.clauses: list[c.Clause] = []
        self.tensors: list[s.Source] = []
        self._describe(s.LocalSource("x"), self.root, 8)

    def make(self, depth: int) -> Any:
        r = self.random
        makers: list[Callable[[], Any]] = [self.constant, self.tensor]
        if depth > 0:
            makers += 2 * [
                lambda: Block(r.choice((2, 3))),
                lambda: self.plain(depth),
                lambda: {self.key(): self.make(depth - 1) for _ in range(r.randrange(4))},
                lambda: OrderedDict(
                    (self.key(), self.make(depth - 1)) for _ in range(r.randrange(3))
                ),
                lambda: [self.make(depth - 1) for _ in range(r.randrange(4))],
                lambda: tuple(self.make(depth - 1) for _ in range(r.randrange(4))),
                lambda: self.module(depth),
                lambda: CellType(self.make(depth - 1)),
                lambda: self.record(depth),
                self.function,
                lambda: torch.nn.Sequential(*[Block(2) for _ in range(r.randrange(3))]),
            ]
        value = r.choice(makers)()
        if not isinstance(value, (*_CONSTANTS, torch.Size)):
            self.objects.append(value)
        return value

    def plain(self, depth: int) -> Plain:
        value = Plain()
        for _ in range(self.random.randrange(4)):
            setattr(value, self.name(), self.make(depth - 1))
        return value

    def record(self, depth: int) -> Record:
        value = Record()
        for _ in range(self.random.randrange(4)):
            SLOTS[self.random.choice(("a", "b", "weight"))].__set__(value, self.make(depth - 1))
        return value

    def function(self) -> FunctionType:
        made = FunctionType(self.random.choice((first, second)).__code__, {})
        made.__defaults__ = self.random.choice((None, (1,), (2,)))
        return made

    def module(self, depth: int) -> ModuleType:
        value = ModuleType("made")
        for _ in range(self.random.randrange(4)):
            setattr(value, self.name(), self.make(depth - 1))
        return value

    def name(self) -> str:
        return self.random.choice(("a", "b", "shared", "forward", "weight"))

    def key(self) -> Any:
        return self.random.choice(("a", "b", 1, 2, True, None, "forward", (1, 2), 1.5))

    def constant(self) -> Any:
        r = self.random
        return r.choice(
            (0, 1, True, 1.0, -0.0, 0.0, "a", None, (1, 2.0), 10**30, 2**40, float("nan"))
        )

    def tensor(self) -> torch.Tensor:
        r = self.random
        shape = tuple(r.choice((1, 2, 3)) for _ in range(r.randrange(3)))
        tensor = torch.ones(shape, dtype=r.choice((torch.float32, torch.float64)))
        if r.random() < 0.2 and tensor.dim() == 2:
            tensor = tensor.to_sparse()
        return torch.nn.Parameter(tensor) if r.random() < 0.3 else tensor

    # --- describing ---------------------------------------------------------------------------

    def _describe(self, source: s.Source, value: Any, depth: int) -> None:
        """Some random, true clauses about a value, and about what it contains."""
        r, add = self.random, self.clauses.append
        if depth == 0:
            return
        if isinstance(value, torch.Tensor):
            self.tensors.append(source)
            add(clause_for_tensor(source, value))
            return
        if isinstance(value, _CONSTANTS):
            add(c.ConstantIs(source, value))
            return
        if r.random() < 0.5:
            add(c.TypeIs(source, type(value)))
        if r.random() < 0.2:
            add(c.IdIs(source, value))
        if isinstance(value, (dict, list, tuple)) and r.random() < 0.6:
            add(c.LengthIs(source, len(value)))
        if isinstance(value, dict):
            if r.random() < 0.6:
                add(c.DictKeysAre(source, tuple(value)))
            key = self.key()
            add(c.HasKey(source, key, key in value))
            for i, key in enumerate(value):
                if r.random() < 0.3 and isinstance(key, _CONSTANTS):
                    add(c.ConstantIs(s.DictKeySource(source, i), key))
                if r.random() < 0.8:
                    self._describe(s.ItemSource(source, key), value[key], depth - 1)
        elif isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                if r.random() < 0.8:
                    index = i if r.random() < 0.5 else i - len(value)
                    self._describe(s.ItemSource(source, index), item, depth - 1)
        elif isinstance(value, CellType):
            self._describe(s.CellContentsSource(source), value.cell_contents, depth - 1)
        elif isinstance(value, FunctionType):
            self._describe_function(source, value)
        elif isinstance(value, Record):
            for name in ("a", "b", "weight"):
                if not hasattr(value, name):
                    add(c.SlotIsEmpty(source, name))
                elif r.random() < 0.8:
                    self._describe(s.AttrSource(source, name), getattr(value, name), depth - 1)
        else:
            self._describe_object(source, value, depth)

    def _describe_function(self, source: s.Source, value: FunctionType) -> None:
        r, add = self.random, self.clauses.append
        code = s.AttrSource(source, "__code__")
        if r.random() < 0.5:
            parts = (value.__code__, value.__defaults__, value.__kwdefaults__)
            add(c.FunctionIs(source, *parts))
        if r.random() < 0.5:
            add(c.IdIs(code, value.__code__))
        names = s.AttrSource(code, "co_varnames")
        add(c.LengthIs(names, len(value.__code__.co_varnames)))
        add(c.ConstantIs(s.ItemSource(names, 0), value.__code__.co_varnames[0]))

    def _describe_object(self, source: s.Source, value: Any, depth: int) -> None:
        r, add = self.random, self.clauses.append
        if r.random() < 0.2:
            add(c.TypeIs(source, type(value)))  # and nothing else
            return
        held = instance_dict(value)
        name = self.name()
        add(c.HasInstanceAttr(source, name, name in held))
        if r.random() < 0.3:
            add(c.TypeIs(s.TypeSource(source), type))
        if isinstance(value, torch.nn.Module) and r.random() < 0.3:
            forward = s.InstanceAttrSource(s.TypeSource(source), "forward")
            add(c.ClassAttrsAre(s.TypeSource(source), (("forward", type(value).forward, True),)))
            if "forward" in type(value).__dict__:
                add(c.IdIs(forward, type(value).__dict__["forward"]))
            add(c.IdIs(s.AttrSource(s.TypeSource(source), "forward"), type(value).forward))
        if isinstance(value, Plain) and r.random() < 0.2:
            add(c.ConstantIs(s.AttrSource(source, "computed"), 7))
        for name, attribute in list(held.items()):
            if name.startswith("__") or r.random() < 0.2:
                continue
            plain = isinstance(attribute, (dict, list, tuple, torch.Tensor, *_CONSTANTS))
            if plain or instance_dict(attribute) is not None or isinstance(attribute, CellType):
                getter = s.AttrSource if r.random() < 0.05 else s.InstanceAttrSource
                self._describe(getter(source, name), attribute, depth - 1)

    # --- changing -----------------------------------------------------------------------------

    def change(self) -> Callable[[], None] | None:
        """Change something at random; returns how to take it back, where that is simple."""
        r = self.random
        if not self.objects:
            return None
        value = r.choice(self.objects)
        if isinstance(value, torch.nn.Module):
            try:
                module = r.choice(list(value.modules()))
            except Exception:  # an earlier change has put something odd among its children
                module = value
            value = r.choice((module, module.__dict__, module._parameters, module._modules))
            parameters = [p for p in module._parameters.values() if p is not None]
            if parameters and r.random() < 0.4:
                value = r.choice(parameters)
        if isinstance(value, torch.Tensor):
            return self._change_tensor(value)
        if isinstance(value, dict):
            return self._change_dict(value)
        if isinstance(value, list):
            old = list(value)
            if value and r.random() < 0.7:
                value[r.randrange(len(value))] = self.make(1)
            else:
                value.append(self.make(0))
            return lambda: value.__setitem__(slice(None), old)
        if isinstance(value, CellType):
            content = value.cell_contents
            value.cell_contents = self.make(1)
            return lambda: setattr(value, "cell_contents", content)
        if isinstance(value, tuple):
            return None
        if isinstance(value, FunctionType):
            return self._change_function(value)
        if isinstance(value, Record):
            return self._change_record(value)
        return self._change_object(value)

    def _change_function(self, value: FunctionType) -> Callable[[], None]:
        name, choices = self.random.choice(
            (
                ("__code__", (first.__code__, second.__code__)),
                ("__defaults__", ((1,), (5,), None)),
                ("__kwdefaults__", ({"w": 1}, None)),
            )
        )
        before = getattr(value, name)
        setattr(value, name, self.random.choice(choices))
        return lambda: setattr(value, name, before)

    def _change_record(self, value: Record) -> Callable[[], None]:
        r = self.random
        if r.random() < 0.2:  # in the class, what the slot was
            before = Record.__dict__["b"]
            setattr(Record, "b", property(lambda self: 3))  # noqa: B010
            return lambda: setattr(Record, "b", before)
        if r.random() < 0.3:
            cls = type(value)
            value.__class__ = OtherRecord if cls is Record else Record
            return lambda: setattr(value, "__class__", cls)
        member = SLOTS[r.choice(("b", "weight"))]
        try:
            before = member.__get__(value)
        except AttributeError:
            member.__set__(value, self.make(1))
            return lambda: member.__delete__(value)
        if r.random() < 0.3:
            member.__delete__(value)
        else:
            member.__set__(value, self.make(1))
        return lambda: member.__set__(value, before)

    def _change_object(self, value: Any) -> Callable[[], None] | None:
        r = self.random
        choice = r.random()
        if choice < 0.25 and isinstance(value, Plain):
            cls = type(value)
            value.__class__ = Other if cls is Plain else Plain
            return lambda: setattr(value, "__class__", cls)
        if choice < 0.3 and isinstance(value, Block):
            cls = type(value)
            value.__class__ = OtherBlock if cls is Block else Block
            return lambda: setattr(value, "__class__", cls)
        if choice < 0.4 and isinstance(value, Plain):
            held = value.__dict__
            value.__dict__ = dict(held) if r.random() < 0.5 else {}
            return lambda: setattr(value, "__dict__", held)
        held = instance_dict(value)
        if held is None:  # something odd that an earlier change has put there
            return None
        names = [n for n in held if not n.startswith("_")]
        name = r.choice(names) if names and r.random() < 0.7 else self.name()
        before = dict(held)
        if choice < 0.5 and name in held:
            object.__delattr__(value, name)
        else:
            same = name in held and r.random() < 0.3
            object.__setattr__(value, name, held[name] if same else self.make(1))

        def undo() -> None:
            held.clear()
            held.update(before)

        return undo

    def _change_dict(self, value: dict[Any, Any]) -> Callable[[], None]:
        r = self.random
        before = list(value.items())
        choice = r.random()
        if isinstance(value, OrderedDict) and value and choice < 0.4:
            value.move_to_end(r.choice(list(value)))
        elif value and choice < 0.4:
            del value[r.choice([k for k in value if not str(k).startswith("_")] or list(value))]
        elif value and choice < 0.8:
            key = r.choice([k for k in value if not str(k).startswith("_")] or list(value))
            if not str(key).startswith("_"):
                value[key] = self.make(1)
        else:
            value[self.key()] = self.make(0)

        def undo() -> None:
            value.clear()
            value.update(before)

        return undo

    def _change_tensor(self, value: torch.Tensor) -> Callable[[], None] | None:
        r = self.random
        if r.random() < 0.4:
            flag = value.requires_grad
            value.requires_grad_(not flag)
            return lambda: setattr(value, "requires_grad", flag)
        if value.layout is not torch.strided:
            return None
        data = value.data
        value.data = self.random.choice(
            (torch.ones(5, dtype=value.dtype), data.clone(), data.to(torch.float64))
        )
        return lambda: setattr(value, "data", data)


def frame_function() -> FunctionType:
    """A function with one argument whose frames the guards look at."""

    def f(x: Any) -> Any:
        return x

    return f


__all__ = ["World", "clause_for_tensor", "constants_equal", "frame_function"]
