"""What eager's kernels refuse beyond shapes and dtypes: options, sizes of what is written.

A shape rule that does not look at such an argument would let a program run that eager stops. Each
check takes its op's arguments and raises what eager raises; the op's in-place form has the same.
Each module has a table of checks by op name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dovetail_prims.shape_rules.argument_checks import dtypes, numbers, options, writes
from dovetail_prims.shape_rules.argument_checks.check import Check

TABLES = (dtypes.TABLE, numbers.TABLE, options.TABLE, writes.TABLE)
"""Checks by op name; the op's rule, or its meta kernel, answers after its checks."""


def checked(table: dict[str, Callable[..., Any]], own: Mapping[str, Check]) -> None:
    """Put the checks, those of cards (`own`) too, before the rules of `table`, in place."""
    for checks in (*reversed(TABLES), own):
        for name, check in checks.items():
            base, _, overload = name.partition(".")
            for form in (f"aten.{name}", f"aten.{base}_.{overload}"):
                table[form] = _after(check, table.get(form, _no_rule))


def _no_rule(*args: Any, **kwargs: Any) -> Any:
    return NotImplemented


def _after(check: Check, rule: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return rule(*args, **kwargs)

    return both
