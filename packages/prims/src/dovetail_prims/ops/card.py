"""A card: everything that Dovetail knows of one operator, in one place.

The op sets, the tables of shape rules and of decompositions, the oracle of PRIMS, the page of
operators, NumPy's names and the scalar operations of kernels are all derived from the cards (see
`catalog`): a new pointwise operator is a card, and how C++ and Triton spell it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, TypedDict, Unpack

import torch

from dovetail_prims.fake_tensor import ShapeRule
from dovetail_prims.shape_rules import pointwise as rules
from dovetail_prims.shape_rules.argument_checks.requirement import Requirement


class Dialect(Enum):
    """From the widest to the narrowest."""

    TORCH = "torch"
    ATEN = "aten"
    CORE_ATEN = "core_aten"
    PRIMS = "prims"


class Kind(Enum):
    """What an operator does with elements."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    SCAN = "scan"
    VIEW = "view"
    MOVED = "moved"  # elements as they are, in memory of their own
    INDEXING = "indexing"
    CREATION = "creation"
    LIBRARY = "library"  # PyTorch's own kernel, in PRIMS too
    COMPOSED = "composed"  # of several of these


class Result(Enum):
    """The dtype of a pointwise operator's result."""

    SAME = "same"  # that to which the operands are promoted
    FLOAT = "float"  # the same, but of integers the default float dtype
    BOOL = "bool"


@dataclass(frozen=True, slots=True)
class Form:
    """One overload of an operator.

    `dialect` is the narrowest that keeps it. `to_core` decomposes it to CORE_ATEN, `to_prims` to
    PRIMS; that of a form that PRIMS keeps puts its operands in order (of a pointwise operator None:
    in the way that follows from the card's `Result`). Without a `shape` PyTorch's meta kernel
    answers. `requires`: what eager insists on of arguments, of the form in place, too.
    `of_complex`: `to_core` is right for complex numbers, too (of an operator that looks at no
    element it always is). `library`: PyTorch's kernel computes it in PRIMS, too, whatever the
    card's kind.
    """

    overload: str
    dialect: Dialect
    shape: ShapeRule | None = None
    to_core: Callable[..., Any] | None = None
    to_prims: Callable[..., Any] | None = None
    requires: tuple[Requirement, ...] = ()
    says: str = ""  # (the card's, unless given)
    of_complex: bool = False
    library: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """One operator.

    `arity`: how many operands a pointwise one has. `says`: what it computes, as a line of the op
    table. `in_place`: the overloads of its form in place, `name_`. `meaning`: a Python reference of
    the form that PRIMS keeps, for operands in order (None: torch's function of the name). `cost`:
    of one element, in additions. `numpy`: the ufunc's name.
    """

    name: str
    arity: int
    says: str
    forms: tuple[Form, ...]
    result: Result = Result.SAME
    in_place: tuple[str, ...] = ()
    meaning: Callable[..., Any] | None = None
    cost: int = 1
    numpy: str = ""
    kind: Kind = Kind.POINTWISE

    def reference(self) -> Callable[..., Any]:
        """What the operator means."""
        return self.meaning or getattr(torch, self.name, None) or getattr(_aten, self.name).default


class Facts(TypedDict, total=False):
    """What a pointwise operator's card may tell besides: see `Card`."""

    meaning: Callable[..., Any]
    cost: int
    numpy: str


_aten = torch.ops.aten
_RULES: dict[int, dict[Result, ShapeRule]] = {
    1: {
        Result.SAME: rules.same_dtype,
        Result.FLOAT: rules.float_result,
        Result.BOOL: rules.bool_result,
    },
    2: {Result.SAME: rules.binary, Result.FLOAT: rules.binary_float, Result.BOOL: rules.compare},
}


def _kept_pointwise(
    arity: int,
    name: str,
    says: str,
    result: Result = Result.SAME,
    *,
    shape: ShapeRule | None = None,
    forms: tuple[Form, ...] = (),
    to_prims: Callable[..., Any] | None = None,
    **facts: Unpack[Facts],
) -> Card:
    """A pointwise operator of tensors, overload `default`, that CORE_ATEN keeps (and the `forms`),
    and PRIMS, too, unless `to_prims` says how the others there express it."""
    dialect = Dialect.CORE_ATEN if to_prims else Dialect.PRIMS
    form = Form("default", dialect, shape or _RULES[arity][result], to_prims=to_prims)
    in_place = ("default",) if arity == 1 and result is not Result.BOOL else ()
    return Card(name, arity, says, (form, *forms), result, in_place, **facts)


unary = partial(_kept_pointwise, 1)
binary = partial(_kept_pointwise, 2)


def with_numbers(
    name: str,
    says: str,
    result: Result = Result.SAME,
    *,
    number: Callable[..., Any] | None = None,
    shape: ShapeRule | None = None,
    forms: tuple[Form, ...] = (),
    in_place: tuple[str, ...] = ("Tensor", "Scalar"),
    **facts: Unpack[Facts],
) -> Card:
    """An operator of two operands with an overload for two tensors, `Tensor`, that PRIMS keeps, and
    one for a number, `Scalar`, which `number` decomposes (without it CORE_ATEN keeps it)."""
    rule = shape or _RULES[2][result]
    tensors = Form("Tensor", Dialect.PRIMS, rule)
    kept = Dialect.ATEN if number else Dialect.CORE_ATEN
    both = (tensors, Form("Scalar", kept, rule, number))
    return Card(name, 2, says, (*both, *forms), result, in_place, **facts)


def decomposed(
    name: str,
    decomposition: Callable[..., Any] | None,
    shape: ShapeRule | None = None,
    *,
    arity: int = 1,
    in_place: tuple[str, ...] = ("default",),
    requires: tuple[Requirement, ...] = (),
    forms: tuple[Form, ...] = (),
    numpy: str = "",
) -> Card:
    """An operator of which CORE_ATEN keeps nothing, overload `default`; besides, the `forms`."""
    form = Form("default", Dialect.ATEN, shape, decomposition, requires=requires)
    says = ((decomposition and decomposition.__doc__) or "").partition("\n")[0]
    return Card(name, arity, says, (form, *forms), in_place=in_place, numpy=numpy)


def also(
    overload: str, shape: ShapeRule | None = None, decomposition: Callable[..., Any] | None = None
) -> Form:
    """One more overload of an operator, of which CORE_ATEN keeps nothing."""
    return Form(overload, Dialect.ATEN, shape, decomposition)


def composed(
    name: str,
    shape: ShapeRule | None,
    decomposition: Callable[..., Any] | None = None,
    *forms: Form,
    overload: str = "default",
    kind: Kind = Kind.COMPOSED,
) -> Card:
    """An operator of which CORE_ATEN keeps nothing; besides, the `forms`."""
    return Card(name, 1, "", (also(overload, shape, decomposition), *forms), kind=kind)


def library(
    name: str,
    shape: ShapeRule | None = None,
    decomposition: Callable[..., Any] | None = None,
    *forms: Form,
    overload: str = "default",
) -> Card:
    """An operator that CORE_ATEN and PRIMS leave to PyTorch's kernel, but where `decomposition`
    gives a result; besides, the `forms`."""
    form = kept(overload, shape, decomposition)
    return Card(name, 1, "", (form, *forms), kind=Kind.LIBRARY)


def kept(
    overload: str, shape: ShapeRule | None = None, decomposition: Callable[..., Any] | None = None
) -> Form:
    """One more overload that PRIMS leaves to PyTorch's kernel."""
    return Form(overload, Dialect.PRIMS, shape, decomposition, library=True)


def of_kind(
    name: str,
    says: str,
    *forms: Form,
    kind: Kind,
    in_place: tuple[str, ...] = (),
    meaning: Callable[..., Any] | None = None,
) -> Card:
    """An operator that is not computed element by element."""
    return Card(name, 1, says, forms, in_place=in_place, meaning=meaning, kind=kind)


reduction = partial(of_kind, kind=Kind.REDUCTION)
moving = partial(of_kind, kind=Kind.VIEW)
moved = partial(of_kind, kind=Kind.MOVED)
