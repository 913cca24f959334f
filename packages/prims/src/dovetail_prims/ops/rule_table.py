"""The table of shape rules, joined from the cards and the families.

`default_rules()` builds the table. A rule takes the op's arguments as the dispatcher passes them
(trailing defaults may be missing) and gives what the op gives: a fake, a tuple or list of fakes.
A rule that does not cover a case returns `NotImplemented`; the op's meta kernel then answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail_prims.fake import fake_queries
from dovetail_prims.fake_tensor import ShapeRule
from dovetail_prims.ops import catalog
from dovetail_prims.shape_rules import dtype_checks, lists, written_memory
from dovetail_prims.shape_rules.argument_checks import (
    index_requirements,
    layer_requirements,
    number_requirements,
    size_requirements,
)
from dovetail_prims.shape_rules.argument_checks.requirement import requiring

_REQUIREMENTS = {
    **catalog.requirements(),
    **index_requirements.TABLE,
    **layer_requirements.TABLE,
    **size_requirements.TABLE,
    **number_requirements.TABLE,
}


class RuleTable(dict[Any, "ShapeRule | None"]):
    """`Mapping[OpOverload, ShapeRule | None]`; an op is looked up by name the first time it is met.

    So building the table does not resolve hundreds of ops, and a name that this PyTorch does not
    have costs nothing.
    """

    def __init__(self, by_name: Mapping[str, ShapeRule]) -> None:
        super().__init__()
        self.by_name = dict(by_name)

    def __missing__(self, func: Any) -> ShapeRule | None:
        rule = requiring(func, self.by_name.get(str(func)), _REQUIREMENTS)
        rule = written_memory.refusing_overlaps(func, rule)
        rule = lists.checking_each(func, rule)
        rule = written_memory.laying_out(func, rule)
        rule = dtype_checks.refusing_dtypes(func, rule)
        self[func] = rule
        return rule


def default_rules() -> RuleTable:
    """All our rules, by op name (`aten.add.Tensor`)."""
    tables = (catalog.shape_rules, fake_queries.rules)
    by_name: dict[str, ShapeRule] = {}
    for table in tables:
        by_name.update({f"aten.{name}": rule for name, rule in table().items()})
    return RuleTable(by_name)
