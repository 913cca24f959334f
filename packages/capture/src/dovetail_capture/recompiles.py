"""Why no compiled version fits a call: the sizes and objects that are others than before."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch
from dovetail_guards.clauses import ConstantIs, IdIs, TensorIs
from dovetail_guards.evaluate import FrameView, argument_names, evaluate
from dovetail_guards.explain import GuardFailure
from dovetail_guards.guard_set import GuardSet
from dovetail_guards.source import Source


def same_case(failures: list[GuardFailure | None]) -> int:
    """How many of the compiled versions are for the same modules: each layer of a model has one
    of its own, which does not count against another's."""
    return sum(not _is_other_module(failure) for failure in failures)


def _is_other_module(failure: GuardFailure | None) -> bool:
    clause = None if failure is None else failure.clause
    return isinstance(clause, IdIs) and isinstance(clause.obj, torch.nn.Module)


def replaced_objects(guards: GuardSet, view: FrameView, method: CodeType | None) -> frozenset[str]:
    """The modules, and parameters and buffers of modules, where `guards` wanted others of their
    class, and the functions where they wanted others of the same code. Not modules that `method`
    is a method of: the layers of a model, which stay the same."""
    found: dict[Source, Any] = {}
    for clause in guards.clauses:
        if isinstance(clause, IdIs) and isinstance(clause.obj, _REPLACED):
            seen = evaluate(clause.source, view)
            if seen is clause.obj or type(seen) is not type(clause.obj):
                continue
            if _code_of(seen) is _code_of(clause.obj):
                found[clause.source] = seen
    outermost = [source for source in found if found.keys().isdisjoint(_bases(source))]
    return frozenset(str(source) for source in outermost if not _has_method(found[source], method))


_REPLACED = (torch.nn.Module, torch.Tensor, FunctionType)


def _code_of(obj: Any) -> CodeType | None:
    return obj.__code__ if isinstance(obj, FunctionType) else None


def _bases(source: Source) -> Iterator[Source]:
    base = getattr(source, "base", None)
    if base is not None:
        yield base
        yield from _bases(base)


def _has_method(obj: Any, method: CodeType | None) -> bool:
    if method is None:
        return False
    found = inspect.getattr_static(type(obj), method.co_name, None)
    return getattr(found, "__code__", None) is method


def changed_sizes(guards: GuardSet, view: FrameView) -> frozenset[tuple[str, int]]:
    """The sizes, and the ints and floats (dimension -1), that differ from what `guards` wanted.

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
        elif isinstance(clause, ConstantIs) and type(clause.value) in (int, float):
            number = evaluate(clause.source, view)
            if type(number) is type(clause.value) and number != clause.value:
                changed.add((str(clause.source), -1))
    return frozenset(changed)


def sizes_of(code: CodeType, args: tuple[Any, ...]) -> dict[tuple[str, int], int]:
    """The sizes of the tensors among the arguments, and the ints (dimension -1)."""
    found: dict[tuple[str, int], int] = {}
    for name, value in zip(argument_names(code), args, strict=False):
        if isinstance(value, torch.Tensor):
            found |= {(name, dim): size for dim, size in enumerate(value.shape)}
        elif type(value) is int:
            found[(name, -1)] = value
    return found
