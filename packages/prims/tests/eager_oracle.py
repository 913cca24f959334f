"""Compare a decomposition with the eager op it stands for: the oracle of every entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from dovetail_prims.fake.fake_mode import DispatchMode, FakeMode, fake_arguments
from dovetail_prims.fake_tensor import FakeTensor
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

Table = Mapping[OpOverload, Callable[..., Any]]


def name_of(op: OpOverload) -> str:
    """`<op>.<overload>` of an ATen op, `<namespace>::<op>.<overload>` of another."""
    full = op._schema.name
    name = full[6:] if full.startswith("aten::") else full
    return f"{name}.{op._overloadname}"


class Expander(DispatchMode):  # type: ignore[no-untyped-call]
    """Applies a table to every op called under it, and to the ops its entries call; notes in `seen`
    the ops that are left."""

    def __init__(self, table: Table) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table = table
        self.seen: list[OpOverload] = []

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        entry = self.table.get(func)
        if entry is not None:
            with self:
                result = entry(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def run_expanded(
    table: Table, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, list[OpOverload]]:
    """The op's result by way of the table, and the ops that were left after it was applied."""
    mode = Expander(table)
    with mode:
        result = op(*args, **kwargs)
    return result, mode.seen


def in_double(tree: Any) -> Any:
    """Floating tensors, and float dtypes given as arguments, as float64."""

    def up(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.double() if leaf.is_floating_point() else leaf.clone()
        if isinstance(leaf, torch.dtype) and leaf.is_floating_point:
            return torch.float64
        return leaf

    return pytree.tree_map(up, tree)


def fresh(tree: Any) -> Any:
    """Tensors cloned, their layout kept, so that a mutating op can be run twice."""

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        storage = leaf.untyped_storage().clone()  # type: ignore[no-untyped-call]
        twin = torch.empty(0, dtype=leaf.dtype)
        return twin.set_(storage, leaf.storage_offset(), leaf.shape, leaf.stride())

    return pytree.tree_map(copy, tree)


def _leaves(result: Any) -> list[Any]:
    return list(pytree.tree_leaves(result, is_leaf=lambda x: x is None))


def _same_strides(a: Tensor, b: Tensor) -> bool:
    """Equal strides where they mean something: not for sizes below 2 or empty tensors"""
    if a.numel() == 0:
        return True
    triples = zip(a.shape, a.stride(), b.stride(), strict=True)
    return all(x == y for size, x, y in triples if size > 1)


def _error(x: Tensor, reference: Tensor) -> float:
    """The largest finite difference"""
    gap = (x.double() - reference.double()).abs()
    gap = gap[torch.isfinite(gap)]
    return float(gap.max()) if gap.numel() else 0.0


def assert_matches_eager(
    table: Table,
    op: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    strides: bool = True,
    values: bool = True,
    tolerance: float | None = None,
) -> list[OpOverload]:
    """Assert shape, dtype, strides and values (mutated arguments too) equal eager's.

    float32 and float64 are held to 1e-5 and 1e-11 unless a tolerance is given; the half types to
    an error against a float64 run of eager no worse than eager's own. Returns the ops left over.
    """
    eager_args, eager_kwargs = fresh((args, kwargs))
    own_args, own_kwargs = fresh((args, kwargs))
    wide_args, wide_kwargs = in_double((args, kwargs))
    expected = op(*eager_args, **eager_kwargs)
    result, seen = run_expanded(table, op, own_args, own_kwargs)
    _assert_fakes_agree(table, op, args, kwargs, result, strides)
    pairs = zip(
        _leaves((result, own_args, own_kwargs)),
        _leaves((expected, eager_args, eager_kwargs)),
        strict=True,
    )
    reference: list[Any] | None = None
    coarse = _half_type((args, expected))
    for place, (ours, theirs) in enumerate(pairs):
        where = f"{op}, leaf {place}"
        if not isinstance(theirs, Tensor):
            assert ours == theirs, f"{where}: {ours}, {theirs}"
            continue
        assert isinstance(ours, Tensor), f"{where}: {ours}"
        assert ours.shape == theirs.shape, f"{where}: shape {ours.shape}, eager {theirs.shape}"
        assert ours.dtype == theirs.dtype, f"{where}: {ours.dtype}, eager {theirs.dtype}"
        if strides:
            assert _same_strides(ours, theirs), (
                f"{where}: strides {ours.stride()}, eager {theirs.stride()} of {theirs.shape}"
            )
        if not values:
            continue
        if theirs.dtype.is_floating_point and coarse is not None:
            if reference is None:
                out = op(*wide_args, **wide_kwargs)
                reference = _leaves((out, wide_args, wide_kwargs))
            _assert_no_worse(ours, theirs, reference[place], coarse, where)
        elif theirs.dtype.is_floating_point or theirs.dtype.is_complex:
            tight = 1e-5 if theirs.dtype in (torch.float32, torch.complex64) else 1e-11
            tight = tolerance or tight
            assert torch.allclose(ours, theirs, rtol=tight, atol=tight, equal_nan=True), (
                f"{where}: off by {_error(ours, theirs)}: {ours}, eager {theirs}"
            )
        else:
            assert torch.equal(ours, theirs), f"{where}: {ours}, eager {theirs}"
    return seen


def _assert_fakes_agree(
    table: Table,
    op: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: Any,
    strides: bool,
) -> None:
    """The same run on fakes gives the same shapes, dtypes and strides"""
    fake_args, fake_kwargs = fake_arguments((args, kwargs))
    with FakeMode():
        fakes, _ = run_expanded(table, op, fake_args, fake_kwargs)
    for place, (fake, real) in enumerate(zip(_leaves(fakes), _leaves(result), strict=True)):
        where = f"{op}, leaf {place}, on fakes"
        if not isinstance(real, Tensor):
            assert fake == real, f"{where}: {fake}, {real}"
            continue
        assert type(fake) is FakeTensor, f"{where}: {type(fake)}"
        assert fake.shape == real.shape, f"{where}: shape {fake.shape}, not {real.shape}"
        assert fake.dtype == real.dtype, f"{where}: {fake.dtype}, not {real.dtype}"
        if strides:
            assert _same_strides(real, fake), f"{where}: {fake.stride()}, not {real.stride()}"


def _half_type(tree: Any) -> torch.dtype | None:
    """The half type that some tensor in it has, if any"""
    dtypes = {leaf.dtype for leaf in _leaves(tree) if isinstance(leaf, Tensor)}
    return next((d for d in (torch.bfloat16, torch.float16) if d in dtypes), None)


def _assert_no_worse(
    ours: Tensor, theirs: Tensor, reference: Tensor, coarse: torch.dtype, where: str
) -> None:
    """Half types: as near to float64 as eager is, or within one rounding of the largest value"""
    assert torch.equal(torch.isnan(ours), torch.isnan(theirs)), f"{where}: NaN elsewhere"
    finite = reference.double().abs()
    finite = finite[torch.isfinite(finite)]
    rounding = torch.finfo(coarse).eps * (float(finite.max()) if finite.numel() else 0.0)
    bound = max(_error(theirs, reference) * 1.1, rounding)
    error = _error(ours, reference)
    assert error <= bound, f"{where}: error {error}, eager's {_error(theirs, reference)}"
