"""Hooks on the gradients of tensors that a graph makes, as calls in the graph; and what a program's
own code computes in a backward, hooks and backwards of functions of autograd, as graphs.

A call of a `GradientHook` registers it on a tensor, with what it takes besides the gradient; a call
of `remove_hook`, given what that gave, takes it away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils.hooks import RemovableHandle

from dovetail_prims.graphs.backward_reads import BackwardRead, check

Around = Callable[[Tensor, Tensor], Tensor]
"""What is made of what a hook gives, and of the gradient that it was given."""


@dataclass(frozen=True)
class GraphInBackward:
    """A graph of gradients and of what it takes besides, and what it has read outside of it.

    Code that asks for the mode of gradients, or sets it, does something else where autograd records
    the backward itself (`create_graph=True`): then that is `recording`, a graph that takes the same
    and maybe more. `graph` takes the first `count` of what is taken.
    """

    graph: GraphModule
    count: int
    reads: tuple[BackwardRead, ...] = ()
    recording: GraphModule | None = None

    def run(self, gradients: Sequence[Any], taken: Sequence[Any]) -> Any:
        """The results, in the mode of gradients that holds."""
        check(self.reads)
        if self.recording is not None and torch.is_grad_enabled():
            return self.recording(*gradients, *taken)
        return self.graph(*gradients, *taken[: self.count])


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


__all__ = ["GradientHook", "GraphInBackward", "remove_hook"]
