"""`set_stance` that knows backends by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dovetail_capture

from dovetail.backends.registry import lookup_backend


class set_stance(dovetail_capture.set_stance):
    __doc__ = dovetail_capture.set_stance.__doc__

    def __init__(
        self,
        stance: str = "default",
        *,
        skip_guard_eval_unsafe: bool = False,
        force_backend: str | Callable[..., Any] | None = None,
    ) -> None:
        backend = (
            lookup_backend(force_backend)[0] if isinstance(force_backend, str) else force_backend
        )
        super().__init__(
            stance, skip_guard_eval_unsafe=skip_guard_eval_unsafe, force_backend=backend
        )
