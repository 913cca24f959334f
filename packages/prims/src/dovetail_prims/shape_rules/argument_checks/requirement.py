"""A requirement: a condition on an operator's arguments that eager insists on.

An operator's requirements are checked on fake tensors, before its shape rule. A condition about
sizes that are symbols of the call becomes a guard; one about sizes that only the data tells becomes
a check that the compiled program makes, of the same class of exception.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import torch
from torch._ops import OpOverload

from dovetail_prims.fake_tensor import FakeTensor, ShapeRule, Size, Sizes
from dovetail_prims.shape_rules.layout import insisted, wrap_dim
from dovetail_prims.shape_rules.promotion import check_number, name_in_kernels
from dovetail_prims.shape_rules.views import known_truth, stated

_Holds = Callable[["Arguments"], Any]


class Arguments:
    """The arguments of one call by the names of the operator's schema, defaults included; None for
    what this overload does not have."""

    def __init__(
        self,
        positions: Mapping[str, tuple[int, Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._positions, self._args, self._kwargs = positions, args, kwargs

    def __getitem__(self, name: str) -> Any:
        position, default = self._positions.get(name, (len(self._args), None))
        if position < len(self._args):
            return self._args[position]
        return self._kwargs.get(name, default)

    def sizes(self, name: str) -> Sizes:
        """The sizes of a tensor among them."""
        sizes: Sizes = self[name]._sizes
        return sizes

    def rank(self, name: str) -> int:
        """How many dimensions a tensor among them has."""
        return len(self[name]._sizes)

    @property
    def dim(self) -> int:
        """`dim` as a dimension of `self`, counted from the first; raises IndexError beyond them."""
        return wrap_dim(self["dim"], self.rank("self"))

    def says(self, text: str, **computed: Any) -> str:
        """A text with arguments in braces: `{name}`, and of a tensor `{name.sizes}`, `.rank`,
        `.numel`, `.dtype`, and `.scalar_type` and `.short` for names of its dtype in errors of
        eager's."""
        return text.format_map(_Shown(self, computed))


class _Shown(dict[str, Any]):
    def __init__(self, given: Arguments, computed: Mapping[str, Any]) -> None:
        super().__init__(computed)
        self._given = given

    def __missing__(self, name: str) -> Any:
        value = self._given[name]
        if isinstance(value, FakeTensor):
            return _ShownTensor(value)
        return list(value) if isinstance(value, tuple) else value


class _ShownTensor:
    def __init__(self, tensor: FakeTensor) -> None:
        self.sizes, self.rank, self.dtype = list(tensor._sizes), len(tensor._sizes), tensor._dtype
        self.scalar_type = name_in_kernels(tensor._dtype)
        self.short = str(tensor._dtype).removeprefix("torch.")

    @property
    def numel(self) -> Size:
        return math.prod(self.sizes)


@dataclass(frozen=True)
class Requirement:
    """What must hold, and what eager raises where it does not.

    `holds` gives a truth (bool or SymBool) or several, asked in order up to the first that does not
    hold, so that later ones may rely on earlier ones; `message` is the text of the `error`, as
    `Arguments.says` takes it, or makes it.
    """

    holds: _Holds
    message: str | Callable[[Arguments], str]
    error: type[Exception] = RuntimeError

    def check(self, given: Arguments) -> None:
        """Raise, guard, or leave a check to the compiled program."""
        found = self.holds(given)
        if found is True:
            return
        for relation in found if isinstance(found, GeneratorType) else (found,):
            if relation is True:
                continue
            message = self.message
            text = given.says(message) if isinstance(message, str) else message(given)
            if not stated(relation, text, self.error):
                raise self.error(text)


def requiring(
    func: Any, rule: ShapeRule | None, table: Mapping[str, tuple[Requirement, ...]]
) -> ShapeRule | None:
    """The rule of an operator after the requirements that `table` has for it, under its own name
    or, if it works in place, its functional form's."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return rule
    own = str(func).removeprefix("aten.")
    name, _, overload = own.partition(".")
    requirements = table.get(own) or table.get(f"{name.removesuffix('_')}.{overload}")
    if not requirements:
        return rule
    positions = {a.name: (i, a.default_value) for i, a in enumerate(func._schema.arguments)}

    def required(*args: Any, **kwargs: Any) -> Any:
        given = Arguments(positions, args, kwargs)
        for requirement in requirements:
            requirement.check(given)
        return NotImplemented if rule is None else rule(*args, **kwargs)

    return required


# --- sizes ----------------------------------------------------------------------------------------


def is_empty(sizes: Sizes) -> bool:
    """Whether a tensor is known to have no element; one that only the data tells of is not."""
    return any(known_truth(size == 0) for size in sizes)


def at_least_1d(sizes: Sizes) -> Sizes:
    """The sizes, those of a number as a vector's of one element."""
    return sizes or (1,)


def same(a: Iterable[Size], b: Iterable[Size]) -> Iterator[Any]:
    """Relations that hold if two lists of sizes are the same."""
    first, second = tuple(a), tuple(b)
    yield len(first) == len(second)
    for left, right in zip(first, second, strict=False):
        yield left is right or left == right


def insisted_same(a: Sizes, b: Sizes) -> bool:
    """Whether two lists of sizes are the same, where the operator's call is the check of it."""
    return len(a) == len(b) and all(insisted(m == n) for m, n in zip(a, b, strict=True))


def expands(sizes: Sizes, wanted: Sizes) -> Iterator[Any]:
    """Relations that hold if a tensor can be expanded to these sizes."""
    yield len(sizes) <= len(wanted)
    for had, size in zip(reversed(sizes), reversed(wanted), strict=False):
        yield known_truth(had == 1) or had is size or had == size


def without(sizes: Sizes, dim: int) -> Sizes:
    """All sizes but one."""
    return (*sizes[:dim], *sizes[dim + 1 :])


# --- kinds of requirements ------------------------------------------------------------------------


def is_of_sizes(name: str, wanted: Callable[[Arguments], Iterable[Size]], text: str) -> Requirement:
    """The tensor `name`, if it is given, has just these sizes; `text` may have {wanted}."""

    def holds(given: Arguments) -> Iterator[Any]:
        if isinstance(given[name], FakeTensor):
            yield from same(given.sizes(name), wanted(given))

    return Requirement(holds, lambda given: given.says(text, wanted=list(wanted(given))))


def has_rank(
    name: str, ranks: Iterable[int], text: str, error: type[Exception] = RuntimeError
) -> Requirement:
    """The tensor `name`, if it is given, has one of these numbers of dimensions."""
    allowed = frozenset(ranks)
    return Requirement(
        lambda given: not isinstance(given[name], FakeTensor) or given.rank(name) in allowed,
        text,
        error,
    )


def has_dtype(
    name: str, dtypes: Container[torch.dtype], text: str, error: type[Exception] = RuntimeError
) -> Requirement:
    """The tensor `name` is of one of these dtypes."""
    return Requirement(lambda given: given[name]._dtype in dtypes, text, error)


def has_dtype_of(name: str, other: str, text: str) -> Requirement:
    """The tensor `name`, if it is given, is of the dtype of another."""
    return Requirement(
        lambda given: (
            not isinstance(given[name], FakeTensor) or given[name]._dtype is given[other]._dtype
        ),
        text,
    )


def is_one_of(name: str, options: Container[Any], text: str) -> Requirement:
    """The argument `name` is one of these."""
    return Requirement(lambda given: given[name] in options, text)


def raising(check: Callable[[Arguments], None]) -> Requirement:
    """What a function demands that raises eager's errors itself."""

    def holds(given: Arguments) -> bool:
        check(given)
        return True

    return Requirement(holds, "")


def fit_dtype_of_self(*names: str) -> Requirement:
    """Numbers among the arguments can be converted to the dtype of `self`."""

    def check(given: Arguments) -> None:
        for name in names:
            check_number(given[name], given["self"]._dtype)

    return raising(check)
