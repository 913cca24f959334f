"""The tracer: records functional ATen operators while it functionalises and decomposes.

It stands below autograd as a `TorchDispatchMode`. The tensors it hands out are `FakeTensor`s that
carry a `Track` (see `storage.py`); C++ autograd runs above them as above real ones, so running the
engine under the tracer records the backward into the same graph.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from dovetail_guards.shape_env import ShapeEnv
from dovetail_prims.fake_tensor import FakeMemo, FakeTensor, from_real, propagate
from dovetail_prims.size_nodes import SizeNodes
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail_autograd_aot import writes
from dovetail_autograd_aot.graphs import ViewStep
from dovetail_autograd_aot.op_info import OpInfo, OpKind, op_info
from dovetail_autograd_aot.storage import (
    ConstantWrittenError,
    TracedStorage,
    TraceError,
    fresh,
    read,
    track_of,
    wrap,
)
from dovetail_autograd_aot.values import (
    hint,
    is_contiguous,
    merge_key,
    same_metadata,
    same_sizes,
    same_strides,
    values,
    values_of,
    viewable,
    wrapped,
    wrapped_dict,
)

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
    return (base, args[1]) if is_contiguous(val) else args


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records into `graph`. `decompositions` maps an operator to a function of tensors that
    computes it from others (`NotImplemented` leaves it whole)."""

    def __init__(
        self,
        graph: Graph,
        decompositions: Mapping[OpOverload, Callable[..., Any]],
        data_env: ShapeEnv | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = graph
        self.data_env = ShapeEnv() if data_env is None else data_env
        self.decompositions = decompositions
        self.sizes = SizeNodes(graph)
        self.memo = FakeMemo()
        self.constants: dict[str, Tensor] = {}
        self.stack_trace: str | None = None
        self.in_backward = False
        self._known: dict[Any, Any] = {}  # recorded pure operators, by operator and arguments
        self._constant_of: dict[int, tuple[Tensor, FakeTensor]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True (the default) makes PyTorch import its own compiler on the first dispatch.
        return False

    # --- dispatch ---------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        info = op_info(func)
        kind = info.kind
        kwargs = kwargs or {}
        if kind is OpKind.QUERY:
            return propagate(func, args, kwargs)
        if kind is OpKind.PURE:
            if func is aten.cudnn_batch_norm_backward.default:
                # The forward was recorded as the native batch norm (see `writes.py`).
                x, grad, weight, mean, var, save_mean, save_invstd, eps, _ = args
                func = aten.native_batch_norm_backward.default
                masks = [True, True, True]
                args = (grad, x, weight, mean, var, save_mean, save_invstd, True, eps, masks)
                kwargs = {}
            decomposition = self.decompositions.get(func)
            if decomposition is not None:
                with self:
                    result = decomposition(*args, **kwargs)
                if result is not NotImplemented:
                    return self._own(result)
            if func is aten.native_batch_norm_backward.default and args[7]:
                # In training it takes the batch's own statistics: do not keep the running ones.
                args = (*args[:3], None, None, *args[5:])
            return self._fresh(self.emit(func, self.nodes(args), self.nodes_of(kwargs)))
        if kind is OpKind.VIEW:
            return self._view(func, args, kwargs)
        if kind is OpKind.ALIAS:
            tensor = self.traced(args[0])
            if func is aten.detach_.default:
                return tensor
            track = track_of(tensor)
            return wrap(read(self, tensor), track.storage, track.chain)
        if kind is OpKind.COMPOSITE:
            decomposition = self.decompositions.get(func)
            with self:
                if decomposition is not None:
                    result = decomposition(*args, **kwargs)
                    if result is not NotImplemented:
                        return self._own(result)
                return func.decompose(*args, **kwargs)
        if kind is OpKind.COPY:
            return writes.copy(self, *args, **kwargs)
        if kind is OpKind.FILL:
            return writes.fill(self, func, args)
        if kind is OpKind.WRITE:
            return writes.write(self, func, info, args, kwargs)
        if kind is OpKind.RANDOM:
            decomposition = self.decompositions.get(func)
            if decomposition is not None:
                with self:
                    result = decomposition(*args, **kwargs)
                if result is not NotImplemented:
                    return self._own(result)
            kwargs = self.without_generator(func, kwargs)
            result = self.emit(func, self.nodes(args), self.nodes_of(kwargs), merge=False)
            return self._fresh(result)
        if kind is OpKind.METADATA:
            return self._change_metadata(info, args, kwargs)
        if func in (aten.resize_.default, aten.resize_as_.default):
            return self._resize(args, kwargs)
        raise TraceError(f"{func} changes what a tensor is in place; this cannot be compiled")

    def _fresh(self, result: Any) -> Any:
        """Traced tensors with storages of their own for recorded values."""
        if type(result) is Node:
            return fresh(result)
        if isinstance(result, (list, tuple)):
            return type(result)(self._fresh(r) for r in result)
        return result

    def _own(self, result: Any) -> Any:
        """A decomposition may return an argument, or views of one: the operator returns none."""
        if isinstance(result, Tensor):
            return fresh(read(self, self.traced(result)))
        if isinstance(result, (list, tuple)):
            return type(result)(self._own(r) for r in result)
        return result

    # --- arguments --------------------------------------------------------------------------------

    def traced(self, value: Tensor) -> FakeTensor:
        """The traced tensor for any tensor: a real one becomes a constant of the graph."""
        if type(value) is FakeTensor:
            return value
        return self.constant(value)

    def constant(self, value: Tensor, name: str | None = None) -> FakeTensor:
        """The traced tensor for a real tensor that is no input. With a `name` it is the captured
        graph's attribute, which must not be written to; without, a literal of the trace."""
        known = self._constant_of.get(id(value))
        if known is not None:
            return known[1]
        attribute = f"_constant{len(self.constants)}"
        self.constants[attribute] = value.detach()
        node = self.graph.get_attr(attribute)
        node.meta["val"] = from_real(value.detach())
        tensor = wrap(node, TracedStorage(node, constant=name))
        self._constant_of[id(value)] = (value, tensor)
        return tensor

    def nodes(self, value: Any) -> Any:
        """Arguments as the graph takes them: nodes for tensors and symbolic sizes."""
        if type(value) is FakeTensor:
            return read(self, value)
        if value is None or type(value) in (int, float, bool, str, torch.dtype, torch.device):
            return value
        if type(value) is tuple or isinstance(value, (list, tuple)):
            return (
                [self.nodes(v) for v in value]
                if type(value) is not tuple
                else tuple(self.nodes(v) for v in value)
            )
        if isinstance(value, Tensor):
            return read(self, self.constant(value))
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.sizes.node(value)
        return value

    def nodes_of(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {k: self.nodes(v) for k, v in kwargs.items()} if kwargs else kwargs

    def without_generator(self, func: OpOverload, kwargs: dict[str, Any]) -> dict[str, Any]:
        if "generator" not in kwargs:
            return kwargs
        if kwargs["generator"] is not None:
            raise TraceError(f"{func} with an explicit generator cannot be compiled")
        return {k: v for k, v in kwargs.items() if k != "generator"}

    # --- recording --------------------------------------------------------------------------------

    def emit(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, merge: bool = True
    ) -> Any:
        """Record one functional operator on nodes; gives its node, or its results' nodes. An
        equal pure operator recorded before is used again."""
        if self.in_backward and not merge:
            # A checkpointed region would have to see the numbers its forward drew, and others
            # the generator as it is at the backward.
            raise TraceError(
                f"{func} in the backward: random numbers in a checkpointed region or in a custom "
                "function's backward cannot be compiled; draw them outside"
            )
        if func in _COMPOSABLE and type(args[0]) is Node and args[0].target is func:
            args = _composed(func, args)
            if len(args) == 1:  # t of t
                return args[0]
        key: Any = None
        if merge and func not in _UNINITIALISED:
            key = (func, merge_key(args), merge_key(tuple(kwargs.items())) if kwargs else None)
            known = self._known.get(key)
            if known is not None:
                return known
        known_symbols = len(self.data_env.unbacked)
        value = propagate(func, values(args), values_of(kwargs))
        depends_on_data = len(self.data_env.unbacked) != known_symbols
        result: Any
        if (
            func in _NO_OP_IF_SAME
            and type(args[0]) is Node
            and same_metadata(value, args[0].meta["val"])
        ):
            result = args[0]
        elif isinstance(value, (list, tuple)):
            node = self._call(func, args, kwargs, value)
            result = tuple(
                # a plain number among the results (attention's longest length) is known here
                v
                if v is None or type(v) in (int, float, bool)
                else self._call(operator.getitem, (node, i), {}, v)
                for i, v in enumerate(value)
            )
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

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Node:
        node = self.graph.create_node("call_function", func, args, kwargs)
        node.meta["val"] = value
        if self.stack_trace is not None:
            node.meta["stack_trace"] = self.stack_trace
        return node

    def emit_clone(self, node: Node) -> Node:
        """A copy of `node` with memory of its own, whatever was recorded before."""
        kwargs = {"memory_format": torch.preserve_format}
        value = propagate(aten.clone.default, (node.meta["val"],), kwargs)
        return self._call(aten.clone.default, (node,), kwargs, value)

    def node_op(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        """A functional or view operator on nodes, decomposed if the table says so."""
        decomposition = self.decompositions.get(func)
        if decomposition is not None:
            with self:
                result = decomposition(*wrapped(args), **wrapped_dict(kwargs))
            if result is not NotImplemented:
                return read(self, self.traced(result))
        result = self.emit(func, args, kwargs)
        assert type(result) is Node
        return result

    # --- views ------------------------------------------------------------------------------------

    def apply_view(self, step: ViewStep, base: Node) -> Node:
        """The node for a view of `base`."""
        return self.node_op(step.op, (base, *step.args), dict(step.kwargs))

    def _view(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        base = self.traced(args[0])
        if func is aten.split.Tensor:
            return self._split(base, *args[1:], **kwargs)
        if func is aten.split_with_sizes.default:
            return self._split_sizes(base, *args[1:], **kwargs)
        if func is aten.unbind.int:
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            count = base._sizes[dim]
            return [self._step(base, aten.select.int, (dim, i)) for i in range(int(count))]
        if func is aten.as_strided.default:
            return self._as_strided(base, *args[1:], **kwargs)
        return self._step(base, func, args[1:], kwargs)

    def _step(
        self,
        base: FakeTensor,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None = None,
    ) -> FakeTensor:
        args = tuple(self.nodes(a) for a in args)
        step = ViewStep(func, args, tuple((kwargs or {}).items()))
        node = self.apply_view(step, read(self, base))
        track = track_of(base)
        return wrap(node, track.storage, (*track.chain, step))

    def _split(self, base: FakeTensor, size: int, dim: int = 0) -> list[FakeTensor]:
        total = int(base._sizes[dim])
        if total == 0 or size == 0:
            return [self._step(base, aten.slice.Tensor, (dim, 0, total))]
        return [
            self._step(base, aten.slice.Tensor, (dim, start, min(start + size, total)))
            for start in range(0, total, size)
        ]

    def _split_sizes(self, base: FakeTensor, sizes: list[int], dim: int = 0) -> list[FakeTensor]:
        parts = []
        start = 0
        for size in sizes:
            parts.append(self._step(base, aten.slice.Tensor, (dim, start, start + size)))
            start = start + size
        return parts

    def _as_strided(
        self, base: FakeTensor, size: Any, stride: Any, storage_offset: Any = None
    ) -> FakeTensor:
        """as_strided looks at the storage, whatever view it is applied to."""
        track = track_of(base)
        if storage_offset is None:
            storage_offset = base._offset
        if not track.chain:
            step_args = (list(size), list(stride), storage_offset)
            return self._step(base, aten.as_strided.default, step_args)
        root = track.storage.root
        if root is None:
            raise TraceError("as_strided of a view whose base is gone")
        args = tuple(self.nodes(a) for a in (list(size), list(stride), storage_offset))
        step = ViewStep(aten.as_strided.default, args)
        return wrap(self.apply_view(step, read(self, root)), track.storage, (step,))

    def _change_metadata(
        self, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> FakeTensor:
        """t_, squeeze_ ...: the tensor becomes another view of its storage."""
        form = info.functional
        assert form is not None
        return self._become(args[0], lambda tensor: self._view(form, args, kwargs))

    def _resize(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FakeTensor:
        """resize_, resize_as_ to another shape of as many elements: another view."""
        tensor, wanted = args[0], args[1]
        sizes = wanted._sizes if type(wanted) is FakeTensor else tuple(wanted)
        if type(tensor) is FakeTensor and same_sizes(sizes, tensor._sizes):
            return tensor
        memory_format = args[2] if len(args) > 2 else kwargs.get("memory_format")
        if (
            type(tensor) is not FakeTensor
            or not is_contiguous(tensor)
            or memory_format not in (None, torch.contiguous_format, torch.preserve_format)
            or math.prod(sizes) != math.prod(tensor._sizes)
        ):
            raise TraceError("resize_ in place to another number of elements cannot be compiled")
        return self._become(tensor, lambda t: self._view(aten.view.default, (t, list(sizes)), {}))

    def _become(self, tensor: Any, as_view: Callable[[FakeTensor], FakeTensor]) -> FakeTensor:
        """Make a tensor in place the view of itself that `as_view` gives."""
        from dovetail_prims.fake_tensor import set_metadata

        if type(tensor) is not FakeTensor:
            raise ConstantWrittenError("")
        track = track_of(tensor)
        if track.storage.root is tensor:
            if track.storage.primal is not None or track.storage.constant is not None:
                raise TraceError("changing the shape of an input in place cannot be compiled")
            track.storage.root = None
            wrap(track.storage.node, track.storage)  # another tensor to be the whole storage
        view = as_view(tensor)
        set_metadata(tensor, view._sizes, view._strides, view._offset)
        moved = track_of(view)
        track.chain, track.node, track.seen = moved.chain, moved.node, moved.seen
        return tensor

    # --- shaping values ---------------------------------------------------------------------------

    def like(self, value: Node, pattern: FakeTensor, *, strides: bool = True) -> Node:
        """`value` with the dtype, shape (broadcast), device and strides of `pattern`."""
        val = value.meta["val"]
        if val._dtype != pattern._dtype:
            value = self.node_op(aten._to_copy.default, (value,), {"dtype": pattern._dtype})
            val = value.meta["val"]
        if val._device != pattern._device:
            value = self.node_op(aten._to_copy.default, (value,), {"device": pattern._device})
            val = value.meta["val"]
        if not same_sizes(val._sizes, pattern._sizes):
            sizes = [self.nodes(s) for s in pattern._sizes]
            value = self.node_op(aten.expand.default, (value, sizes), {})
            val = value.meta["val"]
        if strides and not same_strides(val, pattern):
            value = self._restride(value, pattern)
        return value

    def _restride(self, value: Node, pattern: FakeTensor) -> Node:
        """The same values laid out in the order of `pattern`'s strides, without gaps."""
        order = sorted(range(len(pattern._sizes)), key=lambda d: (-hint(pattern._strides[d]), d))
        inverse = [order.index(d) for d in range(len(order))]
        permuted = self.node_op(aten.permute.default, (value, order), {})
        dense = self.node_op(
            aten.clone.default, (permuted,), {"memory_format": torch.contiguous_format}
        )
        return self.node_op(aten.permute.default, (dense, inverse), {})

    def reshape(self, value: Node, sizes: tuple[Any, ...]) -> Node:
        """`value` in another shape: a view if its strides allow, else a copy."""
        size_nodes = [self.nodes(s) for s in sizes]
        if not viewable(value.meta["val"], sizes):
            value = self.node_op(
                aten.clone.default, (value,), {"memory_format": torch.contiguous_format}
            )
        return self.node_op(aten.view.default, (value, size_nodes), {})
