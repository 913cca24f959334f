"""`torch.vmap` and torch.func's transforms: one node, whose function was captured as well.

The transformed function is interpreted on tensors as it sees them (for `vmap`: without the mapped
dimension) and recorded into a graph of its own. The node calls the real transform of that graph.
Tensors that the function takes from around it become further arguments of the node.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_guards.torch_state import READERS
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.symbolic.symbolic_forms import symbolic_form
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from dovetail_capture.interpreter.graph.graph_values import NotAGraphArgument
from dovetail_capture.interpreter.library.torch_functions import inner_graphs
from dovetail_capture.interpreter.library.torch_functions.allowed_calls import put_together
from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Interpreter, Kwargs
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value, boolean
from dovetail_capture.interpreter.values.functions import TransformValue
from dovetail_capture.interpreter.values.tensors import TensorValue

_TRANSFORMS: tuple[Any, ...] = (
    torch.vmap, torch.func.vmap, torch.func.grad, torch.func.grad_and_value, torch.func.jacrev,
    torch.func.jacfwd, torch.func.hessian,
)  # fmt: skip


_HOW: dict[Any, str] = {
    torch.vmap: "vmap", torch.func.vmap: "vmap", torch.func.grad: "reverse",
    torch.func.grad_and_value: "reverse", torch.func.jacrev: "reverse",
    torch.func.jacfwd: "forward", torch.func.hessian: "forward",
}  # fmt: skip


def _options(vm: Interpreter, transform: Any, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    bound = inspect.signature(transform).bind(*args, **kwargs)
    options = {}
    for name, value in list(bound.arguments.items())[1:]:
        options[name], tensors = vm.as_python(value), list[TensorValue]()
        if options[name] is UNKNOWN and name == "in_dims":
            options[name] = inner_graphs.template_of(vm, value, tensors)
        if options[name] is UNKNOWN or tensors:
            raise GraphBreakSignal(f"{transform.__name__} with {name}={value.describe()}")
    return options


def _nothing(*args: Any) -> None:
    """A function to be transformed, and never called."""


def transform_of(transform: Any) -> Handler:
    """`transform(function, ...)`."""

    def handler(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if not args or (isinstance(args[0], Constant) and not callable(args[0].value)):
            return PASS
        options = _options(vm, transform, args, kwargs)
        try:
            transform(_nothing, **options)
        except ValueError as error:  # an option that is none, told before any call
            vm.raise_real(error)
        return TransformValue(call_transformed, transform, args[0], options)

    return handler


def _mapped_dimensions(transform: Any, options: dict[str, Any], template: Any) -> list[int | None]:
    """For each tensor of the arguments, the dimension that `vmap` takes away."""
    args, kwargs = template
    if transform not in (torch.vmap, torch.func.vmap):
        return [None] * inner_graphs.count_slots(template)
    in_dims = options.get("in_dims", 0)
    if isinstance(in_dims, int):
        in_dims = (in_dims,) * len(args)
    return _dimensions_of(tuple(in_dims), tuple(args)) + [0] * inner_graphs.count_slots(kwargs)


def _dimensions_of(dims: Any, template: Any) -> list[int | None]:
    """`in_dims` for each tensor: a number stands for all tensors of what it is given for."""
    if dims is None or isinstance(dims, int):
        return [dims] * inner_graphs.count_slots(template)
    parts: list[tuple[Any, Any]] | None = None
    if (
        isinstance(dims, inner_graphs.Parts)
        and isinstance(template, inner_graphs.Parts)
        and dims.cls is template.cls
    ):
        return _dimensions_of(dims.children, template.children)
    if isinstance(dims, (tuple, list)) and type(template) is type(dims):
        parts = list(zip(dims, template, strict=False)) if len(dims) == len(template) else None
    elif isinstance(dims, dict) and isinstance(template, dict) and dims.keys() == template.keys():
        parts = [(dims[key], item) for key, item in template.items()]
    if parts is None:
        raise GraphBreakSignal("vmap with in_dims that do not fit its arguments")
    return [dim for part in parts for dim in _dimensions_of(*part)]


@dataclass(frozen=True)
class CapturedFunction:
    """A function captured on its arguments: `template` has their structure, `tensors` their
    tensors, `captured` what the function takes from around it. `result` is the structure of what
    it gives, of which the graph gives the parts."""

    graph: GraphModule
    template: Any
    result: Any
    tensors: list[TensorValue]
    captured: list[Value]


def on_fakes(tensors: tuple[Any, ...]) -> AbstractContextManager[Any]:
    """Where a transform of a captured graph runs on these: on fakes the calls in the graph have the
    forms that the recorder gave them when it ran them untransformed."""
    if any(type(tensor) is FakeTensor for tensor in tensors):
        return _SymbolicForms()
    return nullcontext()


class _SymbolicForms(TorchFunctionMode):
    """Runs other forms of calls that ask for data or for numbers of sizes."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        result = symbolic_form(func, args, named)
        return func(*args, **named) if result is NotImplemented else result


def _node_function(
    transform: Any, options: dict[str, Any], inner: CapturedFunction, template: Any, count: int
) -> Callable[..., Any]:
    """What the node calls: the real transform of the captured graph."""
    graph, result = inner.graph, inner.result

    def transformed(*tensors: Any) -> Any:
        captured = tensors[count:]

        def function(*args: Any, **kwargs: Any) -> Any:
            leaves = pytree.tree_leaves((args, kwargs))
            given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            return inner_graphs.rebuilt(result, graph(*given, *captured))

        args, kwargs = inner_graphs.rebuilt(template, tensors)
        with on_fakes(tensors):
            return transform(function, **options)(*args, **kwargs)

    transformed.__name__ = f"{transform.__name__}_of_graph"
    return transformed


def _one_of(fake: torch.Tensor, dim: int) -> torch.Tensor:
    """What the function sees of a tensor that `vmap` takes apart, also if it has no parts."""
    if not -fake.dim() <= dim < fake.dim():
        raise GraphBreakSignal("vmap over a dimension that its argument has not")
    if fake.shape[dim] != 0:
        return fake.select(dim, 0)
    shape = list(fake.shape)
    del shape[dim]
    return fake.new_empty(shape)


def value_of(function: Any, count: int) -> Callable[..., Any]:
    return lambda *args: function(*args[:count])


def _differentiated(
    transform: Any, options: dict[str, Any], how: str, template: Any, count: int
) -> set[int]:
    """The tensors of the arguments that the function is differentiated by, backwards: inside they
    require a gradient."""
    if how == "reverse" and transform is value_of:
        return set(range(count))  # of `vjp`: all
    if transform not in _BACKWARDS:
        return set()
    places = options.get("argnums", 0)
    args = template[0]
    chosen = [args[n] for n in ((places,) if isinstance(places, int) else places)
              if -len(args) <= n < len(args)]  # fmt: skip
    return {leaf.index for leaf in pytree.tree_leaves(chosen) if type(leaf) is inner_graphs.Slot}


_BACKWARDS = (torch.func.grad, torch.func.grad_and_value, torch.func.jacrev, torch.func.hessian)


def capture_function(
    vm: Interpreter,
    transform: Any,
    function: Value,
    options: Any,
    args: Args,
    kwargs: Kwargs,
    how: str = "",
) -> CapturedFunction:
    session = vm.session
    outer = session.recorder
    tensors: list[TensorValue] = []
    template = (
        tuple(inner_graphs.template_of(vm, arg, tensors) for arg in args),
        {name: inner_graphs.template_of(vm, arg, tensors) for name, arg in kwargs.items()},
    )
    dimensions = _mapped_dimensions(transform, options, template)
    inner = inner_graphs.InnerRecorder(outer)
    inner.how = how or _HOW[transform]
    inside: list[Value] = []
    differentiated = _differentiated(transform, options, inner.how, template, len(tensors))
    for index, (tensor, dim) in enumerate(zip(tensors, dimensions, strict=True)):
        with outer.fake_mode:
            fake = tensor.fake.detach() if dim is None else _one_of(tensor.fake, dim)
            if index in differentiated and (fake.is_floating_point() or fake.is_complex()):
                fake.requires_grad_()
        node = inner.argument_placeholder(index, fake)
        if dim is not None:
            inner.mapped.add(node)
        inside.append(inner.bind(TensorValue(node, fake)))
    positional = [inner_graphs.filled(vm, part, inside) for part in template[0]]
    named = {name: inner_graphs.filled(vm, part, inside) for name, part in template[1].items()}
    session.recorder = inner
    grad_mode = torch.is_grad_enabled()
    if inner.how == "reverse" or transform in _BACKWARDS:
        torch._C._set_grad_enabled(True)  # as these transforms do, whatever holds around them
    try:
        result = vm.call(function, positional, named)
        vm.look_into(result)
        parts: list[Any] = []

        def part(value: Value) -> inner_graphs.Slot:
            parts.append(inner.argument(value)[0])
            return inner_graphs.Slot(len(parts) - 1)

        given_back = inner_graphs.structure(vm, result, part)
        inner.graph.output(tuple(parts))
    except NotAGraphArgument as error:
        raise GraphBreakSignal(f"a transformed function that gives {error}") from None
    finally:
        session.recorder = outer
        torch._C._set_grad_enabled(grad_mode)
    graph = inner.module()
    return CapturedFunction(graph, template, given_back, tensors, inner.captured)


def record_transform(
    vm: Interpreter, transform: Any, options: dict[str, Any], inner: CapturedFunction, more: Args
) -> Value:
    """Record a node: `transform` of a captured function, on its arguments and `more`."""
    tensors = list(inner.tensors)
    further = tuple(inner_graphs.template_of(vm, arg, tensors) for arg in more)
    template = ((*inner.template[0], *further), inner.template[1])
    target = _node_function(transform, options, inner, template, len(tensors))
    arguments: Args = [*tensors, *inner.captured]
    if not inner_graphs.holds_objects(template) and not inner_graphs.holds_objects(inner.result):
        return vm.session.recorder.record("call_function", target, arguments, {})
    specs: list[Any] = []

    def flat(*given: Any) -> Any:
        leaves, spec = pytree.tree_flatten(target(*given))
        specs[:] = [spec]
        return tuple(leaves)

    flat.__name__ = target.__name__
    given = vm.session.recorder.record("call_function", flat, arguments, {})
    return put_together(vm, specs[0], vm.iterate(given))


def call_transformed(vm: Interpreter, fn: TransformValue, args: Args, kwargs: Kwargs) -> Value:
    """Call the result of a transform."""
    if fn.inner is not None:
        if kwargs:
            raise GraphBreakSignal("a pulled or pushed function called with keyword arguments")
        return record_transform(vm, fn.transform, fn.options, fn.inner, args)
    inner = capture_function(vm, fn.transform, fn.function, fn.options, args, kwargs)
    return record_transform(vm, fn.transform, fn.options, inner, [])


def _made_before(transform: Any) -> Callable[..., Value]:
    """A call of what a transform gave before the frame, by the cells of that function."""

    def handler(vm: Interpreter, real: Any, args: Args, kwargs: Kwargs) -> Value:
        cells = zip(real.__code__.co_freevars, real.__closure__, strict=True)
        known = {name: cell.cell_contents for name, cell in cells}
        names = inspect.signature(transform).parameters.keys() - {"func"}
        options = {name: known[name] for name in names & known.keys()}
        function = vm.held(known["func"])
        return call_transformed(
            vm, TransformValue(call_transformed, transform, function, options), args, kwargs
        )

    return handler


def _codes() -> dict[types.CodeType, Callable[..., Value]]:
    """The functions that transforms give, by their code. (What `hessian` gives, `jacfwd` made.)"""
    found: dict[types.CodeType, Callable[..., Value]] = {}
    for transform in _TRANSFORMS:
        code = transform(abs).__code__
        if "func" in code.co_freevars and transform is not torch.func.hessian:
            found.setdefault(code, _made_before(transform))
    return found


CODE_HANDLERS = _codes()


def _are_active(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """Whether a transform is active: one that is captured, or one around the whole call."""
    if inner_graphs.transforms_around(vm.session.recorder):
        return boolean(True)
    around = READERS["function_transforms"]()
    vm.session.guards.state("function_transforms", around)
    return boolean(around)


HANDLERS: dict[Any, Handler] = {
    torch._C._are_functorch_transforms_active: _are_active,
    **{transform: transform_of(transform) for transform in _TRANSFORMS},
}
