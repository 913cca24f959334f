"""A requirement: a condition on the sizes of an operator's arguments that eager insists on.

An operator's requirements are checked on fake tensors, before its shape rule. A condition about
sizes that are symbols of the call becomes a guard; one about sizes that only the data tells becomes
a check that the compiled program makes, of the same class of exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch._ops import OpOverload

from dovetail_prims.fake_tensor import FakeTensor, ShapeRule, Size, Sizes
from dovetail_prims.shape_rules.data_bounds import known_truth, stated

_Relations = Callable[["Arguments"], Iterable[Any]]


class Arguments:
    """The arguments of one call by the names of the operator's schema, defaults included."""

    def __init__(
        self,
        positions: Mapping[str, tuple[int, Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._positions, self._args, self._kwargs = positions, args, kwargs

    def __getitem__(self, name: str) -> Any:
        position, default = self._positions[name]
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


@dataclass(frozen=True)
class Requirement:
    """What must hold, and what eager raises where it does not.

    `relations` gives truths (bool or SymBool), asked in order up to the first that does not hold,
    so that later ones may rely on earlier ones; `message` is the text of the `error`.
    """

    relations: _Relations
    message: Callable[[Arguments], str]
    error: type[Exception] = RuntimeError

    def check(self, given: Arguments) -> None:
        """Raise, guard, or leave a check to the compiled program."""
        for relation in self.relations(given):
            if relation is True:
                continue
            text = self.message(given)
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


def without(sizes: Sizes, dim: int) -> Sizes:
    """All sizes but one."""
    return (*sizes[:dim], *sizes[dim + 1 :])


# --- kinds of requirements ------------------------------------------------------------------------


def is_of_sizes(name: str, wanted: Callable[[Arguments], Iterable[Size]], text: str) -> Requirement:
    """The tensor `name`, if it is given, has just these sizes; `text` may have {sizes} and
    {wanted}."""

    def relations(given: Arguments) -> Iterator[Any]:
        if isinstance(given[name], FakeTensor):
            yield from same(given.sizes(name), wanted(given))

    def message(given: Arguments) -> str:
        return text.format(sizes=list(given.sizes(name)), wanted=list(wanted(given)))

    return Requirement(relations, message)


def has_rank(
    name: str, ranks: Iterable[int], text: str, error: type[Exception] = RuntimeError
) -> Requirement:
    """The tensor `name`, if it is given, has one of these numbers of dimensions; `text` may have
    {rank} and {sizes}."""
    allowed = frozenset(ranks)

    def relations(given: Arguments) -> Iterator[Any]:
        yield not isinstance(given[name], FakeTensor) or given.rank(name) in allowed

    def message(given: Arguments) -> str:
        return text.format(rank=given.rank(name), sizes=list(given.sizes(name)))

    return Requirement(relations, message, error)
