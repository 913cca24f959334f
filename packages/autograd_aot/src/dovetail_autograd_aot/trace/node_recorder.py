"""Recording of functional operators on a graph's nodes: what need not be recorded is not; marks of
those that selective checkpointing is to save.

An equal pure operator recorded before is used again; an operator that gives its very argument, or
a view of a view, leaves out what is between.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
from dovetail_guards.shape_env import ShapeEnv
from dovetail_prims.fake_tensor import FakeTensor, propagate
from dovetail_prims.node_facts import CHECKPOINT, IN_BACKWARD, SAVED_BY_POLICY
from dovetail_prims.sizes.size_nodes import SizeNodes
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from dovetail_autograd_aot.graph.fast_graph import ASKED_BY_BACKWARD
from dovetail_autograd_aot.graph.op_info import OpKind
from dovetail_autograd_aot.trace import node_values
from dovetail_autograd_aot.trace.storage import TraceError, read

if TYPE_CHECKING:
    from dovetail_autograd_aot.trace.tracer import Tracer

aten = torch.ops.aten

# Results whose metadata equals the argument's are the argument.
_NO_OP_IF_SAME = frozenset(
    {
        aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.permute.default,
        aten.slice.Tensor, aten.clone.default, aten._to_copy.default, aten.squeeze.dim,
        aten.squeeze.dims, aten.squeeze.default, aten._reshape_alias.default, aten.t.default,
        aten.as_strided.default,
    }
)  # fmt: skip
_UNINITIALISED = frozenset(
    {
        aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default,
        aten.new_empty.default, aten.new_empty_strided.default, aten.empty_permuted.default,
    }
)  # fmt: skip
_COMPOSABLE = frozenset({aten.view.default, aten.permute.default, aten.t.default})
# Twice is not at all.
_OPPOSITE = frozenset({aten._conj_physical.default, aten.conj_physical.default, aten.neg.default})


def _composed(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A view of a view of the same kind, as one view of the first base (for `t`, the base)."""
    inner = args[0]
    base = inner.args[0]
    if func is aten.t.default:
        return (base,) if len(base.meta["val"]._sizes) == 2 else args
    if func is aten.permute.default:
        dims = inner.args[1]
        return base, [dims[d] for d in args[1]]
    val = base.meta["val"]
    # Only then is the shape in between of no consequence for the strides.
    return (base, args[1]) if node_values.is_contiguous(val) else args


def _computes_again() -> bool:
    """Whether the backward that runs is that of PyTorch's own checkpoint."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == torch.utils.checkpoint.__file__:
            return True
        frame = frame.f_back
    return False


class NodeRecorder:
    """Records calls on nodes into `graph`, each with its value's metadata and where it belongs."""

    def __init__(self, graph: Graph, data_env: ShapeEnv | None = None) -> None:
        self.graph = graph
        self.data_env = ShapeEnv() if data_env is None else data_env
        self.sizes = SizeNodes(graph)
        self.subgraphs: dict[str, GraphModule] = {}  # those that a node chooses from
        self.stack_trace: str | None = None
        self.checkpoint: int | None = None  # the user's region that the operator belongs to
        self.in_backward = False
        self._known: dict[Any, Any] = {}  # recorded pure operators, by operator and arguments

    def emit(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, merge: bool = True
    ) -> Any:
        """Record one functional operator on nodes; gives its node, or its results' nodes. An
        equal pure operator recorded before is used again."""
        if self.in_backward and not merge and _computes_again():
            raise TraceError(
                f"{func} in the backward: a checkpointed region would have to see the random "
                "numbers that its forward drew; draw them outside"
            )
        if func in _COMPOSABLE and type(args[0]) is Node and args[0].target is func:
            args = _composed(func, args)
            if len(args) == 1:  # t of t
                return args[0]
        if func in _OPPOSITE and type(args[0]) is Node:
            undone = self._undone(func, args[0])
            if undone is not None:
                return undone
        key: Any = None
        if merge and func not in _UNINITIALISED:
            key = (
                func,
                node_values.merge_key(args),
                node_values.merge_key(tuple(kwargs.items())) if kwargs else None,
            )
            known = self._known.get(key)
            if known is not None:
                if self.in_backward and type(known) is Node:
                    ASKED_BY_BACKWARD.tell(known, True)
                return known
        known_symbols = len(self.data_env.unbacked)
        value = propagate(func, node_values.values(args), node_values.values_of(kwargs))
        depends_on_data = len(self.data_env.unbacked) != known_symbols
        result: Any
        if (
            func in _NO_OP_IF_SAME
            and type(args[0]) is Node
            and node_values.same_metadata(value, args[0].meta["val"])
            and not node_values.copies_input(func, args, kwargs)
        ):
            result = args[0]
        elif isinstance(value, (list, tuple)):
            result = self.parts(self._call(func, args, kwargs, value))
        elif isinstance(value, FakeTensor):
            result = self._call(func, args, kwargs, value)
        else:
            if depends_on_data and not self.sizes.can_compute(value):
                self.sizes.bind(value, self._call(func, args, kwargs, value))
            return value  # a number: known while tracing, or what `sizes` knows the node of
        if depends_on_data:
            for part in result if isinstance(result, tuple) else (result,):
                if type(part) is Node and isinstance(part.meta["val"], FakeTensor):
                    self.sizes.bind_sizes(part, part.meta["val"])
        if key is not None:
            self._known[key] = result
        return result

    def _undone(self, func: Any, node: Node) -> Any:
        """What an operator that is its own opposite gives of a node that it made, or that it does
        nothing to; None if it made no such node."""
        value = node.meta["val"]
        if node.target is func:
            base: Any = node.args[0]
            if node_values.same_metadata(value, base.meta["val"]):
                return base
            # What has gaps came to lie without them.
            return self.emit(aten.clone.default, (base,), {"memory_format": torch.preserve_format})
        does_nothing = func is not aten.neg.default and not value._dtype.is_complex
        return node if does_nothing else None  # (the kernel would return its argument)

    def parts(self, node: Node) -> tuple[Any, ...]:
        """The nodes of several results; lists among them are taken apart, too."""
        parts: list[Any] = []
        for i, v in enumerate(node.meta["val"]):
            if v is None or type(v) in (int, float, bool):
                parts.append(v)  # a plain number (attention's longest length) is known here
                continue
            part = self._call(operator.getitem, (node, i), {}, v)
            parts.append(self.parts(part) if isinstance(v, (list, tuple)) else part)
        return tuple(parts)

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Node:
        node = self.graph.create_node("call_function", func, args, kwargs)
        node.meta["val"] = value
        if self.stack_trace is not None:
            node.meta["stack_trace"] = self.stack_trace
        if self.checkpoint is not None:
            CHECKPOINT.tell(node, self.checkpoint)
        if self.in_backward:
            IN_BACKWARD.tell(node, True)
            ASKED_BY_BACKWARD.tell(node, True)
        return node

    def call(self, target: Any, args: tuple[Any, ...], value: Any) -> Node:
        """Record a call, on nodes, of what is no ATen operator; it gives `value`."""
        return self._call(target, args, {}, value)

    def subgraph(self, graph: GraphModule) -> Node:
        """A node for a graph that another node chooses."""
        name = f"branch{len(self.subgraphs)}"
        self.subgraphs[name] = graph
        node = self.graph.get_attr(name)
        node.meta["val"] = graph
        return node

    def emit_clone(self, node: Node) -> Node:
        """A copy of `node` with memory of its own, whatever was recorded before."""
        kwargs = {"memory_format": torch.preserve_format}
        value = propagate(aten.clone.default, (node.meta["val"],), kwargs)
        return self._call(aten.clone.default, (node,), kwargs, value)

    def forget(self, node: Node) -> None:
        """Take a node out of the graph with everything made from it."""
        for user in list(node.users):
            self.forget(user)
        if node.next is not None and not node._erased:
            self.graph.erase_node(node)

    def forget_known(self) -> None:
        """Record anew what was recorded before: some of it is no longer in the graph."""
        self._known.clear()


# --- selective checkpointing ----------------------------------------------------------------------
# A policy says of each operator of a region if its results are kept. As in PyTorch it is asked once
# for each ATen operator that autograd calls, before that is taken apart any further. The answer
# marks the nodes of the results, for the partitioner: what is to be saved is not computed again,
# what had better be saved may be if that is cheap, and everything else of a region is computed
# again. (Only that is saved which the backward, or what it computes again, needs at all.)

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
