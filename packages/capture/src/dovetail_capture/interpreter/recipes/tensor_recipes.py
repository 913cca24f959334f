"""Recipes of what the graph gives: tensors, leaves, and numbers over sizes."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from dovetail_guards.expr import Expr
from dovetail_guards.shape_env import DataDependentError
from dovetail_guards.sym_node import expr_of
from dovetail_prims.wrappers import is_wrapper_type
from torch.fx import Node
from torch.utils import _pytree as pytree

from dovetail_capture import recipe as r
from dovetail_capture.interpreter.graph.fake_runs import as_inference
from dovetail_capture.interpreter.signals import CannotRebuild, InnerTensor
from dovetail_capture.interpreter.values.computed_sources import as_class
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.recipes.rebuilder import Rebuilder
    from dovetail_capture.interpreter.session.session import Session


def tensor_recipe(rebuilder: Rebuilder, item: TensorValue) -> r.Recipe:
    """The recipe of a tensor that the graph gives."""
    if not rebuilder.vm.session.recorder.owns(item.node):
        raise InnerTensor
    if item.cls is torch.nn.Parameter:
        return _leaf(rebuilder, item, torch.nn.Parameter)
    for hooked in rebuilder.vm.session.effects.hooks:
        if hooked.tensor is item:
            hooked.refuse(hooked.kind)
    if id(item) in rebuilder.vm.session.effects.made_leaves:
        return _leaf(rebuilder, item, torch.Tensor.requires_grad_)
    position = rebuilder.positions.get(item.node)
    if position is None:
        position = rebuilder.positions[item.node] = len(rebuilder.outputs)
        rebuilder.outputs.append(item.node)
    given: r.Recipe = r.GraphOutput(position)
    if item.cls is not torch.Tensor and not is_wrapper_type(item.cls):
        given = r.CallFunction(r.Const(as_class), (given, r.Const(item.cls)))
    if item.inference and not torch.is_inference_mode_enabled():
        if item.cls is not torch.Tensor:
            raise CannotRebuild(f"an inference tensor of class {item.cls.__name__}")
        given = r.CallFunction(r.Const(as_inference), (given,))
    new = rebuilder.remember(item, given)
    for name, value in item.attributes.items():
        if name not in item.rebuilt:
            rebuilder.effects.append(r.SetAttr(new, name, rebuilder.recipe(value)))
    return new


def _leaf(rebuilder: Rebuilder, item: TensorValue, make: Callable[..., Any]) -> r.Recipe:
    """A parameter made in the frame (a copy of one), or what `requires_grad_()` made a leaf: of
    what the graph gives, a leaf is made. What has been computed from it would not know that
    leaf."""
    wanted = item.fake.requires_grad
    if wanted:
        nodes = [item.node, *rebuilder.vm.session.effects.left_nodes.get(id(item), ())]
        for user in (user for node in nodes for user in node.users):
            made = pytree.tree_leaves(user.meta.get("val"))
            if any(_needs_gradient(part) and part is not item.fake for part in made):
                born = rebuilder.vm.session.effects.made_leaves[id(item)]
                raise CannotRebuild("a leaf made here, and what is computed with it", born)
    recorder = rebuilder.vm.session.recorder
    node = recorder.graph.call_method("detach", (item.node,))
    with recorder.fake_mode:
        node.meta["val"] = item.fake.detach()
    rebuilder.outputs.append(node)
    output = r.GraphOutput(len(rebuilder.outputs) - 1)
    new = rebuilder.remember(item, r.CallFunction(r.Const(make), (output, r.Const(wanted))))
    for name, value in item.attributes.items():
        rebuilder.effects.append(r.SetAttr(new, name, rebuilder.recipe(value)))
    return new


def number_recipe(rebuilder: Rebuilder, item: SymbolicNumber) -> r.Recipe:
    """A number over sizes is computed by the graph (a truth value is decided here)."""
    if isinstance(item.value, torch.SymBool) and item.value.node.hint is not None:
        with contextlib.suppress(DataDependentError):  # of a size that is marked unbacked
            return r.Const(item.concrete())
    recorder = rebuilder.vm.session.recorder
    if isinstance(item.value, torch.SymInt) and not rebuilder.vm.session.exports:
        beside = _sum(rebuilder.vm.session, expr_of(item.value))
        if beside is not None:
            return beside
    try:
        node = recorder.sizes.node(item.value)
    except NotImplementedError as error:
        raise CannotRebuild(str(error)) from None
    if not isinstance(node, Node):
        return r.Const(node)
    position = rebuilder.positions.get(node)
    if position is None:
        position = rebuilder.positions[node] = len(rebuilder.outputs)
        rebuilder.outputs.append(node)
        recorder.operations += 1
    return r.GraphOutput(position)


def _sum(session: Session, expr: Expr) -> r.Recipe | None:
    """A sum of ints that the frame reads, such as a counter's next number: Python computes it
    beside the graph. None for any other number."""
    total = None
    for monomial, factor in expr.terms:
        part: r.Recipe = r.Const(factor)
        if monomial:
            ((atom, power), *others) = monomial
            source = session.shapes.env.sources.get(atom.name)
            if others or power != 1 or atom.kind != "sym" or source not in session.inputs.numbers:
                return None
            part = r.Fetch(source)
            if factor != 1:
                part = r.CallFunction(r.Const(operator.mul), (part, r.Const(factor)))
        total = part if total is None else r.CallFunction(r.Const(operator.add), (total, part))
    return total


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
