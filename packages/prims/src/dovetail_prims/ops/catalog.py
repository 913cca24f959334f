"""All cards, and the tables that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dovetail_prims.fake_tensor import ShapeRule
from dovetail_prims.ops import (
    activations,
    activations_backward,
    batch_norm,
    batch_norm_backward,
    binary,
    class_losses,
    convolution,
    creation,
    data_dependent,
    distances,
    embeddings,
    fake_quantization,
    fills,
    folding,
    foreach,
    fused_attention,
    grid_sampling,
    indexing,
    linear_algebra,
    losses,
    matmul,
    norms,
    padding,
    pooling,
    powers,
    random_numbers,
    ranges,
    reductions,
    resizing,
    scatters,
    softmax,
    sorting,
    ternary,
    unary,
    views,
    weight_norm,
)
from dovetail_prims.ops.card import Card, Dialect, Form, Kind, Result
from dovetail_prims.ops.operands import of_floats, ordered
from dovetail_prims.shape_rules.argument_checks.requirement import Requirement
from dovetail_prims.shape_rules.indexing import first_argument
from dovetail_prims.shape_rules.pointwise import in_place
from dovetail_prims.shape_rules.views import becoming

POINTWISE: tuple[Card, ...] = (
    *unary.CARDS,
    *binary.CARDS,
    *powers.CARDS,
    *ternary.CARDS,
    *activations.CARDS,
    *activations_backward.CARDS,
)
_FAMILIES = (
    scatters, weight_norm, fills, random_numbers, foreach, ranges, padding, resizing,
    fake_quantization, embeddings, linear_algebra, fused_attention, grid_sampling, folding,
    pooling, convolution, matmul, distances, sorting, softmax, batch_norm_backward, batch_norm,
    norms, class_losses, losses, data_dependent, reductions, views, indexing, creation,
)  # fmt: skip
CARDS: tuple[Card, ...] = (
    *POINTWISE,
    *foreach.cards(POINTWISE),
    *(card for family in _FAMILIES for card in family.CARDS),
)
POINTWISE_NAMES = frozenset(card.name for card in POINTWISE if card.kind is Kind.POINTWISE)


def forms(cards: tuple[Card, ...] = CARDS) -> Iterator[tuple[str, Card, Form]]:
    """Each overload (`add.Tensor`) with its card."""
    for card in cards:
        for form in card.forms:
            yield f"{card.name}.{form.overload}", card, form


def in_core(arity: int) -> tuple[str, ...]:
    """The overloads of pointwise operators on so many tensors that CORE_ATEN keeps."""
    numbers = scalar_forms()
    return tuple(
        name
        for name, card, form in forms(POINTWISE)
        if card.arity == arity and form.dialect is not Dialect.ATEN and name not in numbers
    )


def in_core_of_kind(kind: Kind) -> tuple[str, ...]:
    """The overloads of operators of a kind that CORE_ATEN keeps."""
    return tuple(
        name
        for name, card, form in forms()
        if form.dialect is not Dialect.ATEN
        and (Kind.LIBRARY if form.library else card.kind) is kind
    )


def only_in_core() -> tuple[str, ...]:
    """The overloads that CORE_ATEN keeps and PRIMS does not."""
    return tuple(name for name, _, form in forms() if form.dialect is Dialect.CORE_ATEN)


def shape_rules() -> dict[str, ShapeRule]:
    """Shape rules by overload, those of the forms in place too."""
    table: dict[str, ShapeRule] = {}
    for name, _, form in forms():
        if form.shape is not None:
            table[name] = form.shape
    for card in CARDS:
        for overload in card.in_place:
            table[f"{card.name}_.{overload}"] = _in_place(card, overload)
    return table


def _in_place(card: Card, overload: str) -> ShapeRule:
    if card.kind is Kind.POINTWISE:
        return in_place
    if card.kind is not Kind.VIEW:
        return first_argument
    shapes = {form.overload: form.shape for form in card.forms}
    shape = shapes.get(overload, card.forms[0].shape)
    assert shape is not None
    return becoming(shape)


def of_complex() -> frozenset[str]:
    """The overloads whose decompositions are right for complex numbers."""
    moving = (Kind.VIEW, Kind.MOVED, Kind.INDEXING, Kind.CREATION)
    return frozenset(name for name, card, form in forms() if form.of_complex or card.kind in moving)


def of_kind(kind: Kind) -> tuple[str, ...]:
    """All overloads of operators of a kind."""
    return tuple(name for name, card, _ in forms() if card.kind is kind)


def requirements() -> dict[str, tuple[Requirement, ...]]:
    """What eager insists on of arguments, by overload."""
    return {name: form.requires for name, _, form in forms() if form.requires}


def to_core_aten() -> dict[str, Callable[..., Any]]:
    """Decompositions of the overloads that CORE_ATEN lacks, or keeps in some cases alone."""
    return {name: form.to_core for name, _, form in forms() if form.to_core is not None}


def to_prims() -> dict[str, Callable[..., Any]]:
    """What takes overloads of CORE_ATEN to PRIMS, or puts their operands in order."""
    table: dict[str, Callable[..., Any]] = {}
    for name, card, form in forms():
        entry = form.to_prims or _in_order(name, card, form)
        if entry is not None:
            table[name] = entry
    for number, tensor in scalar_forms().items():
        table[number] = table[tensor]
    return table


def _in_order(name: str, card: Card, form: Form) -> Callable[..., Any] | None:
    if form.dialect is not Dialect.PRIMS or card.kind is not Kind.POINTWISE:
        return None
    if card.arity == 1:
        return of_floats(name) if card.result is Result.FLOAT else None
    return ordered(name, to_float=card.result is Result.FLOAT, compares=card.result is Result.BOOL)


def scalar_forms() -> dict[str, str]:
    """The overloads with a number that CORE_ATEN keeps, and those for two tensors."""
    return {
        name: f"{card.name}.Tensor"
        for name, card, form in forms(POINTWISE)
        if form.dialect is Dialect.CORE_ATEN and form.overload == "Scalar"
    }
