"""Selective checkpointing: a policy says of each operator of a region if its results are kept.

As in PyTorch it is asked once for each ATen operator that autograd calls, before that is taken
apart any further. The answer marks the nodes of the results, for the partitioner: what is to be
saved is not computed again, what had better be saved may be if that is cheap, and everything else
of a region is computed again. (Only that is saved which the backward, or what it computes again,
needs at all.)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.node_facts import CHECKPOINT, SAVED_BY_POLICY
from torch._ops import OpOverload
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from dovetail_autograd_aot.graph.op_info import OpKind
from dovetail_autograd_aot.trace.storage import TraceError, read

if TYPE_CHECKING:
    from dovetail_autograd_aot.trace.tracer import Tracer

Policy = Callable[..., Any]
"""`(context, operator, *args, **kwargs)` -> `CheckpointPolicy`, or whether to save."""

_MUST, _PREFERRED = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE
_TELLS_OUTPUT = "op_output" in inspect.signature(SelectiveCheckpointContext).parameters
# PyTorch asks neither of these: questions, new tensor objects, and what it takes apart itself.
_NOT_ASKED = frozenset({OpKind.QUERY, OpKind.ALIAS, OpKind.COMPOSITE})


def is_asked(kind: OpKind) -> bool:
    """Whether a policy is asked about operators of this kind."""
    return kind not in _NOT_ASKED


def selected(
    tracer: Tracer, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What `func` gives, with its nodes marked as the tracer's policy answers."""
    policy = tracer.policy
    assert policy is not None
    tracer.policy = None  # it is not asked about what the operator is made of
    try:
        with tracer:
            result = func(*args, **kwargs)
        with torch.no_grad():
            answer = policy(_context(result), func, *args, **kwargs)
    finally:
        tracer.policy = policy
    if isinstance(answer, bool):
        answer = _MUST if answer else CheckpointPolicy.PREFER_RECOMPUTE
    if not isinstance(answer, CheckpointPolicy):
        raise TraceError(f"a checkpoint's policy that answers {answer!r:.60} for {func}")
    if answer in (_MUST, _PREFERRED):
        for node in _nodes(tracer, result):
            if SAVED_BY_POLICY.of(node) is not _MUST:
                SAVED_BY_POLICY.tell(node, answer)
    return result


def _context(result: Any) -> SelectiveCheckpointContext:
    if _TELLS_OUTPUT:
        return SelectiveCheckpointContext(is_recompute=False, op_output=result)
    return SelectiveCheckpointContext(is_recompute=False)


def _nodes(tracer: Tracer, result: Any) -> Iterator[Node]:
    """The nodes of an operator's results, of the same region."""
    if isinstance(result, (list, tuple)):
        for part in result:
            yield from _nodes(tracer, part)
    elif isinstance(result, FakeTensor):
        node = read(tracer, result)
        if CHECKPOINT.of(node) == tracer.checkpoint:
            yield node


__all__ = ["Policy", "is_asked", "selected"]
