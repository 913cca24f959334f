"""`compiled_autograd`: backward passes as one compiled graph each, by our compiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dovetail_autograd_aot

from dovetail.backends.registry import Backend, lookup_backend


def compiled_autograd(
    *,
    backend: str | Backend = "dovetail",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> dovetail_autograd_aot.compiled_autograd:
    """A context in which `backward()` and `torch.autograd.grad` run as one compiled graph each:
    of compiled and eager pieces, with hooks and the accumulation of gradients.

    Make it once and enter it for every step; it holds the compiled passes, and its `report` tells
    what became of each. The arguments are those of `compile`.
    """
    chosen, _ = lookup_backend(backend, mode, options)
    return dovetail_autograd_aot.compiled_autograd(chosen)
