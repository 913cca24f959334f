"""What stands for a captured graph's inputs in its joint trace: placeholders, and the traced
tensors that the graph is run on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.node_facts import STATIC
from torch import Tensor
from torch.fx import Node

from dovetail_autograd_aot.graph.node_facts import WHOLE_STORAGE
from dovetail_autograd_aot.trace.input_storages import (
    NonLeaf,
    place_in,
    snapshot,
    static_inputs,
    storage_key,
    symbolic_values,
)
from dovetail_autograd_aot.trace.storage import TracedStorage, TraceError, wrap
from dovetail_autograd_aot.trace.version_counters import first_sharing, give_counter

if TYPE_CHECKING:
    from dovetail_autograd_aot.joint.joint_trace import JointTrace


def make_primals(trace: JointTrace) -> None:
    """Placeholders for all inputs, then a primal, a leaf and a history for each.

    Raises TraceError if there are more or fewer examples than inputs, or one that is lazily
    conjugated lies in memory that it shares.
    """
    _add_placeholders(trace)
    seen: dict[int, int] = {}
    bases: dict[int, TracedStorage] = {}
    for index in range(trace.num_examples, len(trace.examples)):
        bases[index] = TracedStorage(trace.placeholders[index], primal=index, shared=True)
        WHOLE_STORAGE.tell(trace.placeholders[index], True)
        wrap(trace.placeholders[index], bases[index])
    for index, (node, example) in enumerate(zip(trace.placeholders, trace.examples, strict=True)):
        if index in bases:
            trace.homes[index] = bases[index]
            _append(trace, bases[index].root, bases[index].root)
        elif not isinstance(example, Tensor):
            if isinstance(example, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                trace.tracer.sizes.bind(example, node)
            _append(trace, example, None)
        else:
            trace.tracer.sizes.bind_sizes(node, node.meta["val"])
            first = seen.setdefault(id(example), index)
            if first != index:  # the same tensor twice: the same traced tensor twice
                trace.homes[index] = trace.homes[first]
                _append(trace, trace.primals[first], None)
            else:
                base = trace.base_of.get(index)
                _make_primal(trace, index, node, example, None if base is None else bases[base])


def _add_placeholders(trace: JointTrace) -> None:
    """(Before the nodes that read their sizes.)"""
    names = [n.target for n in trace.gm.graph.nodes if n.op == "placeholder"]
    names += [name.replace(".", "_") for name in trace.lifted]
    names += [f"storage_{i}" for i in range(len(trace.storages))]
    if len(names) != len(trace.examples):
        raise TraceError(
            f"the graph has {len(names)} inputs, but {len(trace.examples)} examples were given"
        )
    symbols = symbolic_values(trace.gm)
    static = static_inputs(trace.gm, trace.examples[: trace.num_examples])
    for position, name in enumerate(names):
        node = trace.graph.placeholder(str(name))
        symbolic = symbols.get(position)
        if isinstance(trace.examples[position], Tensor):
            source = trace.examples[position] if symbolic is None else symbolic
            node.meta["val"] = snapshot(source)
            if position in static:
                STATIC.tell(node, True)
        else:
            if symbolic is not None:
                trace.examples[position] = symbolic
            node.meta["val"] = trace.examples[position]
        trace.placeholders.append(node)


def _append(trace: JointTrace, primal: Any, leaf: FakeTensor | None, grad_fn: Any = None) -> None:
    trace.primals.append(primal)
    trace.leaves.append(leaf)
    trace.grad_fns.append(grad_fn)


def _make_primal(
    trace: JointTrace, index: int, node: Node, example: Tensor, shared: TracedStorage | None
) -> None:
    if shared is None:
        storage = TracedStorage(node, primal=index)
        storage.lazy = example.is_conj(), example.is_neg()
    elif example.is_conj() or example.is_neg():
        raise TraceError("a lazily conjugated or negated input that shares memory: clone it")
    else:
        storage = shared
        node = shared.node
        trace.chains[index] = place_in(node.meta["val"], example)
        for step in trace.chains[index]:
            node = trace.tracer.apply_view(step, node)
    trace.homes[index] = storage
    leaf = wrap(node, storage, trace.chains.get(index, ()))
    primal = leaf
    if example.requires_grad:
        leaf.requires_grad_()
        if not example.is_leaf:
            with torch.enable_grad():
                primal = NonLeaf.apply(leaf, node, storage, trace.chains.get(index, ()))
            if shared is None:
                storage.root = primal
    if isinstance(example, torch.nn.Parameter):
        leaf._is_param = True
    _append(trace, primal, leaf, primal.grad_fn)
    trace.tracer.inputs.add(id(primal))
    if not primal.is_inference():
        _count_as_given(trace, index, primal)
        trace.versions[index] = primal._version


def _count_as_given(trace: JointTrace, index: int, primal: FakeTensor) -> None:
    """Let a primal share the version counter that its example does with those before it."""
    before = [i for i in trace.in_storage[storage_key(trace.examples[index])] if i < index]
    known = [i for i in before if i in trace.versions]
    first = first_sharing(index, known, trace.examples)
    trace.counter_of[index] = trace.counter_of.get(first, index)
    if first != index:
        give_counter(primal, trace.primals[first])


def look_at_grown_storages(trace: JointTrace) -> None:
    """Where inputs lie in storages that the graph gave more memory."""
    for index, chain in trace.chains.items():
        grown = trace.primals[trace.base_of[index]]._storage.grown
        trace.chains[index] = (*reversed(grown), *chain)
