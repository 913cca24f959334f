"""The decomposition tables, made of the cards.

An entry has its op's signature. It is called with tensors of any kind, fake ones too, under the
mode that records; the ops it calls are either in CORE_ATEN or have entries themselves. An entry
that returns NotImplemented leaves the op as it is. Arithmetic on complex numbers is left as it is
(see `_real_only`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, wraps
from types import MappingProxyType
from typing import Any

from torch import Tensor
from torch._ops import OpOverload

from dovetail_prims.ops import catalog
from dovetail_prims.ops.common import resolve

from .operand_layouts import laid_out


def _real_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """An entry for real numbers alone: no kernel of ours takes complex ones, and formulas for real
    numbers (derivatives without a conjugate, norms, comparisons) are wrong for them."""

    @wraps(function)
    def entry(*args: Any, **kwargs: Any) -> Any:
        for arg in args:
            if isinstance(arg, Tensor):
                if arg.dtype.is_complex:
                    return NotImplemented
            elif isinstance(arg, (list, tuple)):
                if any(isinstance(a, Tensor) and a.dtype.is_complex for a in arg):
                    return NotImplemented
            elif isinstance(arg, complex):
                return NotImplemented
        dtype = kwargs.get("dtype")
        if dtype is not None and dtype.is_complex:
            return NotImplemented
        return function(*args, **kwargs)

    return entry


@cache
def core_aten_table() -> Mapping[OpOverload, Callable[..., Any]]:
    """Every decomposition to CORE_ATEN, keyed by op; ops that this torch lacks are left out."""
    of_complex = catalog.of_complex()
    guarded = {
        name: entry if name in of_complex else _real_only(entry)
        for name, entry in catalog.to_core_aten().items()
    }
    return MappingProxyType({op: laid_out(op, entry) for op, entry in resolve(guarded).items()})


@cache
def prims_table() -> Mapping[OpOverload, Callable[..., Any]]:
    """Every decomposition from CORE_ATEN to PRIMS, keyed by op."""
    return MappingProxyType(resolve(catalog.to_prims()))
