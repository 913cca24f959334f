"""Why no compiled version fits a call: the sizes and objects that are others than before."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from types import CodeType, FunctionType
from typing import Any

import torch
from dovetail_guards.clauses import DEAD, ConstantIs, IdIs, TensorIs, TypeIs
from dovetail_guards.evaluate import FrameView, argument_names, evaluate
from dovetail_guards.explain import GuardFailure
from dovetail_guards.guard_set import GuardSet
from dovetail_guards.source import IteratorSource, Source, StrideSource
from dovetail_prims.fake.from_real import express_strides


@dataclass(frozen=True)
class ModuleSeen:
    """A module that a version was made for: where a call has it, and which it was. `layer`: it is
    one of a model's on a GPU, see `replaced_objects`."""

    place: Source
    module: weakref.ref[torch.nn.Module]
    layer: bool


@dataclass(frozen=True)
class MadeFor:
    """The modules that a version was made for, but those within others."""

    modules: tuple[ModuleSeen, ...]

    @staticmethod
    def of(guards: GuardSet, view: FrameView, method: CodeType | None) -> MadeFor:
        """Those of the call that `guards` were made from; `method` as for `replaced_objects`."""
        clauses = (c for c in guards.clauses if isinstance(c, TypeIs))
        places = {c.source for c in clauses if issubclass(c.type_, torch.nn.Module)}
        outermost = [place for place in places if places.isdisjoint(_bases(place))]
        found = [(place, evaluate(place, view)) for place in outermost]
        seen = (ModuleSeen(p, weakref.ref(m), _is_layer(m, method)) for p, m in found)
        return MadeFor(tuple(seen))

    def has_others(self, view: FrameView) -> bool:
        """Are there other modules in this call?"""
        now = [(evaluate(seen.place, view), seen.module) for seen in self.modules]
        return any(isinstance(m, torch.nn.Module) and m is not known() for m, known in now)


def gone_objects(guards: GuardSet, made_for: MadeFor) -> frozenset[str]:
    """Where modules, parameters and functions were that have died: the next call is likely to have
    others there."""
    clauses = (c for c in guards.clauses if isinstance(c, IdIs) and issubclass(c.kind, _REPLACED))
    dead = {clause.source for clause in clauses if clause.obj is DEAD}
    layers = {seen.place for seen in made_for.modules if seen.layer}
    return frozenset(str(s) for s in dead - layers if dead.isdisjoint(_bases(s)))


def same_case(
    failures: Sequence[GuardFailure | None], made_for: Sequence[MadeFor], view: FrameView
) -> int:
    """How many of the compiled versions are for the modules of this call: what each layer of a
    model has of its own does not count against another's."""
    pairs = zip(failures, made_for, strict=True)
    return sum(not (_is_other_module(f) or made.has_others(view)) for f, made in pairs)


def _is_other_module(failure: GuardFailure | None) -> bool:
    clause = None if failure is None else failure.clause
    return isinstance(clause, IdIs) and issubclass(clause.kind, torch.nn.Module)


def replaced_objects(guards: GuardSet, view: FrameView, method: CodeType | None) -> frozenset[str]:
    """The modules, and parameters and buffers of modules, where `guards` wanted others of their
    class, and the functions where they wanted others of the same code. Not modules on a GPU that
    `method` is a method of: the layers of a model, which stay the same, and whose versions can be
    recorded with their weights where they lie."""
    found = _others(guards, view)
    return frozenset(str(source) for source in found if not _is_layer(found[source], method))


def wants_gone_tensor(guards: GuardSet, view: FrameView) -> bool:
    """Do guards want a parameter or buffer that its module has no more? What was compiled keeps it,
    and its memory."""
    return any(isinstance(obj, torch.Tensor) for obj in _others(guards, view).values())


def _others(guards: GuardSet, view: FrameView) -> dict[Source, Any]:
    """The modules, tensors and functions that are there instead of those of their kind that guards
    want, but what belongs to another of them."""
    found: dict[Source, Any] = {}
    for clause in guards.clauses:
        if isinstance(clause, IdIs) and issubclass(clause.kind, _REPLACED):
            seen = evaluate(clause.source, view)
            if clause.is_met_by(seen) or type(seen) is not clause.kind:
                continue
            if (seen.__code__ if isinstance(seen, FunctionType) else None) is clause.code:
                found[clause.source] = seen
    return {source: obj for source, obj in found.items() if found.keys().isdisjoint(_bases(source))}


_REPLACED = (torch.nn.Module, torch.Tensor, FunctionType)


def _bases(source: Source) -> Iterator[Source]:
    base = getattr(source, "base", None)
    if base is not None:
        yield base
        yield from _bases(base)


def _is_layer(obj: Any, method: CodeType | None) -> bool:
    if method is None or not isinstance(obj, torch.nn.Module):
        return False
    found = inspect.getattr_static(type(obj), method.co_name, None)
    if getattr(found, "__code__", None) is not method:
        return False
    return any(not tensor.is_cpu for tensor in chain(obj.parameters(), obj.buffers()))


def changed_sizes(guards: GuardSet, view: FrameView) -> frozenset[tuple[str, int]]:
    """The sizes, and the numbers (dimension -1), that differ from what `guards` wanted: ints,
    floats, and strides that do not follow from the sizes.

    Only where nothing but sizes differs: a tensor of another rank or dtype is another case.
    """
    changed: set[tuple[str, int]] = set()
    for clause in guards.clauses:
        if isinstance(clause, TensorIs):
            seen = evaluate(clause.source, view)
            if not isinstance(seen, torch.Tensor) or seen.dim() != len(clause.sizes):
                return frozenset()
            for dim, (now, was) in enumerate(zip(seen.shape, clause.sizes, strict=True)):
                if was is not None and now != was:
                    changed.add((str(clause.source), dim))
            changed.update((str(source), -1) for source in _changed_strides(clause, seen))
        elif isinstance(clause, ConstantIs) and type(clause.value) in (int, float):
            number = evaluate(clause.source, view)
            if type(number) is type(clause.value) and number != clause.value:
                changed.add((str(clause.source), -1))
        elif isinstance(clause, ConstantIs) and type(clause.value).__module__ == "numpy":
            scalar, place = evaluate(clause.source, view), IteratorSource(clause.source, "number")
            if type(scalar) is type(clause.value) and type(evaluate(place, view)) in (int, float):
                changed.add((str(place), -1))
    return frozenset(changed)


def _changed_strides(clause: TensorIs, seen: torch.Tensor) -> Iterator[Source]:
    """The strides that do not follow from the sizes of `seen` and are no numbers `clause` wants."""
    if clause.strides is None or seen.layout is not torch.strided:
        return
    strides, loose = seen.stride(), set[int]()
    express_strides(seen.shape, strides, seen.shape, lambda dim, _: loose.add(dim))
    for dim in loose:
        if clause.strides[dim] != strides[dim]:
            yield StrideSource(clause.source, dim)


def sizes_of(code: CodeType, args: tuple[Any, ...]) -> dict[tuple[str, int], int]:
    """The sizes of the tensors among the arguments, and the ints (dimension -1)."""
    found: dict[tuple[str, int], int] = {}
    for name, value in zip(argument_names(code), args, strict=False):
        if isinstance(value, torch.Tensor):
            found |= {(name, dim): size for dim, size in enumerate(value.shape)}
        elif type(value) is int:
            found[(name, -1)] = value
    return found
