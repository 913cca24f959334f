"""Running a graph over plain tensors whose inputs and outputs are tensors that wrap them.

What a trace found out (`wrapping.py`) is kept here as data: how each output is made of the plain
results, and which inputs have gradients that are put together. Sizes may be symbolic in it; each
call reads them off its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.wrappers import WrapperLayout, is_wrapper, put_together, take_apart
from torch import Tensor
from torch.utils import _pytree as pytree

from dovetail_autograd_aot.trace.node_values import SizeReader, as_numbers

Run = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class PlainOutput:
    """An output that is a result of the plain graph."""

    result: int


@dataclass(frozen=True)
class WrappingOutput:
    """An output around results of the plain graph."""

    layout: WrapperLayout
    results: tuple[int, ...]
    requires_grad: bool


@dataclass(frozen=True)
class InputOutput:
    """An output that is an input, or a view of it as `like` is one."""

    index: int
    like: Any = None


@dataclass(frozen=True)
class SameOutput:
    """An output that is an earlier output."""

    output: int


Output = PlainOutput | WrappingOutput | InputOutput | SameOutput


@dataclass(frozen=True)
class Carried:
    """The gradient of input `index`, as the gradients of carriers like `values`. `layout` is None
    for a gradient that is a plain tensor."""

    index: int
    layout: WrapperLayout | None
    values: tuple[FakeTensor, ...]


def run_around(
    run: Run,
    outputs: Sequence[Output],
    carried: Sequence[Carried],
    bumped: Sequence[int],
    sizes: SizeReader,
) -> Callable[..., tuple[Any, ...]]:
    """`run`, a compiled plain graph, as a function of the original inputs and their plain parts.
    `bumped` are inputs that it writes to, `sizes` reads symbols off the plain parts."""
    kinds, written = list(outputs), list(bumped)
    carriers = [_Carriers.of(each) for each in carried]
    symbolic = any(map(_has_symbols, (*kinds, *carriers)))

    def call(inputs: Sequence[Any], plain: list[Any]) -> tuple[Any, ...]:
        made_as, carry = kinds, carriers
        if symbolic:
            known = sizes.read(plain)
            made_as = [_at_sizes(kind, known) for kind in kinds]
            carry = [each.at_sizes(known) for each in carriers]
        with torch._C.DisableTorchFunctionSubclass():  # of the classes that wrap
            for each in carry:
                plain += _Carry.apply(inputs[each.index], each)
        results = run(*plain)
        made: list[Any] = []
        with torch._C.DisableTorchFunctionSubclass():
            for index in written:
                torch.autograd.graph.increment_version(inputs[index])
            for kind in made_as:
                made.append(_make_output(kind, inputs, results, made))
        return tuple(made)

    return call


@dataclass(frozen=True)
class _Carriers:
    """What `Carried` says, for run time: of each carrier its sizes, dtype and device."""

    index: int
    layout: WrapperLayout | None
    kinds: tuple[tuple[tuple[Any, ...], torch.dtype, torch.device], ...]

    @classmethod
    def of(cls, each: Carried) -> _Carriers:
        kinds = tuple((v._sizes, v._dtype, v._device) for v in each.values)
        return cls(each.index, each.layout, kinds)

    def at_sizes(self, known: Mapping[str, int]) -> _Carriers:
        kinds = tuple((as_numbers(s, known), dtype, device) for s, dtype, device in self.kinds)
        layout = None if self.layout is None else _layout_at(self.layout, known)
        return replace(self, layout=layout, kinds=kinds)


def _has_symbols(each: Output | _Carriers) -> bool:
    layout = each.layout if isinstance(each, (WrappingOutput, _Carriers)) else None
    if layout is not None and any(True for _ in symbolic_in(layout)):
        return True
    sizes = [s for kind in each.kinds for s in kind[0]] if isinstance(each, _Carriers) else []
    return any(type(s) is not int for s in sizes)


def _at_sizes(output: Output, known: Mapping[str, int]) -> Output:
    if isinstance(output, WrappingOutput):
        return replace(output, layout=_layout_at(output.layout, known))
    return output


def _layout_at(layout: WrapperLayout, known: Mapping[str, int]) -> WrapperLayout:
    """A layout of symbolic sizes where the symbols have these values."""

    def number(size: torch.SymInt) -> int:
        return as_numbers([size], known)[0]

    return replace(
        layout,
        parts=tuple(None if part is None else _layout_at(part, known) for part in layout.parts),
        context=pytree.tree_map_only(torch.SymInt, number, layout.context),
        sizes=as_numbers(layout.sizes, known),
        strides=as_numbers(layout.strides, known),
    )


def symbolic_in(layout: WrapperLayout) -> Iterator[torch.SymInt]:
    """The symbolic numbers of a layout: sizes, strides, and what its context holds."""
    numbers = (*layout.sizes, *layout.strides, *pytree.tree_leaves(layout.context))
    yield from (number for number in numbers if isinstance(number, torch.SymInt))
    for part in layout.parts:
        if part is not None:
            yield from symbolic_in(part)


def _make_output(
    output: Output, inputs: Sequence[Any], results: Sequence[Any], made: Sequence[Any]
) -> Any:
    match output:
        case PlainOutput(result):
            return results[result]
        case SameOutput(number):
            return made[number]
        case InputOutput(index, like):
            return inputs[index] if like is None else like._view_func(inputs[index])
        case WrappingOutput(layout, numbers, requires_grad):
            parts = [results[n] for n in numbers]
            return _Make.apply(layout, *parts) if requires_grad else put_together(layout, parts)


class _Make(torch.autograd.Function):
    """At run time: results of the plain graph -> the wrapping output."""

    @staticmethod
    def forward(ctx: Any, layout: WrapperLayout, *plain: Tensor) -> Any:
        ctx.layout = layout
        return put_together(layout, [t.detach() for t in plain])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        layout: WrapperLayout = ctx.layout
        if not is_wrapper(gradient) or not _fits(take_apart(gradient)[0], layout):
            raise RuntimeError(
                f"the gradient of an output that is a {layout.cls.__name__} is a "
                f"{type(gradient).__name__} or one of another make; the compiled backward takes "
                f"one like the output"
            )
        return None, *take_apart(gradient)[1]


def _fits(found: WrapperLayout, wanted: WrapperLayout) -> bool:
    """Are they alike but for the strides?"""
    alike = (found.cls, found.names, found.sizes) == (wanted.cls, wanted.names, wanted.sizes)
    parts = zip(found.parts, wanted.parts, strict=False)
    if not alike or any((a is None) != (b is None) for a, b in parts):
        return False
    inner = zip(found.parts, wanted.parts, strict=True)
    return bool(found.context == wanted.context) and all(
        a is None or b is None or _fits(a, b) for a, b in inner
    )


class _Carry(torch.autograd.Function):
    """At run time: an input -> its carriers; their gradients -> its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, carriers: _Carriers) -> tuple[Tensor, ...]:
        ctx.carriers = carriers
        ctx.set_materialize_grads(False)
        return tuple(
            torch.empty((), dtype=dtype, device=device).expand(sizes)
            for sizes, dtype, device in carriers.kinds
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, None]:
        carriers: _Carriers = ctx.carriers
        if all(g is None for g in gradients):
            return None, None
        pieces = [
            torch.zeros(sizes, dtype=dtype, device=device) if g is None else g
            for g, (sizes, dtype, device) in zip(gradients, carriers.kinds, strict=True)
        ]
        if carriers.layout is None:
            return pieces[0], None
        return put_together(carriers.layout, pieces), None
