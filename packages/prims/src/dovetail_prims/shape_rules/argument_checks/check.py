"""One check: what it is, and how checks are put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Check = Callable[..., None]


def every(*checks: Check) -> Check:
    """Several checks, one after the other."""

    def check(*args: Any, **kwargs: Any) -> None:
        for each in checks:
            each(*args, **kwargs)

    return check
