"""What the node of a captured `torch.autograd.Function` calls: a function of autograd that runs the
graphs of its forward and of its backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_prims.graphs.gradient_hooks import GraphInBackward
from torch.autograd.function import once_differentiable
from torch.fx import GraphModule

from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.tensors import TensorValue


@dataclass(frozen=True)
class Backward:
    """A backward: its graph, and what that takes of the forward's tensors (and what of it forward
    did not say it saves)."""

    code: GraphInBackward
    saved: list[Value]
    unsaved: list[Value]


@dataclass(frozen=True)
class Pieces:
    """The graphs of a function on the `given` tensors among its arguments, and then `captured`.

    `forward` gives `count` `results` (one by itself if not `many`), then what is saved; `backward`
    takes the gradients of the results and what was saved, and gives a gradient, or None, for each
    tensor among the arguments; without it `original` applies the function itself. `dirty` and
    `plain` are the places of arguments that forward writes to, and of results that are not
    differentiable. `returned` are the results, and what it gives besides that is no tensor.
    """

    cls: Any
    forward: GraphModule
    backward: Backward | None
    captured: list[Value]
    original: Callable[[Any], Any]
    given: int
    many: bool
    dirty: tuple[int, ...]
    plain: tuple[int, ...]
    returned: list[Value]

    @property
    def results(self) -> list[TensorValue]:
        """The tensors that forward gives."""
        return [value for value in self.returned if isinstance(value, TensorValue)]

    @property
    def count(self) -> int:
        """How many tensors forward gives."""
        return len(self.results)


@dataclass(frozen=True, eq=False)
class _Around:
    """What a function takes from around it: nothing that autograd looks at."""

    values: tuple[Any, ...]


_SAVED = object()


def _is_kept(part: Any, around: _Around) -> bool:
    """Is it kept for backward as it is? (Autograd watches over what it saves.)"""
    return not isinstance(part, torch.Tensor) or any(part is value for value in around.values)


def _requires_grad(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.requires_grad


def is_once_differentiable(function: Any) -> bool:
    """Is it decorated with `once_differentiable`?"""
    code = once_differentiable(_requires_grad).__code__  # that of any function that is
    while function is not None:
        if getattr(function, "__code__", None) is code:
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def has_one_backward(cls: Any) -> bool:
    """Does a function of autograd define `backward` or `vjp`, which are two names of one thing, but
    not both?"""
    base = torch.autograd.Function
    return cls.backward is base.backward or cls.vjp is base.vjp


def places_of_saved(pieces: Pieces) -> list[tuple[str, int]] | None:
    """Which inputs and results the parts are that are saved; None if one is neither."""
    graph = pieces.forward.graph
    nodes: Any = next(node for node in graph.nodes if node.op == "output").args[0]
    results = list(nodes[: pieces.count])
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    found = []
    for node in nodes[pieces.count :]:
        if node in inputs and isinstance(node.meta["val"], torch.Tensor):
            found.append(("input", inputs.index(node)))
        elif node in results:
            found.append(("result", results.index(node)))
        else:
            return None
    return found


def target_in_transform(pieces: Pieces, places: list[tuple[str, int]]) -> Callable[..., Any]:
    """What a node inside of a transformed function calls: a function of autograd that torch's
    transforms take apart by their own rules. `places` say which input or result each part is that
    backward is given."""
    cls, count = pieces.cls, pieces.count
    run_forward, backward_piece = pieces.forward.forward, pieces.backward
    assert backward_piece is not None
    run_backward = backward_piece.code.run

    def forward(*inputs: Any) -> Any:
        results = run_forward(*inputs)[:count]
        return tuple(results) if pieces.many else results[0]

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        results = output if pieces.many else (output,)
        kinds = {"input": inputs, "result": results}
        ctx.save_for_backward(*(kinds[kind][place] for kind, place in places))
        if pieces.plain:
            ctx.mark_non_differentiable(*(results[place] for place in pieces.plain))

    def backward(ctx: Any, *gradients: Any) -> Any:
        found = run_backward(gradients, ctx.saved_tensors)
        return (*found, *[None] * len(pieces.captured))

    once = is_once_differentiable(cls.backward)
    members = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(once_differentiable(backward) if once else backward),
        "generate_vmap_rule": True,
    }
    made: Any = type(cls.__name__, (torch.autograd.Function,), members)
    return _named(cls, lambda *args: made.apply(*args))


def _named(cls: Any, target: Any) -> Callable[..., Any]:
    """The target of a node, with a name that the graph's text can have."""
    target.__name__ = f"{cls.__name__}_apply"
    target.__qualname__ = f"{cls.__qualname__}.apply"
    target.__module__ = f"apply.{cls.__module__}"  # fx looks up what says that it is torch's
    return target  # type: ignore[no-any-return]


def target_of(pieces: Pieces) -> Callable[..., Any]:
    """What the node calls."""
    cls, count = pieces.cls, pieces.count
    run_forward = pieces.forward.forward

    def forward(ctx: Any, around: _Around, *tensors: Any) -> Any:
        found = run_forward(*tensors, *around.values)
        results, saved = found[:count], found[count:]
        kept = [_is_kept(part, around) for part in saved]
        ctx.save_for_backward(*(p for p, keep in zip(saved, kept, strict=True) if not keep))
        ctx.kept = [(part if keep else _SAVED) for part, keep in zip(saved, kept, strict=True)]
        if pieces.dirty:
            ctx.mark_dirty(*(tensors[place] for place in pieces.dirty))
        if pieces.plain:
            ctx.mark_non_differentiable(*(results[place] for place in pieces.plain))
        return tuple(results) if pieces.many else results[0]

    def backward(ctx: Any, *gradients: Any) -> Any:
        assert pieces.backward is not None
        tensors = iter(ctx.saved_tensors)
        saved = [next(tensors) if part is _SAVED else part for part in ctx.kept]
        return (None, *pieces.backward.code.run(gradients, saved))

    once = is_once_differentiable(getattr(cls, "backward", None))
    members = {
        "forward": staticmethod(forward),
        "backward": staticmethod(once_differentiable(backward) if once else backward),
    }
    made: Any = type(cls.__name__, (torch.autograd.Function,), members)
    apply: Any = made.apply

    def target(*args: Any) -> Any:
        given, around = args[: pieces.given], _Around(args[pieces.given :])
        if pieces.backward is None and torch.is_grad_enabled() and any(map(_requires_grad, given)):
            return pieces.original(given)  # a graph that was captured for inference
        return apply(around, *given)

    return _named(cls, target)
