"""A user's say in which guards are kept: `guard_filter_fn`, as `torch.compile`'s users know it.

What the filter drops is not checked any more: it promises that this never changes. Where it does
change, a stale answer is the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import torch
from dovetail_guards import clauses as c
from dovetail_guards import source as s
from dovetail_guards.evaluate import MISSING, FrameView, evaluate
from dovetail_guards.explain import clause_text
from dovetail_guards.guard_set import GuardSet

from dovetail_capture.errors import CaptureError, place_of
from dovetail_capture.skip import module_of

# The names that torch.compile's guard filters ask for.
_KINDS: dict[type[c.Clause], str] = {
    c.TensorIs: "TENSOR_MATCH", c.NoAccumulatorHooks: "TENSOR_MATCH", c.TypeIs: "TYPE_MATCH",
    c.IdIs: "ID_MATCH", c.ConstantIs: "EQUALS_MATCH", c.LengthIs: "SEQUENCE_LENGTH",
    c.DictKeysAre: "DICT_KEYS_MATCH", c.HasKey: "DICT_CONTAINS", c.GlobalPresent: "DICT_CONTAINS",
    c.HasInstanceAttr: "HASATTR", c.SlotIsEmpty: "HASATTR", c.ClassAttrsAre: "CLASS_MATCH",
    c.FunctionIs: "CLOSURE_MATCH", c.SameObject: "DUPLICATE_INPUT",
    c.DistinctObjects: "NO_TENSOR_ALIASING", c.DistinctStorage: "STORAGE_OVERLAPPING",
    c.ShapeRelation: "SHAPE_ENV",
}  # fmt: skip
_SETTINGS = {
    "grad_mode": "GRAD_MODE",
    "deterministic": "DETERMINISTIC_ALGORITHMS",
    "default_device": "DEFAULT_DEVICE",
    "torch_function_modes": "TORCH_FUNCTION_STATE",
}


@dataclass(frozen=True)
class GuardedPlaces:
    """Where a guard looks, as the filters of `torch.compiler` ask: is all of it the module itself
    that is nearest to it, or what that module holds?"""

    modules: tuple[torch.nn.Module | None, ...]  # the nearest one, of each place

    def is_unspecialized_nn_module(self) -> bool:
        """Is all of it in modules?"""
        return bool(self.modules) and all(module is not None for module in self.modules)

    def is_unspecialized_builtin_nn_module(self) -> bool:
        """Is all of it in modules whose classes are those of `torch.nn`?"""
        return self.is_unspecialized_nn_module() and all(
            module_of(type(module)).startswith(("torch.nn.", "torch.ao.nn."))
            for module in self.modules
        )


@dataclass(frozen=True)
class OriginalGuard:
    """What `torch.compiler`'s filters read of a guard beside its kind and its value."""

    source: GuardedPlaces


@dataclass(frozen=True)
class GuardFilterEntry:
    """One guard, for a filter to judge.

    `name` is the guarded expression ("" for a setting of torch), `value` what it gives now where
    `has_value`, `guard_type` torch.compile's name of the kind, `is_global` whether it is read from
    a module's globals. `clause` is the guard itself and `text` what it says. `orig_guard` is for
    the filters of `torch.compiler`, which ask it whether the guard looks into a module.
    """

    name: str
    has_value: bool
    value: Any
    guard_type: str
    is_global: bool
    clause: c.Clause
    text: str
    derived_guard_types: tuple[str, ...] = ()
    orig_guard: OriginalGuard = OriginalGuard(GuardedPlaces(()))


GuardFilter = Callable[[Sequence[GuardFilterEntry]], Sequence[bool]]


def _sources(clause: c.Clause) -> tuple[s.Source, ...]:
    if isinstance(clause, c.GlobalPresent):
        return (s.GlobalSource(clause.name),)
    if isinstance(clause, c.ShapeRelation):
        return tuple(source for _, source in clause.symbols)
    if isinstance(clause, c.OfSources):
        return clause.sources
    return (clause.source,) if isinstance(clause, c.OfSource) else ()


def _is_global(source: s.Source) -> bool:
    while (base := getattr(source, "base", None)) is not None:
        if isinstance(base, s.ObjectSource) and isinstance(base.obj, dict):
            return True  # the globals of another module
        source = base
    return isinstance(source, (s.GlobalSource, s.BuiltinSource))


def _module_around(source: s.Source | None, view: FrameView) -> torch.nn.Module | None:
    """The module that a place is, or the nearest one that it is read from."""
    while source is not None:
        found = evaluate(source, view)
        if isinstance(found, torch.nn.Module):
            return found
        source = getattr(source, "base", None)
    return None


def filter_entry(clause: c.Clause, view: FrameView) -> GuardFilterEntry:
    """What a filter is shown of a clause."""
    sources = _sources(clause)
    value = evaluate(sources[0], view) if len(sources) == 1 else MISSING
    kind = _KINDS.get(type(clause), "")
    if isinstance(clause, c.TorchState):
        kind = _SETTINGS.get(clause.name, "GLOBAL_STATE")
    return GuardFilterEntry(
        name=", ".join(str(source) for source in sources),
        has_value=value is not MISSING,
        value=None if value is MISSING else value,
        guard_type=kind,
        is_global=any(map(_is_global, sources)),
        clause=clause,
        text=clause_text(clause),
        orig_guard=OriginalGuard(
            GuardedPlaces(tuple(_module_around(source, view) for source in sources))
        ),
    )


def keep_guards(
    guards: GuardSet, keep: GuardFilter, code: CodeType, func: FunctionType, args: tuple[Any, ...]
) -> GuardSet:
    """The guards that the user's filter keeps."""
    view = FrameView(args, func)
    entries = [filter_entry(clause, view) for clause in guards.clauses]
    kept = list(keep(entries))
    if len(kept) != len(entries):
        raise CaptureError(
            f"guard_filter_fn gave {len(kept)} answers for the {len(entries)} guards of "
            f"{place_of(code)}"
        )
    return GuardSet(
        clause for clause, wanted in zip(guards.clauses, kept, strict=True) if bool(wanted)
    )
