"""Results that `out` must be of the very dtype of: where a kernel converts nothing, eager refuses
another. (PyTorch's meta kernels of these convert; so do graphs, which write by a copy.)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload

from dovetail_prims.fake_tensor import FakeTensor, ShapeRule, propagate

_EXACT = frozenset(
    {
        "_linalg_eigh", "_linalg_slogdet", "_linalg_solve_ex", "_log_softmax", "_softmax",
        "avg_pool3d", "clamp", "clamp_max", "clamp_min", "cummax", "cummin", "diag",
        "diag_embed", "diagonal_copy", "gelu", "hardshrink", "heaviside", "isin", "kthvalue",
        "linalg_cross", "linalg_ldl_factor_ex", "linalg_ldl_solve", "linalg_lu",
        "linalg_lu_factor_ex", "linalg_lu_solve", "linalg_polar", "linalg_qr",
        "linalg_solve_triangular", "log_sigmoid_forward", "log_softmax", "logcumsumexp",
        "lu_unpack", "median", "mode", "nanmedian", "native_batch_norm", "neg",
        "nll_loss_forward", "nll_loss2d_forward", "ormqr", "renorm", "round", "scatter_reduce",
        "slice_scatter", "softmax", "softplus", "softshrink", "sort", "unfold_copy",
    }
)  # fmt: skip


def refusing_other_dtypes(func: Any, rule: ShapeRule | None) -> ShapeRule | None:
    """The rule of an operator, after a check of its `out` if eager's kernel converts nothing."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return rule
    outs = [a.name for a in func._schema.arguments if a.is_out]
    if not outs or func._schema.name.removeprefix("aten::") not in _EXACT:
        return rule
    form = functional_form(func)
    return rule if form is None else _after_check(form, outs, rule)


def functional_form(func: OpOverload) -> OpOverload | None:
    """The overload that takes the same arguments but `out`."""
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments if not a.is_out]
    packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::"))
    for name in packet.overloads():
        form: OpOverload = getattr(packet, name)
        arguments = [(a.name, str(a.type)) for a in form._schema.arguments]
        if arguments == wanted and not form._schema.is_mutable:
            return form
    return None


def _after_check(form: OpOverload, outs: list[str], rule: ShapeRule | None) -> ShapeRule:
    def checked(*args: Any, **kwargs: Any) -> Any:
        rest = {k: v for k, v in kwargs.items() if k not in outs}
        results = propagate(form, args, rest)
        for name, wanted in zip(outs, each_of(results), strict=False):
            given = kwargs.get(name)
            if isinstance(given, FakeTensor) and given._dtype is not wanted.dtype:
                own, other = (str(d).removeprefix("torch.") for d in (wanted.dtype, given._dtype))
                raise RuntimeError(
                    f"Expected out tensor to have dtype {own}, but got {other} instead"
                )
        return NotImplemented if rule is None else rule(*args, **kwargs)

    return checked


def each_of(results: Any) -> Iterator[Any]:
    """The tensors of an operator's results."""
    yield from results if isinstance(results, (tuple, list)) else (results,)
