"""The row type of the opcode tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Handler = Callable[[Any, Any], "int | None"]

ALWAYS = ((3, 11), (3, 13))
FROM_312 = ((3, 12), (3, 13))
FROM_313 = ((3, 13), (3, 13))
UNTIL_311 = ((3, 11), (3, 11))
UNTIL_312 = ((3, 11), (3, 12))


class Row(NamedTuple):
    """`name` is handled by `handler` on the Python versions `versions[0]..versions[1]`."""

    name: str
    versions: tuple[tuple[int, int], tuple[int, int]]
    handler: Handler
