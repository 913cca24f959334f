"""Every shape rule and decomposition takes what its operator's schema lets a caller leave out: the
dispatcher drops an argument that is the default."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from dovetail_prims import decompositions
from dovetail_prims.ops.rule_table import default_rules
from torch._ops import OpOverload


def _pairs() -> Iterator[tuple[OpOverload, Callable[..., Any]]]:
    rules = default_rules()
    for name in rules.by_name:
        packet, _, overload = name.removeprefix("aten.").partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if op is not None:
            yield op, rules.by_name[name]
    for table in (decompositions.core_aten_table(), decompositions.prims_table()):
        yield from ((op, rule) for op, rule in table.items() if isinstance(op, OpOverload))


def _refuses(op: OpOverload, rule: Callable[..., Any]) -> str | None:
    signature = inspect.signature(rule)
    arguments = op._schema.arguments
    for given in ([a for a in arguments if not a.has_default_value()], list(arguments)):
        positional = [a.name for a in given if not a.kwarg_only]
        try:
            signature.bind(*positional, **{a.name: None for a in given if a.kwarg_only})
        except TypeError as error:
            return f"{op} with {[a.name for a in given]}: {error}"
    return None


def test_every_rule_takes_what_its_schema_allows() -> None:
    pairs = list(_pairs())
    assert len(pairs) > 800
    refused = [text for op, rule in pairs if (text := _refuses(op, rule)) is not None]
    assert not refused, refused
