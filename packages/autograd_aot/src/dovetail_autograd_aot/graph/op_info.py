"""What the tracer must know of an operator, read off its schema once."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from dovetail_prims.conditionals import graphs_of
from dovetail_prims.fake.fake_mode import draws
from dovetail_prims.graphs.functional_forms import functional_form
from dovetail_prims.node_facts import IN_BACKWARD
from torch._ops import OpOverload
from torch.fx import Node

aten = torch.ops.aten

# What changes a tensor's shape in place, whatever its strides are.
CHANGES_OF_SHAPE = frozenset(
    {
        aten.t_.default, aten.transpose_.default, aten.swapaxes_.default, aten.swapdims_.default,
        aten.squeeze_.default, aten.squeeze_.dim, aten.squeeze_.dims, aten.unsqueeze_.default,
        aten.detach_.default,
    }
)  # fmt: skip


class OpKind(Enum):
    """How the tracer treats an operator."""

    QUERY = "query"  # asks about metadata: nothing is recorded
    ALIAS = "alias"  # a new tensor object on the same data: detach, alias
    VIEW = "view"
    METADATA = "metadata"  # an in-place view: t_, squeeze_ ...
    WRITE = "write"  # writes to arguments
    COPY = "copy"  # copy_
    FILL = "fill"  # zero_, fill_ with a number
    COMPOSITE = "composite"  # C++ decomposes it
    PURE = "pure"
    RANDOM = "random"  # draws random numbers: never merged, moved or dropped
    CHECK = "check"  # gives nothing and writes nothing: it is there for what it raises or does
    REFUSED = "refused"  # set_, resize_: change what a tensor is


@dataclass(frozen=True)
class OpInfo:
    """`written` are the positions of the arguments an operator writes to; `functional` the
    operator that returns the new values instead (after its own results for those that are not
    returned)."""

    kind: OpKind
    written: tuple[int, ...] = ()
    functional: OpOverload | None = None
    argument_names: tuple[str, ...] = ()


_QUERY_NAMES = (
    "aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::sym_storage_offset",
    "aten::size", "aten::stride", "aten::numel", "aten::storage_offset", "aten::dim",
    "aten::is_contiguous", "aten::sym_is_contiguous", "aten::is_strides_like_format",
    "aten::is_non_overlapping_and_dense", "prim::device", "prim::layout", "aten::is_same_size",
    "aten::_has_same_storage_numel", "aten::_version", "aten::_nested_tensor_size",
)  # fmt: skip
_ALIAS = (
    "aten::detach", "aten::alias", "aten::lift_fresh", "aten::lift", "aten::_conj_physical_noop",
    "aten::detach_",
)  # fmt: skip
_REFUSED = (
    "aten::set_", "aten::resize_", "aten::resize_as_", "aten::_resize_output_", "aten::swap_",
    "aten::_set_data",
)  # fmt: skip
# Views by what they are, of which autograd does not know.
_UNSAFE_VIEWS = ("aten::unsafe_split", "aten::unsafe_split_with_sizes")
# In-place samplers whose functional forms have other names.
_FUNCTIONAL_NAME = {
    "normal_": "normal_functional",
    "rrelu_with_noise_": "rrelu_with_noise_functional",
}

# The costs of eager's calls, by kind, and of what does more than others before it begins.
_COSTS: dict[Any, int] = {
    **dict.fromkeys(OpKind, 1), OpKind.ALIAS: 0, OpKind.COMPOSITE: 0, OpKind.WRITE: 3,
    aten.gelu.default: 7, aten.index.Tensor: 4, aten.mse_loss.default: 5,
    aten.constant_pad_nd.default: 4,
}  # fmt: skip

_OPTIONS = {"dtype", "layout", "device", "pin_memory"}


@functools.cache
def op_info(op: OpOverload) -> OpInfo:
    """The facts about `op`."""
    schema = op._schema
    name = schema.name
    names = tuple(a.name for a in schema.arguments)
    if name in _QUERY_NAMES:
        return OpInfo(OpKind.QUERY)
    if name in _ALIAS:
        return OpInfo(OpKind.ALIAS)
    if name in _REFUSED:
        return OpInfo(OpKind.REFUSED)
    if name == "aten::copy_":
        return OpInfo(OpKind.COPY, (0,), argument_names=names)
    if op in (aten.zero_.default, aten.fill_.Scalar):
        return OpInfo(OpKind.FILL, (0,), argument_names=names)
    if torch.Tag.inplace_view in op.tags or name == "aten::as_strided_":
        return OpInfo(OpKind.METADATA, (0,), _functional_form(op), names)
    if name in ("aten::native_batch_norm", "aten::cudnn_batch_norm"):
        # Their schemas hide that training updates the running statistics.
        return OpInfo(OpKind.WRITE, (3, 4), aten._native_batch_norm_legit_functional.default, names)
    if schema.is_mutable:
        written = tuple(
            i
            for i, a in enumerate(schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        )
        if written:
            return OpInfo(OpKind.WRITE, written, _functional_form(op), names)
    if _is_composite(op):
        return OpInfo(OpKind.COMPOSITE)
    if not schema.returns and any("Tensor" in _plain(a) for a in schema.arguments):
        return OpInfo(OpKind.CHECK, argument_names=names)
    if any(r.alias_info is not None for r in schema.returns) or name in _UNSAFE_VIEWS:
        return OpInfo(OpKind.VIEW, argument_names=names)
    # (Attention's backward is tagged as random too, but takes its seed as an argument.)
    if torch.Tag.nondeterministic_seeded in op.tags and not name.endswith("_backward"):
        return OpInfo(OpKind.RANDOM, argument_names=names)
    return OpInfo(OpKind.PURE, argument_names=names)


def eager_cost(op: OpOverload, kind: OpKind, args: tuple[Any, ...]) -> int:
    """What eager's call takes on a CPU, if it has next to nothing to compute, in calls of a simple
    operator: of a number it makes a tensor first."""
    numbers = kind is OpKind.PURE and op._overloadname in ("Tensor", "Scalar")
    of_number = numbers and not isinstance(args[-1], torch.Tensor)
    return _COSTS.get(op, _COSTS[kind]) + (2 if of_number else 0)


def is_custom(target: object) -> bool:
    """Whether a node's target is an operator that a user registered."""
    return isinstance(target, OpOverload) and target.namespace not in ("aten", "prims", "torch_nn")


def draws_in_backward(node: Node) -> bool:
    """Whether a custom function's backward draws random numbers by this node: it belongs to the
    backward, though it may depend on no gradient."""
    return IN_BACKWARD.holds(node) and draws_random_numbers(node)


def draws_random_numbers(node: Node) -> bool:
    """Whether a node advances the random generator: one of a random operator, other than
    attention or dropout that drops nothing, or one that holds a graph with one."""
    target = node.target
    graphs = graphs_of(node)
    if graphs:
        return any(draws_random_numbers(n) for graph in graphs for n in graph.graph.nodes)
    if not isinstance(target, OpOverload):
        return False
    if op_info(target).kind is not OpKind.RANDOM:
        return False
    return draws(target, node.args, node.kwargs)


def _is_composite(op: OpOverload) -> bool:
    """Whether C++ makes an operator of others. (Some have a meta kernel besides.)"""
    key = torch._C.DispatchKey
    return op.has_kernel_for_dispatch_key(
        key.CompositeImplicitAutograd
    ) and not op.has_kernel_for_dispatch_key(key.CPU)


def _functional_form(op: OpOverload) -> OpOverload | None:
    """The operator that computes what `op` writes, without writing."""
    if is_custom(op):
        return functional_form(op, frozenset())
    namespace, base = op._schema.name.split("::")
    library = getattr(torch.ops, namespace)
    wanted = [a for a in op._schema.arguments if not (a.is_out or a.name == "out")]
    is_out = len(wanted) < len(op._schema.arguments)
    candidates: list[str] = [base + "_functional"]
    if base in _FUNCTIONAL_NAME:
        candidates.insert(0, _FUNCTIONAL_NAME[base])
    if base.endswith("_") and not base.endswith("__"):
        candidates.append(base[:-1])
    candidates.append(base)
    if base.startswith("__i"):
        candidates.append("__" + base[3:])
    for candidate in candidates:
        packet = getattr(library, candidate, None)
        if packet is None:
            continue
        overloads = packet.overloads()
        for overload in [op._overloadname, *(o for o in overloads if o != op._overloadname)]:
            if overload not in overloads:
                continue
            form = getattr(packet, overload)
            if form._schema.is_mutable:
                continue
            # (a factory with `out` has no dtype or device but the tensor's)
            extra = _OPTIONS - {a.name for a in wanted} if is_out else set()
            arguments = [a for a in form._schema.arguments if a.name not in extra]
            if [(a.name, _plain(a)) for a in arguments] == [(a.name, _plain(a)) for a in wanted]:
                return form  # type: ignore[no-any-return]
    return None


def _plain(argument: torch._C.Argument) -> str:
    return str(argument.type)


def default_arguments(
    op: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[list[object], dict[str, object]]:
    """All positional arguments, with defaults filled in (the dispatcher drops an argument equal
    to its default, and the functional form's default may differ), and the keyword-only ones."""
    filled: list[object] = []
    rest: dict[str, object] = {}
    for i, argument in enumerate(op._schema.arguments):
        if argument.kwarg_only:
            if argument.name in kwargs:
                rest[argument.name] = kwargs[argument.name]
        elif i < len(args):
            filled.append(args[i])
        elif argument.name in kwargs:
            filled.append(kwargs[argument.name])
        else:
            filled.append(argument.default_value)
    return filled, rest
