"""What autograd says of a tensor, also where it says so by an error; and which tensors share a
version counter, as views of one memory do and `.data` does not."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_guards.torch_state import no_hooks_on_saved_tensors
from dovetail_prims.fake_tensor import FakeTensor
from torch import Tensor
from torch._C._autograd import _unsafe_set_version_counter
from torch.autograd import grad_mode
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import increment_version

from dovetail_autograd_aot.native import nodes_module


def grad_flags(tensor: FakeTensor) -> tuple[bool, bool]:
    """`requires_grad` and `is_leaf`. A view that autograd lost track of (made under no_grad, or one
    of several, its base written to after) says nothing but errors: it is taken for one without
    gradient."""
    try:
        return tensor.requires_grad, tensor.is_leaf
    except RuntimeError:
        return False, True


def why_lost(tensor: FakeTensor) -> str:
    """The error of a view that autograd lost track of, or nothing."""
    try:
        tensor.grad_fn  # noqa: B018 (it is asked whether it can be asked)
    except RuntimeError as error:
        return str(error)
    return ""


def grad_fn_of(tensor: Tensor) -> Any:
    """`tensor.grad_fn`; None of a view that autograd lost track of."""
    try:
        if type(tensor) is FakeTensor:
            return tensor.grad_fn
        with torch._C.DisableTorchFunctionSubclass():  # its class may have a method for this
            return tensor.grad_fn
    except RuntimeError:
        return None


def has_history(value: Any) -> bool:
    """Whether it is a tensor that autograd may be asked for a gradient of."""
    try:
        return isinstance(value, Tensor) and value.requires_grad
    except RuntimeError:  # it lost track of it
        return False


def one_of_several(tensor: FakeTensor) -> bool:
    """Whether it is a view that an operator made together with others (split, unbind)."""
    several = torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE
    return tensor._is_view() and bool(torch._C._autograd._get_creation_meta(tensor) == several)


def saves_nothing(node: Any) -> bool:
    """Whether a node of autograd's graph has nothing to save for its backward."""
    kind: Any = type(node)
    return not issubclass(kind, BackwardCFunction) and _kind_saves_nothing(kind)


@functools.cache
def _kind_saves_nothing(kind: Any) -> bool:
    of_others = kind.__name__ == "CopySlices"  # (the operator that wrote saves)
    return not of_others and not any(name.startswith("_raw_saved") for name in dir(kind))


def made_by_user(tensor: FakeTensor) -> bool:
    """Whether it is a view that an `autograd.Function` of the user's made, or a view of one."""
    in_function = torch._C._autograd.CreationMeta.IN_CUSTOM_FUNCTION
    return tensor._is_view() and bool(torch._C._autograd._get_creation_meta(tensor) == in_function)


def seen_base(tensor: Tensor) -> Any:
    """What autograd takes for the base of views of a tensor."""
    return tensor if tensor._base is None else tensor._base


# --- version counters -----------------------------------------------------------------------------


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


# --- the engine under the tracer ------------------------------------------------------------------


def run_engine(
    roots: Sequence[Tensor], tangents: Sequence[Tensor], wanted: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradients of `wanted`; the graph is kept."""
    found: tuple[Tensor | None, ...] = torch.autograd.graph._engine_run_backward(
        tuple(roots),
        tuple(tangents),
        True,
        False,
        tuple(wanted),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return found


@dataclass(frozen=True)
class Paths:
    """The paths of autograd's graph from roots to leaves.

    `reached` tells for each leaf which roots lead to it, as a bit set. `freed` tells what a
    backward frees: of nodes that save something, the roots that lead to one, and the leaves that it
    leads to, as bit sets. A pass that comes to such a node closes all paths through it. (Of sets
    that lie within others there is no need.)
    """

    reached: tuple[int, ...]
    freed: tuple[tuple[int, int], ...]


def paths_between(roots: Sequence[Tensor], leaves: Sequence[Any]) -> Paths:
    """The paths of autograd's graph; None among the leaves stands for one that has no gradient."""
    nodes = nodes_below(roots)
    index_of = {id(leaf): i for i, leaf in enumerate(leaves) if leaf is not None}
    below: dict[Any, int] = {}  # the leaves that a node leads to
    above: dict[Any, int] = dict.fromkeys(nodes, 0)  # the roots that lead to it
    reached = [0] * len(leaves)
    for node, following in nodes.items():
        index = index_of.get(id(node.variable)) if _accumulates(node) else None
        own = 0 if index is None else 1 << index
        below[node] = functools.reduce(int.__or__, (below[n] for n in following), own)
    for number, root in enumerate(roots):
        above[root.grad_fn] |= 1 << number
    for node, following in reversed(nodes.items()):
        for n in following:
            above[n] |= above[node]
        if _accumulates(node):
            index = index_of.get(id(node.variable))
            if index is not None:
                reached[index] = above[node]
    saving = (n for n in nodes if below[n] and not _accumulates(n) and not saves_nothing(n))
    freed = {(above[node], below[node]) for node in saving}
    return Paths(tuple(reached), _largest(freed))


def nodes_below(roots: Sequence[Tensor]) -> dict[Any, list[Any]]:
    """The nodes of autograd's graph with those that each leads to, which come before it."""
    following: dict[Any, list[Any]] = {}
    found: dict[Any, list[Any]] = {}
    stack: list[Any] = [root.grad_fn for root in roots]
    while stack:
        node = stack[-1]
        if node in following:
            found.setdefault(stack.pop(), following[node])
            continue
        following[node] = [n for n, _ in node.next_functions if n is not None]
        stack += [n for n in following[node] if n not in following]
    return found


def _accumulates(node: Any) -> bool:
    return type(node).__name__ == "AccumulateGrad"


def _largest(pairs: Collection[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Of pairs of sets, those that lie within no other one."""
    largest: list[tuple[int, int]] = []
    for one, other in sorted(pairs, key=lambda pair: sum(map(int.bit_count, pair)), reverse=True):
        if all(one & ~a or other & ~b for a, b in largest):
            largest.append((one, other))
    return tuple(largest)


@contextmanager
def trace_settings() -> Iterator[None]:
    """Views are replayed, not re-strided, by autograd; the engine stays on this thread, and looks
    for no NaN in what has no data; the user's hooks on saved tensors see none of that."""
    with (
        torch.autograd.set_detect_anomaly(False),
        grad_mode._force_original_view_tracking(True),
        torch.autograd.set_multithreading_enabled(False),
        no_hooks_on_saved_tensors(),
    ):
        yield


# What autograd says of a graph that cannot be differentiated.
ERRORS_OF_BACKWARDS = (
    "modified by an inplace operation", "derivative for", "Trying to backward through",
    "is not differentiable", "invalid gradient at index", "detached in-place",
    "isDifferentiableType", "is a view and its base or another view",
    "is a view of a view which was created in no_grad mode",
    "A view was created in no_grad mode", "isFloatingType(grad.scalar_type())",
)  # fmt: skip
