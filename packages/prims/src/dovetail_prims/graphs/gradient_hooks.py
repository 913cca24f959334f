"""Hooks on the gradients of tensors that a graph makes, as calls in the graph; what a program's own
code computes in a backward, hooks and backwards of functions of autograd, as graphs; and what that
code has read outside of the graph, when it was captured.

A call of a `GradientHook` registers it on a tensor, with what it takes besides the gradient; a call
of `remove_hook`, given what that gave, takes it away.

A user's own backward, or a hook, runs later than the graph it belongs to. A graph holds what it had
read when it was captured: numbers, functions, the data of tensors that nobody saved for it. Whoever
runs the backward asks whether all of it is as it was; what is not is an error, as there is no
telling what else the backward would have done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils.hooks import RemovableHandle

READS = "backward_reads"
"""In a captured graph's `meta`: the `BackwardRead`s of its backward."""
INPUTS = "inputs_of_backward"
"""In a captured graph's `meta`: the places of inputs that its backward reads without having saved
them for it."""
OUTPUTS = "outputs_of_backward"
"""The places of such outputs."""


@dataclass(frozen=True, eq=False)
class BackwardRead:
    """`read()` gives what was `found`, as long as nobody changes it; `text` says what it is."""

    text: str
    read: Callable[[], Any]
    found: Any

    def is_same(self) -> bool:
        """Is it what it was?"""
        try:
            now = self.read()
        except Exception:  # it is not there any more, or what held it is not
            return False
        if now is self.found:
            return True
        return type(now) is type(self.found) and not callable(now) and bool(now == self.found)


def check_reads(reads: Iterable[BackwardRead]) -> None:
    """Raise an error if something is not as it was."""
    for one in reads:
        if not one.is_same():
            raise RuntimeError(
                f"{one.text} is read by the backward of a compiled graph, and was changed between "
                "the forward and the backward: keep it on the context in forward (`ctx.name = "
                "...`), or leave the function uncompiled (dovetail.disable)"
            )


def reads_of(gm: GraphModule) -> tuple[BackwardRead, ...]:
    """What the backward of a captured graph reads."""
    return tuple(gm.meta.get(READS, ()))


def check_unsaved(tensor: Tensor, version: int) -> None:
    """Raise an error if a tensor that nobody saved was written to since it had this version."""
    if tensor._version != version:
        raise RuntimeError(
            f"a tensor of size {tuple(tensor.shape)}, which a torch.autograd.Function keeps on its "
            "context, was written to between its forward and its backward: save it with "
            "ctx.save_for_backward, keep a copy, or leave the function uncompiled "
            "(dovetail.disable)"
        )


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
        check_reads(self.reads)
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
