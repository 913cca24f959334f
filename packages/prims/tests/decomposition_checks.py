"""Compare an operator's decomposition with eager, and look what it is made of."""

from __future__ import annotations

from typing import Any

from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.dialects.opsets import CORE_ATEN
from eager_oracle import assert_matches_eager, name_of


def check(op: Any, args: Any, kwargs: dict[str, Any] | None = None, **flags: Any) -> None:
    """`op` decomposed gives what eager gives, by operators of CORE_ATEN alone."""
    seen = assert_matches_eager(core_aten_table(), op, args, kwargs or {}, **flags)
    left = {name_of(o) for o in seen} - set(CORE_ATEN)
    assert not left, f"{op} leaves {left}"
