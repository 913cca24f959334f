"""What Python sees of the state of a node of autograd's graph, and keys of what nodes hold."""

from __future__ import annotations

import functools
from typing import Any

import torch
from dovetail_prims.fake.fake_mode import DispatchMode
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

# Nodes with state that Python does not see, nor follows from what it sees. (Hidden dtypes, devices
# and sizes are those of gradients, which are told as the metadata of the next nodes.)
_HIDDEN_STATE = frozenset(
    {
        "AsStridedBackward0", "AsStridedBackward0_copy", "AsStridedBackward1",
        "AsStridedScatterBackward0", "BlockDiagBackward0", "ToDenseBackward0",
    }
)  # fmt: skip
# Nodes that do otherwise where the graph is kept: what they hand to their kernel is a copy then.
ASK_IF_KEPT = frozenset(
    {
        "BatchNormNoUpdateBackward0", "BatchNormWithUpdateBackward0", "CudnnBatchNormBackward0",
        "CudnnRnnBackward0", "MiopenRnnBackward0",
    }
)  # fmt: skip
# Nodes that torch does not generate; of these two, edges and metadata tell everything.
_PLAIN = frozenset({"CopyBackwards", "UndefinedGradBackward"})
_OTHERS = frozenset(
    {"CopySlices", "DelayedError", "Error", "NotImplemented", "SendRpcBackward", "UndefinedGrad"}
)


@functools.cache
def saved_names(kind: type) -> tuple[tuple[str, str | None], ...]:
    """The attributes of a kind of node that hold its state, each with that of the raw value."""
    names = [n for n in dir(kind) if n.startswith("_saved_")]
    return tuple((n, "_raw" + n if hasattr(kind, "_raw" + n) else None) for n in names)


def tells_its_state(kind: type) -> bool:
    """Whether Python sees all that the backward of such a node depends on."""
    name = kind.__name__
    if name in _HIDDEN_STATE or name in _OTHERS:
        return False
    return name in _PLAIN or getattr(torch._C._functions, name, None) is kind


class _DropoutScale(DispatchMode):  # type: ignore[no-untyped-call]
    """Catches the factor that dropout's backward is called with; nothing is computed."""

    scale = 1.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.ops.aten.native_dropout_backward.default:
            return func(*args, **(kwargs or {}))
        self.scale = float(args[2])
        return args[0]


def dropout_scale(node: Any) -> float:
    """Whether dropout was training is not told, but shows in what its node does."""
    meta, *others = node._input_metadata
    gradient = torch.empty((), dtype=meta.dtype, device=meta.device).expand(meta.shape)
    with _DropoutScale() as caught, torch.no_grad():  # type: ignore[no-untyped-call]
        node(gradient, *[None for _ in others])
    return float(caught.scale)


def alias_key(t: Tensor) -> tuple[Any, ...]:
    """Equal for tensors that are the same elements of the same memory."""
    where = (t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride())
    return (*where, t.dtype, t.is_conj(), t.is_neg())


def edge_of(value: Any) -> tuple[Any, int]:
    """Where the gradient of a root or an input arrives."""
    if isinstance(value, GradientEdge):
        return value.node, value.output_nr
    if value.grad_fn is not None:
        return value.grad_fn, value.output_nr
    edge = get_gradient_edge(value)
    return edge.node, edge.output_nr


def as_key(number: Any) -> Any:
    """A number so that equal keys mean equal numbers (of one type, which `structure` tells)."""
    if type(number) is float:
        return number.hex()
    return repr(number) if type(number) is complex else number
