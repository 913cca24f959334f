"""The decomposition tables, joined from the families.

An entry has its op's signature. It is called with tensors of any kind, fake ones too, under the
mode that records; the ops it calls are either in CORE_ATEN or have entries themselves. An entry
that returns NotImplemented leaves the op as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from torch._ops import OpOverload

from . import (
    activations,
    activations_backward,
    batch_norm,
    creation,
    foreach,
    indexing,
    linear,
    losses,
    normalisation,
    padding,
    pointwise,
    reductions,
    rest,
    softmax,
    to_prims,
    upsampling,
    views,
)
from ._common import resolve

FAMILIES = (
    activations,
    activations_backward,
    softmax,
    normalisation,
    batch_norm,
    losses,
    reductions,
    pointwise,
    views,
    creation,
    indexing,
    linear,
    padding,
    upsampling,
    foreach,
    rest,
)


@cache
def core_aten_table() -> Mapping[OpOverload, Callable[..., Any]]:
    """Every decomposition to CORE_ATEN, keyed by op; ops that this torch lacks are left out."""
    table: dict[OpOverload, Callable[..., Any]] = {}
    for family in FAMILIES:
        entries = resolve(family.TABLE)
        twice = table.keys() & entries.keys()
        assert not twice, f"decomposed by two families: {sorted(map(str, twice))}"
        table |= entries
    return MappingProxyType(table)


@cache
def prims_table() -> Mapping[OpOverload, Callable[..., Any]]:
    """Every decomposition from CORE_ATEN to PRIMS, keyed by op."""
    return MappingProxyType(resolve(to_prims.TABLE))
