"""Each card against eager: what it says of dtypes, shapes, decompositions and meaning; and that no
list of operators is kept beside the cards."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from dovetail_prims.decompositions import core_aten_table, prims_table
from dovetail_prims.dialects import opsets
from dovetail_prims.fake.fake_mode import FakeMode
from dovetail_prims.fake.from_real import from_real
from dovetail_prims.ops import catalog
from dovetail_prims.ops.card import Card, Dialect, Kind
from dovetail_prims.ops.common import lookup
from dovetail_prims.ops.rule_table import default_rules
from eager_oracle import assert_matches_eager, name_of
from prims_interpreter import RULES
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)


def has_own_tests(card: Card) -> bool:
    """Whether an operator's arguments must fit one another in a way of its family, whose tests give
    such (losses, convolutions, ...)."""
    of_family = card.kind is Kind.LIBRARY and not card.says
    return of_family or card.kind is Kind.COMPOSED or (not card.says and card.kind is Kind.MOVED)


ALL_FORMS = {name: (card, form) for name, card, form in catalog.forms() if lookup(name)}
FORMS = {
    name: (card, form)
    for name, (card, form) in ALL_FORMS.items()
    if not has_own_tests(card) and not form.library
}
SOURCE = Path(catalog.__file__).parents[1]


def tensor(dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, (3, 4), generator=generator).bool()
    if not dtype.is_floating_point:
        return torch.randint(1, 7, (3, 4), generator=generator).to(dtype)
    x = torch.randn(3, 4, generator=generator)
    x[0, :3] = torch.tensor([0.0, 1.0, -0.5])
    return x.to(dtype)


# What the schemas insist on besides tensors and numbers, by the arguments' names.
GIVEN: dict[str, Any] = {
    "size": [3, 4], "input_sizes": [3, 4], "stride": [4, 1], "dims": [1, 0], "pad": [1, 0],
    "repeats": [2, 1], "physical_layout": [1, 0], "split_size": 2, "split_sizes": [2, 1],
    "shifts": [1], "dtype": None,
}  # fmt: skip
COLUMNS, PLACES = torch.tensor([0, 3, 1, 2]), torch.tensor([[0, 2, 1, 0]] * 3)


# Arguments that must fit one another, of a tensor of 3 x 4.
FITTING: dict[str, Callable[[torch.Tensor], list[Any]]] = {
    "clamp.default": lambda t: [t, 1],
    "glu_backward.default": lambda t: [t[:, :2], t, 1],
    "linalg_vector_norm.default": lambda t: [t, 2],
    "norm.ScalarOpt_dtype": lambda t: [t, 2],
    "norm.ScalarOpt_dim_dtype": lambda t: [t, 2, [1], False],
    **{f"unfold{copy}.default": lambda t: [t, 1, 2, 1] for copy in ("", "_copy")},
    **{
        f"{safe}split_with_sizes{copy}.default": lambda t: [t, [1, 3], 1]
        for safe, copy in (("", ""), ("unsafe_", ""), ("", "_copy"))
    },
    "pixel_shuffle.default": lambda t: [t.reshape(4, 1, 3), 2],
    "pixel_unshuffle.default": lambda t: [t.reshape(1, 2, 6), 2],
    "channel_shuffle.default": lambda t: [t.reshape(1, 4, 3), 2],
    "_conj.default": lambda t: [t.to(torch.complex64)],
    "scatter.reduce": lambda t: [t, 1, PLACES, t, "add"],
    "scatter.value_reduce": lambda t: [t, 1, PLACES, 2, "add"],
    "select_scatter.default": lambda t: [t, t[:, 0], 1, 0],
    "diagonal_scatter.default": lambda t: [t, t[:, 0]],
    "index_reduce.default": lambda t: [t, 1, COLUMNS, t, "prod"],
    "nonzero_static.default": lambda t: [t],
    "index_fill.int_Tensor": lambda t: [t, 1, COLUMNS, t[0, 1]],
    "select_backward.default": lambda t: [t[:, 0], [3, 4], 1, 0],
    "slice_backward.default": lambda t: [t[:, :2], [3, 4], 1, 0, 2, 1],
    "diagonal_backward.default": lambda t: [t[:, 0], [3, 4], 0, 0, 1],
    "unfold_backward.default": lambda t: [t.unfold(1, 2, 1), [3, 4], 1, 2, 1],
}
FITTING_NAMED: dict[str, dict[str, Any]] = {
    "norm.ScalarOpt_dtype": {"dtype": torch.float32},
    "norm.ScalarOpt_dim_dtype": {"dtype": torch.float32},
    "scatter.reduce": {"reduce": "add"},
    "scatter.value_reduce": {"reduce": "add"},
    "nonzero_static.default": {"size": 3},
}


def arguments(op: OpOverload, dtype: torch.dtype) -> tuple[list[Any], dict[str, Any]]:
    """What the schema insists on: tensors of this dtype, and numbers of its kind."""
    name = name_of(op)
    if name in FITTING:
        positional = [a for a in op._schema.arguments if not a.kwarg_only]
        return FITTING[name](tensor(dtype, 0))[: len(positional)], FITTING_NAMED.get(name, {})
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    of_slices = op._schema.name.removeprefix("aten::").startswith("index_")
    for place, a in enumerate(op._schema.arguments):
        kind = str(a.type)
        if a.name == "buffer":  # what log_sigmoid keeps
            value: Any = (-args[1].float().abs()).exp().to(dtype)
        elif a.name in ("index", "indices") and "Tensor" in kind:
            value = COLUMNS if of_slices else PLACES
            value = [None, COLUMNS] if kind.startswith("List") else value
        elif kind == "Tensor" or (kind == "Optional[Tensor]" and not place % 2):
            value = tensor(torch.bool if a.name in ("condition", "mask") else dtype, place)
        elif kind == "List[Tensor]":
            value = [tensor(dtype, 0), tensor(dtype, 1)]
        elif a.name == "dim":
            value = [1] if "List" in kind else 1
        elif a.has_default_value():
            continue
        elif kind in ("number", "float"):
            value = 0.75 if dtype.is_floating_point else 2
        else:
            value = GIVEN.get(a.name, {"int": 1, "bool": False, "str": "sum"}.get(kind))
        if a.kwarg_only:
            kwargs[a.name] = value
        else:
            args.append(value)
    return args, kwargs


def calls(name: str) -> Iterator[tuple[OpOverload, list[Any], dict[str, Any], Any]]:
    """The calls of an overload that eager takes, and what it gives."""
    op = lookup(name)
    assert op is not None
    for dtype in DTYPES:
        args, kwargs = arguments(op, dtype)
        try:
            found = op(*args, **kwargs)
            for result in _all(found):
                result.resolve_neg()
        except (RuntimeError, NotImplementedError, TypeError, IndexError):
            continue
        yield op, args, kwargs, found


@pytest.mark.parametrize("name", FORMS)
def test_there_is_a_call_to_compare(name: str) -> None:
    """What the other tests leave out, because eager refuses it, is never all."""
    assert list(calls(name))


@pytest.mark.parametrize("name", FORMS)
def test_shape_and_dtype(name: str) -> None:
    for op, args, kwargs, expected in calls(name):
        with FakeMode():
            fakes = pytree.tree_map_only(torch.Tensor, from_real, args)
            found = op(*fakes, **kwargs)
        for f, e in zip(_all(found), _all(expected), strict=True):
            assert f.dtype is e.dtype and f.shape == e.shape and f.stride() == e.stride()


# Calls of the library that no set holds.
OF_COMPLEX = {"_conj.default": ("_conj_physical.default",)}


def _all(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


@pytest.mark.parametrize("name", [n for n, (_, f) in FORMS.items() if f.to_core])
def test_decomposition(name: str) -> None:
    table = core_aten_table()
    for op, args, kwargs, _ in calls(name):
        if op in table:
            seen = assert_matches_eager(table, op, args, kwargs, values="empty" not in name)
            assert {name_of(o) for o in seen} <= {*opsets.CORE_ATEN, *OF_COMPLEX.get(name, ())}


@pytest.mark.parametrize(
    "name", [n for n, (_, f) in FORMS.items() if f.dialect is not Dialect.ATEN]
)
def test_way_to_prims(name: str) -> None:
    for op, args, kwargs, _ in calls(name):
        seen = assert_matches_eager(prims_table(), op, args, kwargs, values="empty" not in name)
        assert {name_of(o) for o in seen} <= set(opsets.PRIMS)


@pytest.mark.parametrize(
    "name",
    [n for n in FORMS if n in RULES],
)
def test_meaning(name: str) -> None:
    for op, args, kwargs, expected in calls(name):
        entry = prims_table().get(op)
        in_order = entry is None or entry(*args, **kwargs) is NotImplemented
        if in_order and "empty" not in name:
            low = any(t.dtype is torch.bfloat16 for t in pytree.tree_leaves(args) if _is_tensor(t))
            bound = 3e-2 if low else 1e-5  # (sums in bfloat16 are rounded at each step)
            found = RULES[name](*args, **kwargs)
            torch.testing.assert_close(found, expected, rtol=bound, atol=bound, equal_nan=True)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def test_every_table_has_each_card() -> None:
    names = [card.name for card in catalog.CARDS]
    assert len(names) == len(set(names))
    rules = default_rules()
    for name, (_, form) in ALL_FORMS.items():
        assert (name in opsets.PRIMS) == (form.dialect is Dialect.PRIMS)
        assert (name in opsets.CORE_ATEN) == (form.dialect is not Dialect.ATEN)
        assert form.shape is None or f"aten.{name}" in rules.by_name
        assert form.to_core is None or lookup(name) in core_aten_table()
        assert form.to_prims is None or lookup(name) in prims_table()


# Facts of other kinds than a card's, on operators of several kinds.
OTHER_FACTS = {
    "sizes/size_nodes.py",  # of Python's numbers
    "decompositions/operand_layouts.py",  # in which layouts eager's iterators write
    "shape_rules/dtype_checks.py",  # which kernels may be asked about dtypes
    "dialects/exact_comparisons.py",  # what picks elements
    "shape_rules/argument_checks/layer_requirements.py",  # sizes that fit one another
    "shape_rules/argument_checks/index_requirements.py",  # what indices and masks must be
    "shape_rules/argument_checks/size_requirements.py",  # sizes that fit one another
    "shape_rules/argument_checks/number_requirements.py",  # numbers that a dtype must hold, options
    "shape_rules/written_memory.py",  # what eager lets overlap, in which layouts it resizes `out`
}


def test_no_list_of_operators_is_kept_beside_the_cards() -> None:
    known = {card.name for card in catalog.CARDS} | set(ALL_FORMS)
    kept = []
    for path in sorted(SOURCE.rglob("*.py")):
        own = str(path.relative_to(SOURCE))
        if own.startswith("ops/") or own in OTHER_FACTS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
                parts = node.elts
            elif isinstance(node, ast.Dict):
                parts = [k for k in node.keys if k is not None]
            else:
                continue
            words = {p.value for p in parts if isinstance(p, ast.Constant)}
            found = {w for w in words if isinstance(w, str)} & known
            if len(found) > 2:
                kept.append(f"{own}:{node.lineno}: {sorted(found)[:5]}")
    assert not kept, kept
