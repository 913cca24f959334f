"""What a graph's backward has read outside of the graph, when it was captured.

A user's own backward, or a hook, runs later than the graph it belongs to. A graph holds what it had
read when it was captured: numbers, functions, the data of tensors that nobody saved for it. Whoever
runs the backward asks whether all of it is as it was; what is not is an error, as there is no
telling what else the backward would have done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

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


def check(reads: Iterable[BackwardRead]) -> None:
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


def check_version(tensor: Tensor, version: int) -> None:
    """Raise an error if a tensor that nobody saved was written to since it had this version."""
    if tensor._version != version:
        raise RuntimeError(
            f"a tensor of size {tuple(tensor.shape)}, which a torch.autograd.Function keeps on its "
            "context, was written to between its forward and its backward: save it with "
            "ctx.save_for_backward, keep a copy, or leave the function uncompiled "
            "(dovetail.disable)"
        )


__all__ = ["INPUTS", "OUTPUTS", "READS", "BackwardRead", "check", "check_version", "reads_of"]
