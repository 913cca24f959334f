"""Which tensors of one memory share the counter of the writes to it, as views do and `.data` does
not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch._C._autograd import _unsafe_set_version_counter
from torch.autograd.graph import increment_version

from dovetail_autograd_aot.native import nodes_module


def share_counter(one: Tensor, other: Tensor) -> bool:
    """Whether a write to one tensor is counted for the other."""
    return bool(nodes_module().shares_counter(one, other))


def first_sharing(number: int, among: Sequence[int], tensors: Sequence[Tensor]) -> int:
    """The first of the tensors `among` others that shares the counter of tensor `number`; this
    itself if none does."""
    own = tensors[number]
    return next((i for i in among if share_counter(own, tensors[i])), number)


def give_counter(tensor: Tensor, of: Tensor) -> None:
    """Let a tensor, of which no views were taken yet, have the version counter of another."""
    nodes_module().give_counter(tensor, of)


def counters_apart(outputs: Sequence[tuple[Tensor, Tensor | None]]) -> list[int | None]:
    """For each (output, the tensor that it is taken from), None if they share a version counter or
    it is taken from none, else a number: those of one number share one."""
    found: list[int | None] = [None] * len(outputs)
    apart: list[int] = []
    for i, (output, base) in enumerate(outputs):
        counted = base is not None and not output.is_inference() and not base.is_inference()
        if counted and i not in _sharing(base, outputs, [i]):
            apart.append(i)
    while apart:
        number = apart[0]
        output, base = outputs[number]
        of_base = [i for i in apart if outputs[i][1] is base]
        for i in _sharing(output, outputs, of_base):
            found[i] = number
            apart.remove(i)
    return found


def _sharing(
    tensor: Tensor | None, outputs: Sequence[tuple[Tensor, Any]], among: Sequence[int]
) -> list[int]:
    """The outputs that a write to `tensor` is counted for: one is, and is taken back."""
    assert tensor is not None
    version = tensor._version
    before = [outputs[i][0]._version for i in among]
    increment_version(tensor)
    sharing = [i for i, v in zip(among, before, strict=True) if outputs[i][0]._version != v]
    _unsafe_set_version_counter((tensor,), (version,))
    return sharing
