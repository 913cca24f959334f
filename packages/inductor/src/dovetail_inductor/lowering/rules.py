"""The table of lowering rules: which operators become loops."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from dovetail_prims.dialects.opsets import SCALAR_FORMS
from torch import fx

from dovetail_inductor.lowering import (
    creation,
    indexing,
    pointwise,
    pooling,
    reductions,
    scans,
    scatter_reductions,
    scatters,
    views,
)
from dovetail_inductor.lowering.pointwise import Rule

RULES: Mapping[str, Rule] = {
    **pointwise.RULES,
    **{number: pointwise.RULES[tensor] for number, tensor in SCALAR_FORMS.items()},
    **views.RULES,
    **reductions.RULES,
    **scans.RULES,
    **indexing.RULES,
    **scatters.RULES,
    **scatter_reductions.RULES,
    **pooling.RULES,
    **creation.RULES,
}
"""Lowering rules by `name.overload`; every other op is an extern call."""


def rule_name(node: fx.Node) -> str:
    """`name.overload` of an ATen call, "" for anything else.

    An overload that takes a number is named as the one for tensors: the rules take both.
    """
    target = node.target
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        name = f"{target._schema.name.removeprefix('aten::')}.{target._overloadname}"
        return SCALAR_FORMS.get(name, name)
    return ""
