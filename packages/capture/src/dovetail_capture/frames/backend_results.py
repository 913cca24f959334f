"""What a backend that is not ours gave back, checked: a callable, and as many results as asked."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from dovetail_capture.errors import BackendError, place_of


def name_of(backend: Callable[..., Any]) -> str:
    """A backend, as messages call it."""
    while isinstance(backend, functools.partial):
        backend = backend.func
    return str(getattr(backend, "__qualname__", type(backend).__qualname__))


def check_callable(compiled: object, name: str, code: CodeType) -> None:
    """Raise BackendError for what cannot run the graph."""
    if not callable(compiled):
        raise BackendError(
            f"backend {name} returned {type(compiled).__qualname__} for {place_of(code)}; "
            "it must return a callable"
        )


def counted(
    compiled: Callable[..., Any], name: str, graph: torch.fx.GraphModule, code: CodeType
) -> Callable[..., Any]:
    """`compiled`, each call of which has to give a tuple or list of as many results as the graph:
    a tensor alone would be taken apart along its first dimension."""
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    expected = len(output.args[0])

    def run(*inputs: Any) -> Any:
        results = compiled(*inputs)
        if isinstance(results, (tuple, list)) and len(results) == expected:
            return results
        what = type(results).__qualname__
        if isinstance(results, (tuple, list)):
            what += f" of {len(results)}"
        raise BackendError(
            f"what backend {name} compiled for {place_of(code)} returned a {what}; "
            f"it must return a tuple or list of {expected}, as the graph does"
        )

    return run
