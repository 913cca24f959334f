"""Hooks on the gradients of tensors that a graph makes, as calls in the graph.

A call of a `GradientHook` registers it on a tensor, with what it takes besides the gradient; a call
of `remove_hook`, given what that gave, takes it away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from dovetail_prims.graphs.graph_in_backward import GraphInBackward

Around = Callable[[Tensor, Tensor], Tensor]
"""What is made of what a hook gives, and of the gradient that it was given."""


class GradientHook:
    """`tensor.register_hook(hook)`, with the hook as a graph: (gradient, *taken) -> (gradient,)."""

    def __init__(self, code: GraphInBackward, name: str) -> None:
        self.code = code
        self.__name__ = f"hook_{name}" if name.isidentifier() else "hook"
        self.__qualname__ = self.__name__
        self.__module__ = "gradient_hooks"  # fx looks up what says that it is torch's

    def __call__(self, tensor: Tensor, *taken: Any) -> RemovableHandle:
        """Register the hook on `tensor`."""
        return self.register(tensor, taken)

    def register(
        self, tensor: Tensor, taken: tuple[Any, ...], around: Around | None = None
    ) -> RemovableHandle:
        """Register the hook, with `around` applied to what it gives."""
        run = self.code.run

        def hook(gradient: Tensor) -> Tensor:
            (found,) = run((gradient,), taken)
            return found if around is None else around(found, gradient)

        handle: RemovableHandle = tensor.register_hook(hook)  # type: ignore[no-untyped-call]
        return handle


def remove_hook(handle: RemovableHandle) -> None:
    """`handle.remove()`."""
    handle.remove()


__all__ = ["GradientHook", "remove_hook"]
