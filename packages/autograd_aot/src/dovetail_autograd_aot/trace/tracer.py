"""The tracer: functionalises and decomposes what a program does, and records it on nodes.

It stands below autograd as a `TorchDispatchMode`. The tensors it hands out are `FakeTensor`s that
carry a `Track` (see `storage.py`); C++ autograd runs above them as above real ones, so running the
engine under the tracer records the backward into the same graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils.checkpoint
from dovetail_guards.shape_env import ShapeEnv
from dovetail_prims.fake.fake_mode import DispatchMode
from dovetail_prims.fake.from_real import FakeMemo, from_real
from dovetail_prims.fake_tensor import FakeTensor, has_other_types, propagate
from dovetail_prims.node_facts import CHECKED
from dovetail_prims.shape_rules.layout import dense_order
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node

from dovetail_autograd_aot.boundary import ViewStep
from dovetail_autograd_aot.graph.op_info import OpKind, eager_cost, op_info
from dovetail_autograd_aot.trace import metadata_mutations, mutations, node_values, storage, views
from dovetail_autograd_aot.trace.derivative_fixes import fills_in_place
from dovetail_autograd_aot.trace.node_recorder import NodeRecorder, Policy, is_asked, selected
from dovetail_autograd_aot.trace.storage_writes import as_it_lay, shaped_like

aten = torch.ops.aten

_STRIDED = frozenset({aten.empty_strided.default, aten.new_empty_strided.default})
_CHECKS = frozenset(
    {
        aten._assert_async.default, aten._assert_async.msg, aten.equal.default,
        aten.allclose.default,
    }
)  # fmt: skip
_SETS = frozenset(
    {
        aten.set_.default, aten.set_.source_Tensor, aten.set_.source_Storage,
        aten.set_.source_Storage_storage_offset,
    }
)  # fmt: skip
# The dtypes of the tensors that PyTorch makes of numbers.
_NUMBERS = {
    bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128,
    torch.SymBool: torch.bool, torch.SymInt: torch.int64, torch.SymFloat: torch.float64,
}  # fmt: skip


def _seen_as(val: FakeTensor, dtype: Any) -> bool:
    """Whether a tensor's elements can be seen as those of another dtype: of the same size, or in
    order along the last dimension."""
    if dtype.itemsize == val._dtype.itemsize or not val._strides:
        return True
    return type(val._strides[-1]) is not int or val._strides[-1] == 1


# The same samplers without a generator, which is what is meant by None.
_PLAIN_SAMPLERS = {
    aten.rand.generator: aten.rand.default,
    aten.randn.generator: aten.randn.default,
    aten.randint.generator: aten.randint.default,
    aten.randint.low_generator: aten.randint.low,
    aten.randperm.generator: aten.randperm.default,
}


class Tracer(NodeRecorder, DispatchMode):
    """Records into `graph`. `decompositions` maps an operator to a function of tensors that
    computes it from others (`NotImplemented` leaves it whole)."""

    def __init__(
        self,
        graph: Graph,
        decompositions: Mapping[OpOverload, Callable[..., Any]],
        data_env: ShapeEnv | None = None,
    ) -> None:
        DispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        NodeRecorder.__init__(self, graph, data_env)
        self.decompositions = decompositions
        self.memo = FakeMemo()
        self.constants: dict[str, Tensor] = {}
        self.running: str | None = None  # the node of the captured graph that runs
        self.policy: Policy | None = None  # what selects the values of the region to keep
        # Operators that made a tensor another view of itself, by the tensor's id.
        self.reshaped: dict[int, list[tuple[ViewStep, bool]]] = {}
        self.reshapers: dict[int, str | None] = {}  # by which node first
        # The node that first changed the shape of a tensor in the memory of an input, which may
        # have a counter in common with it (a detached one has), by the input's position.
        self.shape_changes: dict[int, str | None] = {}
        self.set_inputs: dict[int, str | None] = {}  # by `set_`: by which node first
        self.inputs: set[int] = set()  # ids of the traced inputs
        # What the caller sees once the forward has run: a backward's writes would come too late.
        self.seen_outside: set[storage.TracedStorage] = set()
        # Tensors that were written to in ways that no gradient can be told of, why not, and by
        # which nodes.
        self.written_without_gradients: list[tuple[FakeTensor, str, str | None]] = []
        self.views_at_once = 0  # calls of operators that take several views
        self.eager_cost = 0  # of the calls so far, were eager to make them
        self._own_copies: dict[Node, Node] = {}
        self._constant_of: dict[int, tuple[Tensor, FakeTensor]] = {}

    # --- dispatch ---------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if has_other_types(types):
            return NotImplemented
        info = op_info(func)
        kind = info.kind
        kwargs = kwargs or {}
        if args and type(args[0]) in _NUMBERS:
            args = self._with_number_as_tensor(func, args, kwargs)
        if self.policy is not None and is_asked(kind) and not self.in_backward:
            return selected(self, func, args, kwargs)
        if func in _CHECKS:
            return self._check(func, args, kwargs)
        if kind is OpKind.QUERY:
            return propagate(func, args, kwargs)
        self.eager_cost += eager_cost(func, kind, args)
        if kind is OpKind.PURE:
            return self._pure(func, args, kwargs)
        if kind is OpKind.VIEW:
            return views.take_view(self, func, args, kwargs)
        if kind is OpKind.ALIAS:
            return self._alias(func, args[0])
        if kind is OpKind.COMPOSITE:
            decomposition = self.decompositions.get(func)
            with self:
                if decomposition is not None:
                    result = decomposition(*args, **kwargs)
                    if result is not NotImplemented:
                        return self._own(result)
                return func.decompose(*args, **kwargs)
        if kind is OpKind.COPY:
            return mutations.copy(self, *args, **kwargs)
        if kind is OpKind.FILL:
            return mutations.fill(self, func, args)
        if kind is OpKind.WRITE:
            return mutations.write(self, func, info, args, kwargs)
        if kind is OpKind.RANDOM:
            return self._random(func, args, kwargs)
        if kind is OpKind.CHECK:
            node = self._call(func, self.nodes(args), self.nodes_of(kwargs), None)
            CHECKED.tell(node, True)
            return None
        if kind is OpKind.METADATA:
            return metadata_mutations.change_metadata(self, info, func, args, kwargs)
        if func in (aten.resize_.default, aten.resize_as_.default):
            return metadata_mutations.resize(self, func, args, kwargs)
        if func in _SETS:
            return metadata_mutations.set_(self, func, *args, **kwargs)
        raise storage.TraceError(
            f"{func} changes what a tensor is in place; this cannot be compiled"
        )

    def _with_number_as_tensor(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...]:
        """The arguments of an operator of one tensor, which PyTorch gives as a number if it made
        the tensor of one: a transform converts the 2 of `x * 2` for an x of no dimensions."""
        number, *rest = args
        operand = func._schema.arguments[0].type
        others = node_values.flatten([*rest, *kwargs.values()])
        if not isinstance(operand, torch.TensorType) or any(isinstance(o, Tensor) for o in others):
            return args
        dtype = kwargs.get("dtype") if func is aten._to_copy.default else None
        return (self.literal(number, torch.device("cpu"), dtype), *rest)

    def literal(
        self, number: Any, device: torch.device, dtype: torch.dtype | None = None
    ) -> FakeTensor:
        """A number, which may be symbolic, as a tensor of no dimensions."""
        made_like = {"dtype": dtype or _NUMBERS[type(number)], "device": device}
        filled = self.emit(aten.full.default, ([], self.nodes(number)), made_like)
        literal: FakeTensor = self.fresh_results(filled)
        return literal

    def _decomposed(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the operator's decomposition gives; NotImplemented if it is left whole."""
        decomposition = self.decompositions.get(func)
        if decomposition is None:
            return NotImplemented
        cost = self.eager_cost
        with self:
            result = decomposition(*args, **kwargs)
        self.eager_cost = cost
        return result if result is NotImplemented else self._own(result)

    def _pure(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator that computes new values and nothing else."""
        if func in _STRIDED and dense_order(args[-2], args[-1]) is None:
            return views.strided_part(self, args, kwargs)
        if func is aten.cudnn_batch_norm_backward.default:
            # The forward was recorded as the native batch norm (see `mutations.py`).
            x, grad, weight, mean, var, save_mean, save_invstd, eps, _ = args
            func = aten.native_batch_norm_backward.default
            masks = [True, True, True]
            args = (grad, x, weight, mean, var, save_mean, save_invstd, True, eps, masks)
            kwargs = {}
        if func is aten.masked_fill.Scalar and fills_in_place(args[0]):
            x, mask, number = args
            with self:
                filled = self.traced(torch.where(mask, number, x))
            return storage.fresh(shaped_like(self, storage.read(self, filled), self.traced(x)))
        result = self._decomposed(func, args, kwargs)
        if result is not NotImplemented:
            return result
        if func is aten.native_batch_norm_backward.default and args[7]:
            # In training it takes the batch's own statistics: do not keep the running ones.
            args = (*args[:3], None, None, *args[5:])
        return self.fresh_results(self.emit(func, self.nodes(args), self.nodes_of(kwargs)))

    def _alias(self, func: OpOverload, value: Any) -> Any:
        """detach, alias and their like: the same elements of the same storage."""
        if func is aten.lift_fresh.default and _is_number(value):
            placed = {"dtype": value.dtype, "device": value.device}
            return self.fresh_results(self.emit(aten.full.default, ([], value.item()), placed))
        tensor = self.traced(value)
        if func is aten.detach_.default:
            return tensor
        track = storage.track_of(tensor)
        chain = track.chain
        if func is aten.alias.default:
            grad_mode = torch.is_grad_enabled()
            ends = tensor.requires_grad and not grad_mode  # the gradient, here
            if ends or not all(s.grad_mode for s in chain):
                chain = (*chain, ViewStep(func, (), grad_mode=grad_mode))
        return storage.wrap(storage.read(self, tensor), track.storage, chain, like=tensor)

    def _random(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A sampler, of the default generator."""
        if func in _PLAIN_SAMPLERS and kwargs.get("generator") is None:
            func, kwargs = _PLAIN_SAMPLERS[func], self.without_generator(func, kwargs)
        result = self._decomposed(func, args, kwargs)
        if result is not NotImplemented:
            return result
        kwargs = self.without_generator(func, kwargs)
        result = self.emit(func, self.nodes(args), self.nodes_of(kwargs), merge=False)
        return self.fresh_results(result)

    def _check(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An assertion, which stays in the graph. What C++ asks of data it checks (captured
        programs ask otherwise): taken for true, it is an assertion too."""
        message = ""
        if func in (aten.equal.default, aten.allclose.default):
            a, b = args[0], args[1]
            if func is aten.equal.default and not node_values.same_sizes(
                tuple(a.shape), tuple(b.shape)
            ):
                return False
            message = f"{func}, which an operator checks, is false of the data"
            with self:
                near = a == b if func is aten.equal.default else torch.isclose(*args, **kwargs)
                args = (near.all(),)
        elif len(args) > 1:
            message = args[1]
        condition = storage.read(self, self.traced(args[0]))
        self._call(aten._assert_async.msg, (condition, message), {}, None).meta["checked"] = True
        return None if not func._schema.returns else True

    def fresh_results(self, result: Any) -> Any:
        """Traced tensors with storages of their own for recorded values."""
        if type(result) is Node:
            value = result.meta["val"]
            return (
                storage.fresh(result) if isinstance(value, FakeTensor) else value
            )  # a symbolic number
        if isinstance(result, (list, tuple)):
            return type(result)(self.fresh_results(r) for r in result)
        return result

    def _own(self, result: Any) -> Any:
        """A decomposition may return an argument, or views of one: the operator returns none."""
        if isinstance(result, Tensor):
            return storage.fresh(storage.read(self, self.traced(result)))
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
        held = self.constants[attribute] = value.detach().resolve_conj().resolve_neg()
        node = self.graph.get_attr(attribute)
        node.meta["val"] = from_real(held)
        tensor = storage.wrap(node, storage.TracedStorage(node, constant=name))
        self._constant_of[id(value)] = (value, tensor)
        return tensor

    def nodes(self, value: Any) -> Any:
        """Arguments as the graph takes them: nodes for tensors and symbolic sizes."""
        if type(value) is FakeTensor:
            return storage.read(self, value)
        if value is None or type(value) in (int, float, bool, str, torch.dtype, torch.device):
            return value
        if type(value) is tuple or isinstance(value, (list, tuple)):
            return (
                [self.nodes(v) for v in value]
                if type(value) is not tuple
                else tuple(self.nodes(v) for v in value)
            )
        if isinstance(value, Tensor):
            return storage.read(self, self.constant(value))
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.sizes.node(value)
        return value

    def nodes_of(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Keyword arguments as the graph takes them."""
        return {k: self.nodes(v) for k, v in kwargs.items()} if kwargs else kwargs

    def without_generator(self, func: OpOverload, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments without `generator`; an explicit one is a TraceError."""
        if "generator" not in kwargs:
            return kwargs
        if kwargs["generator"] is not None:
            raise storage.TraceError(f"{func} with an explicit generator cannot be compiled")
        return {k: v for k, v in kwargs.items() if k != "generator"}

    def node_op(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        """A functional or view operator on nodes, decomposed if the table says so."""
        decomposition = self.decompositions.get(func)
        if decomposition is not None:
            with self:
                result = decomposition(
                    *node_values.wrapped(args), **node_values.wrapped_dict(kwargs)
                )
            if result is not NotImplemented:
                return storage.read(self, self.traced(result))
        result = self.emit(func, args, kwargs)
        assert type(result) is Node
        return result

    # --- views ------------------------------------------------------------------------------------

    def apply_view(self, step: ViewStep, base: Node) -> Node:
        """The node for a view of `base`."""
        if step.op is aten.as_strided.default:
            base = self.with_own_memory(base)
        if step.op is aten.view.dtype and not _seen_as(base.meta["val"], step.args[0]):
            kwargs = {"memory_format": torch.contiguous_format}
            base = self.node_op(aten.clone.default, (base,), kwargs)
        if step.op is aten.alias.default:
            return base
        physical = views.PHYSICAL.get(step.op)
        if physical is not None:
            return as_it_lay(
                self, views.of_each_element_once(self, physical, base), base.meta["val"]
            )
        return self.node_op(step.op, (base, *step.args), dict(step.kwargs))

    def with_own_memory(self, node: Node) -> Node:
        """`node`, or a copy of it: as_strided counts from the beginning of the memory, which must
        be the beginning of the tensor."""
        root = node
        while node_values.views_memory(root):
            root = root.args[0]  # type: ignore[assignment]
        return self.beginning_its_memory(node) if root is node else self._copied(node)

    def beginning_its_memory(self, node: Node) -> Node:
        """`node`, or a copy of it if it may not begin where its memory does."""
        return node if node_values.begins_its_memory(node) else self._copied(node)

    def _copied(self, node: Node) -> Node:
        if node not in self._own_copies:
            self._own_copies[node] = self.emit_clone(node)
        return self._own_copies[node]


def _is_number(value: Tensor) -> bool:
    """Whether this is `torch.tensor(number)`, which nobody but the traced program holds: kernels of
    any device compute with the number."""
    real = type(value) is not FakeTensor
    return real and value.dim() == 0 and value.device.type == "cpu" and not value.is_complex()
