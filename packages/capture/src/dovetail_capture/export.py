"""`export`: one whole graph of a function or module, or an error that says where and why not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType, MethodType
from typing import Any

import torch
from dovetail_guards.clauses import TensorIs
from dovetail_guards.evaluate import MISSING, FrameView, evaluate
from dovetail_guards.guard_set import GuardSet
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from dovetail_capture import recipe as r
from dovetail_capture.captured_frame import CapturedFrame
from dovetail_capture.errors import CaptureError, GraphBreakError, place_of
from dovetail_capture.interpreter.inputs.input_relations import is_of_keywords
from dovetail_capture.options import CaptureOptions
from dovetail_capture.replacement.replacement_code import build_replacement

_FRESH = (r.NewObject, r.NewEmpty, r.NewCell, r.NewFunction)


@dataclass(frozen=True)
class ExportedGraph:
    """A function as one graph.

    `gm` takes the flattened inputs (tensors and others alike) and returns the flattened outputs;
    parameters, buffers and other tensors it uses are its attributes. `guards` is what the graph
    relies on, in terms of the exported function's arguments.
    """

    gm: GraphModule
    guards: GuardSet
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    example_leaves: tuple[Any, ...]
    input_clauses: tuple[TensorIs | None, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph on inputs like those of the export."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self.in_spec:
            raise ValueError(f"inputs have structure {spec}, exported was {self.in_spec}")
        for place, (leaf, example) in enumerate(zip(leaves, self.example_leaves, strict=True)):
            _check_leaf(place, leaf, example, self.input_clauses[place])
        return pytree.tree_unflatten(list(self.gm(*leaves)), self.out_spec)

    def as_text(self) -> str:
        """Guards and graph."""
        return f"{self.guards.as_text()}\n{self.gm.code}"


def _check_leaf(place: int, leaf: Any, example: Any, clause: TensorIs | None) -> None:
    if not isinstance(example, torch.Tensor):
        if type(leaf) is not type(example) or leaf != example:
            raise ValueError(
                f"input leaf {place} is {leaf!r}; the graph was exported for the constant "
                f"{example!r}: export again for this value"
            )
        return
    if not isinstance(leaf, torch.Tensor):
        raise ValueError(f"input leaf {place} must be a tensor, got {type(leaf).__qualname__}")
    if clause is None:
        return
    same_sizes = len(clause.sizes) == leaf.dim() and all(
        want is None or want == have for want, have in zip(clause.sizes, leaf.shape, strict=True)
    )
    if not same_sizes or leaf.dtype != clause.dtype or leaf.device != clause.device:
        raise ValueError(
            f"input leaf {place} is {leaf.dtype} {tuple(leaf.shape)} on {leaf.device}; the graph "
            f"was exported for {clause.dtype} {clause.sizes} on {clause.device}"
        )


def export_graph(
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    capture: Callable[..., CapturedFrame],
    options: CaptureOptions,
) -> ExportedGraph:
    """Capture `target(*args, **kwargs)` as one graph; raises `CaptureError` when it is not one."""
    func, raw = _frame_of(target, args, kwargs)
    code = func.__code__
    with torch.random.fork_rng(devices=[]):
        frame = capture(code, func, raw, options=replace(options, fullgraph=True, exports=True))
    if frame.break_ is not None:
        raise GraphBreakError(frame.break_)
    if frame.before.draws:
        raise CaptureError(
            f"cannot export {place_of(func.__code__)}: it draws random numbers with Python's "
            "`random`. Take them as arguments, or draw with torch"
        )
    if frame.before.settings:
        raise CaptureError(
            f"cannot export {place_of(func.__code__)}: it changes what torch is set to "
            f"({frame.before.settings[0].setting.name}). Do that where the exported graph is called"
        )
    for effect in frame.after.effects:
        if not _writes_what_is_there(effect, FrameView(raw, func)):
            _refuse_outside_effect(effect, func)
    leaves, in_spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    result, outputs = _result_with_marks(frame, func, raw)
    out_leaves, out_spec = pytree.tree_flatten(result)
    _refuse_opaque_results(out_leaves, func)
    names = _tensor_names(target)
    gm = _assemble(frame, leaves, out_leaves, outputs, names)
    clauses = {c.source: c for c in frame.guards.clauses if isinstance(c, TensorIs)}
    by_leaf: dict[int, TensorIs] = {}
    for graph_input in frame.inputs:
        if graph_input.source in clauses:
            by_leaf[id(graph_input.example)] = clauses[graph_input.source]
    return ExportedGraph(
        gm,
        frame.all_guards(frame.assumed_since()),
        in_spec,
        out_spec,
        tuple(leaves),
        tuple(by_leaf.get(id(leaf)) for leaf in leaves),
    )


def _frame_of(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[FunctionType, tuple[Any, ...]]:
    """The function whose frame is captured, and the raw arguments of that frame."""
    function = target
    if isinstance(target, torch.nn.Module):
        hooks = (target._forward_hooks, target._forward_pre_hooks)
        if any(hooks):
            raise CaptureError(
                f"{type(target).__qualname__} has forward hooks of its own, which export would "
                "leave out: put the module inside another one and export that"
            )
        function = target.forward
    if not isinstance(function, (FunctionType, MethodType)):
        function = getattr(function, "__call__", function)  # noqa: B004
    bound_self: tuple[Any, ...] = ()
    if isinstance(function, MethodType):
        bound_self, function = (function.__self__,), function.__func__
    if not isinstance(function, FunctionType):
        raise CaptureError(f"cannot export {target!r}: it is not a Python function or module")
    signature = inspect.signature(function, follow_wrapped=False)
    bound = signature.bind(*bound_self, *args, **kwargs)
    bound.apply_defaults()
    kinds = inspect.Parameter
    code = function.__code__
    values = {name: bound.arguments[name] for name in signature.parameters}
    order = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    for kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD):
        order += [name for name, p in signature.parameters.items() if p.kind is kind]
    return function, tuple(values[name] for name in order)


def _writes_what_is_there(effect: r.Effect, view: FrameView) -> bool:
    """Does it leave an attribute as it was (set and put back within the call)?"""
    if not isinstance(effect, r.SetAttr) or not isinstance(effect.target, r.Fetch):
        return False
    target = evaluate(effect.target.source, view)
    if isinstance(effect.value, r.Fetch):
        value = evaluate(effect.value.source, view)
    elif isinstance(effect.value, r.Const):
        value = effect.value.value
    else:
        return False
    return getattr(target, effect.name, MISSING) is value


def _label(recipe: r.Recipe) -> str:
    return str(recipe.source) if isinstance(recipe, r.Fetch) else type(recipe).__name__


def _refuse_outside_effect(effect: r.Effect, func: FunctionType) -> None:
    """Only effects on objects that the frame itself made belong to its result."""
    if isinstance(effect, (r.SetAttr, r.DelAttr, r.ReplaceContents)):
        if isinstance(effect.target, _FRESH) or _is_own_kwargs(effect.target, func):
            return
        what = getattr(effect, "name", None)
        thing = f"the attribute {what!r}" if what else "the contents"
        problem = (
            f"it changes {thing} of an object that outlives the call ({_label(effect.target)})"
        )
    elif isinstance(effect, r.SetCell) and isinstance(effect.cell, _FRESH):
        return
    elif isinstance(effect, r.RunCall):
        problem = f"it makes a call for its side effect ({_label(effect.call.fn)})"
    else:
        problem = f"it has a side effect ({type(effect).__name__})"
    raise CaptureError(
        f"cannot export {place_of(func.__code__)}: {problem}. Return the new value instead, or "
        "use optimize, which replays side effects"
    )


def _is_own_kwargs(target: r.Recipe, func: FunctionType) -> bool:
    """Is it the frame's `**kwargs` dict, which every call makes anew?"""
    return isinstance(target, r.Fetch) and is_of_keywords(target.source, func.__code__)


class _Mark:
    """Stands for output `index` of the graph while the result is rebuilt once."""

    def __init__(self, index: int) -> None:
        self.index = index


def _result_with_marks(
    frame: CapturedFrame, func: FunctionType, raw: tuple[Any, ...]
) -> tuple[Any, list[Node]]:
    """The frame's result with marks in place of graph outputs, and the graph's output nodes."""
    outputs: list[Node] = []
    if frame.graph is not None:
        output = next(node for node in reversed(frame.graph.graph.nodes) if node.op == "output")
        outputs = list(output.args[0])
    code = build_replacement(frame, lambda *_: [_Mark(i) for i in range(len(outputs))]).code
    flat = code.replace(
        co_argcount=len(raw),
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
    )
    closure = func.__closure__ if code.co_freevars else None
    return FunctionType(flat, func.__globals__, func.__name__, None, closure)(*raw), outputs


_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)


def _refuse_opaque_results(leaves: Sequence[Any], func: FunctionType) -> None:
    for leaf in leaves:
        if not isinstance(leaf, (_Mark, torch.Tensor, *_PLAIN)):
            kind = type(leaf).__qualname__
            raise CaptureError(
                f"cannot export {place_of(func.__code__)}: its result holds a {kind}, which "
                "torch.utils._pytree cannot take apart. Register the class there, or return its "
                "tensors"
            )


def _tensor_names(target: Any) -> dict[int, str]:
    if not isinstance(target, torch.nn.Module):
        return {}
    names = [*target.named_buffers(remove_duplicate=False), *target.named_parameters()]
    return {id(tensor): name for name, tensor in names}


def _assemble(
    frame: CapturedFrame,
    leaves: Sequence[Any],
    out_leaves: Sequence[Any],
    outputs: Sequence[Node],
    names: Mapping[int, str],
) -> GraphModule:
    """A new graph: one placeholder per input leaf, attributes for all other tensors."""
    assembly = _Assembly(leaves, names)
    new = assembly.copied(frame)
    results = []
    for leaf in out_leaves:
        if isinstance(leaf, _Mark):
            results.append(new[outputs[leaf.index]])
        elif isinstance(leaf, torch.Tensor):
            results.append(assembly.node_of(leaf))
        else:
            results.append(leaf)
    assembly.graph.output(tuple(results))
    return GraphModule(assembly.attributes, assembly.graph)


class _Assembly:
    """The graph while it is put together."""

    def __init__(self, leaves: Sequence[Any], names: Mapping[int, str]) -> None:
        self.graph = Graph()
        self.names = names
        self.attributes: dict[str, Any] = {}
        placeholders = [self.graph.placeholder(f"arg{place}") for place in range(len(leaves))]
        self._of_object = {
            id(leaf): node
            for leaf, node in zip(leaves, placeholders, strict=True)
            if isinstance(leaf, torch.Tensor)
        }

    def node_of(self, tensor: torch.Tensor) -> Node:
        """The placeholder or attribute that holds a tensor known at capture."""
        found = self._of_object.get(id(tensor))
        if found is None:
            name = self.names.get(id(tensor), f"_tensor_{len(self.attributes)}")
            self.attributes[name] = tensor
            found = self._of_object[id(tensor)] = self.graph.create_node("get_attr", name)
        return found

    def copied(self, frame: CapturedFrame) -> dict[Node, Node]:
        """Copy the captured graph, if there is one: its nodes, and what they are here."""
        new: dict[Node, Node] = {}
        inputs = iter(frame.inputs)
        for node in () if frame.graph is None else frame.graph.graph.nodes:
            if node.op == "placeholder":
                example = next(inputs).example
                if not isinstance(example, torch.Tensor):
                    raise CaptureError(f"cannot export: graph input {node.name} is not a tensor")
                new[node] = self.node_of(example)
                new[node].meta.update(node.meta)
            elif node.op == "get_attr":
                new[node] = self._attribute(frame.graph, str(node.target))
            elif node.op != "output":
                new[node] = self.graph.node_copy(node, lambda old: new[old])
        return new

    def _attribute(self, module: Any, name: str) -> Node:
        value = module
        for part in name.split("."):
            value = getattr(value, part)
        if isinstance(value, GraphModule):  # one that a node chooses
            self.attributes[name] = value
            return self.graph.create_node("get_attr", name)
        if not isinstance(value, torch.Tensor):
            raise CaptureError(f"cannot export: {name} is not a tensor")
        return self.node_of(value)
