"""`torch.vmap` and torch.func's transforms: one node, whose function was captured as well.

The transformed function is interpreted on tensors as it sees them (for `vmap`: without the mapped
dimension) and recorded into a graph of its own. The node calls the real transform of that graph.
Tensors that the function takes from around it become further arguments of the node.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from dovetail_guards.torch_state import READERS
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from dovetail_capture.extensions.transforms.transformed_fakes import on_fakes
from dovetail_capture.interpreter.graph.graph_arguments import NotAGraphArgument
from dovetail_capture.interpreter.library.torch_functions.inner_recorder import (
    InnerRecorder,
    transforms_around,
)
from dovetail_capture.interpreter.library.torch_functions.structures import (
    Parts,
    Slot,
    count_slots,
    filled,
    holds_objects,
    rebuilt,
    structure,
    template_of,
)
from dovetail_capture.interpreter.library.torch_functions.whole_calls import put_together
from dovetail_capture.interpreter.machine.handler_types import PASS, Args, Handler, Kwargs
from dovetail_capture.interpreter.protocols.constants import UNKNOWN
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Constant, Value, boolean
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.functions import TransformValue
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.machine import Interpreter

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
            options[name] = template_of(vm, value, tensors)
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
        return [None] * count_slots(template)
    in_dims = options.get("in_dims", 0)
    if isinstance(in_dims, int):
        in_dims = (in_dims,) * len(args)
    return _dimensions_of(tuple(in_dims), tuple(args)) + [0] * count_slots(kwargs)


def _dimensions_of(dims: Any, template: Any) -> list[int | None]:
    """`in_dims` for each tensor: a number stands for all tensors of what it is given for."""
    if dims is None or isinstance(dims, int):
        return [dims] * count_slots(template)
    parts: list[tuple[Any, Any]] | None = None
    if isinstance(dims, Parts) and isinstance(template, Parts) and dims.cls is template.cls:
        return _dimensions_of(dims.children, template.children)
    if isinstance(dims, (tuple, list)) and type(template) is type(dims):
        parts = list(zip(dims, template, strict=False)) if len(dims) == len(template) else None
    elif isinstance(dims, dict) and isinstance(template, dict) and dims.keys() == template.keys():
        parts = [(dims[key], item) for key, item in template.items()]
    if parts is None:
        raise GraphBreakSignal("vmap with in_dims that do not fit its arguments")
    return [dim for part in parts for dim in _dimensions_of(*part)]


@dataclass(frozen=True)
class _Inner:
    """A function captured on its arguments: `template` has their structure, `tensors` their
    tensors, `captured` what the function takes from around it. `result` is the structure of what
    it gives, of which the graph gives the parts."""

    graph: GraphModule
    template: Any
    result: Any
    tensors: list[TensorValue]
    captured: list[Value]


def _node_function(
    transform: Any, options: dict[str, Any], inner: _Inner, template: Any, count: int
) -> Callable[..., Any]:
    """What the node calls: the real transform of the captured graph."""
    graph, result = inner.graph, inner.result

    def transformed(*tensors: Any) -> Any:
        captured = tensors[count:]

        def function(*args: Any, **kwargs: Any) -> Any:
            leaves = pytree.tree_leaves((args, kwargs))
            given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            return rebuilt(result, graph(*given, *captured))

        args, kwargs = rebuilt(template, tensors)
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


def _differentiated(
    transform: Any, options: dict[str, Any], how: str, template: Any, count: int
) -> set[int]:
    """The tensors of the arguments that the function is differentiated by, backwards: inside they
    require a gradient."""
    if how == "reverse" and transform is _value:
        return set(range(count))  # of `vjp`: all
    if transform not in _BACKWARDS:
        return set()
    places = options.get("argnums", 0)
    args = template[0]
    chosen = [args[n] for n in ((places,) if isinstance(places, int) else places)
              if -len(args) <= n < len(args)]  # fmt: skip
    return {leaf.index for leaf in pytree.tree_leaves(chosen) if type(leaf) is Slot}


_BACKWARDS = (torch.func.grad, torch.func.grad_and_value, torch.func.jacrev, torch.func.hessian)


def _capture(
    vm: Interpreter,
    transform: Any,
    function: Value,
    options: Any,
    args: Args,
    kwargs: Kwargs,
    how: str = "",
) -> _Inner:
    session = vm.session
    outer = session.recorder
    tensors: list[TensorValue] = []
    template = (
        tuple(template_of(vm, arg, tensors) for arg in args),
        {name: template_of(vm, arg, tensors) for name, arg in kwargs.items()},
    )
    dimensions = _mapped_dimensions(transform, options, template)
    inner = InnerRecorder(outer)
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
    positional = [filled(vm, part, inside) for part in template[0]]
    named = {name: filled(vm, part, inside) for name, part in template[1].items()}
    session.recorder = inner
    grad_mode = torch.is_grad_enabled()
    if inner.how == "reverse" or transform in _BACKWARDS:
        torch._C._set_grad_enabled(True)  # as these transforms do, whatever holds around them
    try:
        result = vm.call(function, positional, named)
        vm.look_into(result)
        parts: list[Any] = []

        def part(value: Value) -> Slot:
            parts.append(inner.argument(value)[0])
            return Slot(len(parts) - 1)

        given_back = structure(vm, result, part)
        inner.graph.output(tuple(parts))
    except NotAGraphArgument as error:
        raise GraphBreakSignal(f"a transformed function that gives {error}") from None
    finally:
        session.recorder = outer
        torch._C._set_grad_enabled(grad_mode)
    graph = inner.module()
    return _Inner(graph, template, given_back, tensors, inner.captured)


def _apply(
    vm: Interpreter, transform: Any, options: dict[str, Any], inner: _Inner, more: Args
) -> Value:
    """Record a node: `transform` of a captured function, on its arguments and `more`."""
    tensors = list(inner.tensors)
    further = tuple(template_of(vm, arg, tensors) for arg in more)
    template = ((*inner.template[0], *further), inner.template[1])
    target = _node_function(transform, options, inner, template, len(tensors))
    arguments: Args = [*tensors, *inner.captured]
    if not holds_objects(template) and not holds_objects(inner.result):
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
        return _apply(vm, fn.transform, fn.options, fn.inner, args)
    inner = _capture(vm, fn.transform, fn.function, fn.options, args, kwargs)
    return _apply(vm, fn.transform, fn.options, inner, [])


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


# --- vjp, jvp, linearize: the function is captured once, on the primals ---------------------------


def _value(function: Any, count: int) -> Callable[..., Any]:
    return lambda *args: function(*args[:count])


def _value_below(function: Any, count: int, has_aux: bool) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        value, _, *beside = torch.func.vjp(function, *args[:count], has_aux=has_aux)
        return (value, *beside) if has_aux else value

    return call


def _vjp(function: Any, count: int, has_aux: bool = False) -> Callable[..., Any]:
    return lambda *args: torch.func.vjp(function, *args[:count], has_aux=has_aux)[1](*args[count:])


def _jvp(function: Any, count: int, has_aux: bool) -> Callable[..., Any]:
    return lambda *args: torch.func.jvp(function, args[:count], args[count:], has_aux=has_aux)


def _push(function: Any, count: int) -> Callable[..., Any]:
    return lambda *args: torch.func.jvp(function, args[:count], args[count:])[1]


_RANDOM = ("rand", "dropout", "bernoulli", "multinomial", "normal_", "uniform_", "exponential_")


def _on_primals(vm: Interpreter, function: Value, primals: Args, how: str) -> _Inner:
    inner = _capture(vm, _value, function, {}, primals, {}, how)
    names = [str(getattr(n.target, "__name__", n.target)) for n in inner.graph.graph.nodes]
    if any(word in name for name in names for word in _RANDOM):
        raise GraphBreakSignal("a derivative of a function that draws random numbers")
    return inner


def vjp_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.func.vjp`: the value, a function of what is to be pulled back, and what comes beside
    the value."""
    has_aux = _has_aux(vm, kwargs)
    if has_aux is None or not args:
        return PASS
    inner = _on_primals(vm, args[0], args[1:], "reverse")
    count = len(args) - 1
    mapped = TransformValue(
        call_transformed, _vjp, args[0], {"count": count, "has_aux": has_aux}, inner
    )
    mapped.born = vm.frames[0].steps
    if torch.is_grad_enabled():
        value = _apply(vm, _value, {"count": count}, inner, [])
    else:  # the function ran with gradients on, which the value does not have
        value = _apply(vm, _value_below, {"count": count, "has_aux": has_aux}, inner, [])
    if not has_aux:
        return TupleValue([value, mapped])
    found, beside = vm.iterate(value)
    return TupleValue([found, mapped, beside])


def linearize_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.func.linearize`: the value, and a function of what is to be pushed forward. To the
    latter all that is known beforehand is a constant: nothing but the tangents has a gradient."""
    if kwargs or not args:
        return PASS
    inner = _on_primals(vm, args[0], args[1:], "forward")
    options = {"count": len(args) - 1}
    value = _apply(vm, _value, options, inner, [])

    def constant(value: Any) -> Any:
        if not isinstance(value, TensorValue):
            return value
        return vm.record("call_method", "detach", [value], {})

    known = replace(
        inner,
        tensors=list(map(constant, inner.tensors)),
        captured=list(map(constant, inner.captured)),
    )
    mapped = TransformValue(call_transformed, _push, args[0], options, known)
    mapped.born = vm.frames[0].steps
    return TupleValue([value, mapped])


def jvp_(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.func.jvp(function, primals, tangents, has_aux=False)`."""
    has_aux = _has_aux(vm, kwargs)
    if has_aux is None or len(args) != 3:
        return PASS
    primals, tangents = list(vm.iterate(args[1])), list(vm.iterate(args[2]))
    inner = _capture(vm, _value, args[0], {}, primals, {}, "forward")
    return _apply(vm, _jvp, {"count": len(primals), "has_aux": has_aux}, inner, tangents)


def _has_aux(vm: Interpreter, kwargs: Kwargs) -> bool | None:
    """Whether the function gives something beside what is differentiated; None if that cannot be
    told, or something else is asked for."""
    known = {name: vm.as_python(value) for name, value in kwargs.items()}
    has_aux = known.pop("has_aux", False)
    return has_aux if isinstance(has_aux, bool) and not known else None


def _are_active(vm: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """Whether a transform is active: one that is captured, or one around the whole call."""
    if transforms_around(vm.session.recorder):
        return boolean(True)
    around = READERS["function_transforms"]()
    vm.session.guards.state("function_transforms", around)
    return boolean(around)


HANDLERS: dict[Any, Handler] = {
    torch._C._are_functorch_transforms_active: _are_active,
    **{transform: transform_of(transform) for transform in _TRANSFORMS},
    torch.func.vjp: vjp_,
    torch.func.linearize: linearize_,
    torch.func.jvp: jvp_,
}
