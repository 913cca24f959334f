"""Compare what fake tensors say about an op with what eager does."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from dovetail_prims import FakeMemo, FakeTensor, from_real, propagate, tensor_meta
from torch import Tensor

aten = torch.ops.aten


def _copy_layout(t: Tensor, storages: dict[int, Any]) -> Tensor:
    """A copy with the same strides and offset, aliases kept."""
    storage = t.untyped_storage()
    key = storage._cdata
    if key not in storages:
        storages[key] = storage.clone()
    out = torch.empty(0, dtype=t.dtype, device=t.device)
    return out.set_(storages[key], t.storage_offset(), t.shape, t.stride())


def _describe(t: Any, loose: bool = False) -> Any:
    if not isinstance(t, Tensor):
        return type(t)
    m = tensor_meta(t)
    strides = [
        0 if loose and size == 1 else st for size, st in zip(m.sizes, m.strides, strict=True)
    ]
    return tuple(m.sizes), tuple(strides), m.dtype, m.device, m.offset


def check(
    func: Any, *args: Any, expect_rule: bool = True, loose: bool = False, **kwargs: Any
) -> None:
    """`func` on fakes must agree with eager: metadata, aliasing of arguments, in-place changes.

    Where eager raises, the fake must raise too. `expect_rule`: a rule must exist (and not refuse).
    `loose`: strides of dimensions of size 1, which address nothing, may differ.
    """
    flat, spec = pytree.tree_flatten((args, kwargs))
    memo = FakeMemo()
    fakes = [from_real(t, memo=memo) if isinstance(t, Tensor) else t for t in flat]
    storages: dict[int, Any] = {}
    reals = [_copy_layout(t, storages) if isinstance(t, Tensor) else t for t in flat]
    fake_args, fake_kwargs = pytree.tree_unflatten(fakes, spec)
    real_args, real_kwargs = pytree.tree_unflatten(reals, spec)
    label = f"{func}({', '.join(_label(a) for a in flat)})"
    if expect_rule:
        propagate(aten.alias.default, (from_real(torch.zeros(1)),), {})  # loads the rules
        rules = FakeTensor.rules
        assert rules is not None and rules[func] is not None, f"no rule for {func}"
    try:
        with torch.no_grad():
            expected = func(*real_args, **real_kwargs)
    except (RuntimeError, IndexError, TypeError) as error:
        try:
            propagate(func, fake_args, fake_kwargs)
        except (RuntimeError, IndexError, TypeError):
            return
        raise AssertionError(f"{label}: eager raises {error!r}, the fake does not") from error
    if expect_rule:
        assert FakeTensor.rules is not None
        rule = FakeTensor.rules[func]
        assert rule is not None
        got = rule(*fake_args, **fake_kwargs)
        assert got is not NotImplemented, f"{label}: the rule refuses"
    else:
        got = propagate(func, fake_args, fake_kwargs)
    expected_flat = pytree.tree_leaves(expected)
    got_flat = pytree.tree_leaves(got)
    assert len(expected_flat) == len(got_flat), f"{label}: number of results"
    aliasing = _schema_aliases(func)
    for e, g in zip(expected_flat, got_flat, strict=True):
        expected_meta, got_meta = _describe(e, loose), _describe(g, loose)
        assert expected_meta == got_meta, f"{label}: eager {expected_meta}, fake {got_meta}"
        if not isinstance(e, Tensor):
            continue
        for real, fake in zip(reals, fakes, strict=True):
            if isinstance(real, Tensor):
                assert (e is real) == (g is fake), f"{label}: identity"
                if aliasing:
                    shares = e.untyped_storage()._cdata == real.untyped_storage()._cdata
                    assert shares == (g._storage is fake._storage), f"{label}: aliasing"
    for real, fake in zip(reals, fakes, strict=True):
        if isinstance(real, Tensor):
            assert _describe(real) == _describe(fake), f"{label}: argument after the call"


def _schema_aliases(func: Any) -> bool:
    return func._schema.name != "aten::_unsafe_view"


def _label(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype)[6:]}{list(value.shape)}/{list(value.stride())}"
    return repr(value)


def layouts(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Tensors of one shape in the layouts that models use, and in some that they do not."""

    def dense(sizes: tuple[int, ...]) -> Tensor:
        return torch.zeros(sizes, dtype=dtype)

    out = [dense(shape)]
    rank = len(shape)
    if rank >= 2:
        out.append(dense(shape[::-1]).permute(*range(rank - 1, -1, -1)))  # all reversed
        out.append(dense((*shape[:-2], shape[-1], shape[-2])).transpose(-1, -2))
        out.append(dense((*shape[:-1], shape[-1] * 2))[..., ::2])  # gaps
        out.append(dense((*shape[:-1], shape[-1] + 3))[..., 1 : shape[-1] + 1])  # offset
        out.append(dense((1, *shape[1:])).expand(shape))  # overlap
        out.append(dense((*shape[:-1], 1)).expand(shape))
    if rank == 4:
        out.append(dense(shape).to(memory_format=torch.channels_last))
        out.append(dense((shape[1], shape[0], *shape[2:])).transpose(0, 1))
    if rank == 5:
        out.append(dense(shape).to(memory_format=torch.channels_last_3d))
    if rank >= 1:
        out.append(dense((shape[0] + 2, *shape[1:]))[2:])
        # A stride of a dimension of size 1 may be anything.
        odd = [7 if s == 1 else st for s, st in zip(shape, out[0].stride(), strict=True)]
        out.append(
            torch.zeros(
                1 + sum((s - 1) * st for s, st in zip(shape, odd, strict=True) if s) + 8,
                dtype=dtype,
            ).as_strided(shape, odd)
        )
    return out
