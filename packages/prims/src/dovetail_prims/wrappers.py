"""Tensor subclasses that wrap tensors: taken apart and put together by their own protocol.

Such a class has a `__torch_dispatch__` that computes with the tensors inside, and tells what these
are: `__tensor_flatten__` gives the names of the attributes that hold them and a context,
`__tensor_unflatten__` makes a tensor of the class from both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph

from dovetail_prims.fake.from_real import FakeMemo, from_real
from dovetail_prims.fake_tensor import FakeTensor, UnsupportedTensorError

_TORCHS_OWN = ("torch.distributed", "torch.nested", "torch.masked", "torch.sparse")


@dataclass(frozen=True, eq=False)
class WrapperLayout:
    """What a wrapping tensor is, without the plain tensors inside: `parts` are None for a plain
    tensor, the layout of one that wraps others itself."""

    cls: type
    names: tuple[str, ...]
    parts: tuple[WrapperLayout | None, ...]
    context: Any
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, WrapperLayout):
            return False
        mine = (self.cls, self.names, self.parts, self.sizes, self.strides)
        theirs = (other.cls, other.names, other.parts, other.sizes, other.strides)
        if mine != theirs:
            return False
        try:
            return bool(self.context == other.context)
        except Exception:  # a context of tensors, say: nobody knows
            return False

    @property
    def plain_count(self) -> int:
        """How many plain tensors are inside."""
        return sum(1 if part is None else part.plain_count for part in self.parts)


def is_wrapper_type(cls: type) -> bool:
    """Is it a subclass of tensors that wraps others, and tells how?"""
    return (
        issubclass(cls, Tensor)
        and cls is not FakeTensor
        and hasattr(cls, "__tensor_flatten__")
        and hasattr(cls, "__tensor_unflatten__")
        and cls.__torch_dispatch__ is not Tensor.__torch_dispatch__
    )


def is_wrapper(value: Any) -> bool:
    """Is it a tensor that wraps others?"""
    cls = type(value)
    return cls is not FakeTensor and isinstance(value, Tensor) and is_wrapper_type(cls)


def overrides_functions(cls: type[Tensor]) -> bool:
    """Has this class of tensors a `__torch_function__` of its own?"""
    answer: Any = cls.__torch_function__
    if answer is torch._C._disabled_torch_function_impl:
        return False
    usual: Any = Tensor.__torch_function__
    return getattr(answer, "__func__", None) is not usual.__func__


@dataclass(frozen=True)
class Unasked:
    """`function`, about which no class with a `__torch_function__` is asked: what such a class
    makes of it is in the graph already."""

    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return self.function(*args, **kwargs)

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", "function"))

    def __str__(self) -> str:
        return self.__name__


@dataclass(frozen=True, eq=False)
class MakeWrapper:
    """Makes a wrapping tensor of these sizes and strides around tensors: what a graph calls where
    the program calls the class."""

    cls: type
    names: tuple[str, ...]
    context: Any

    def __call__(self, sizes: Sequence[int], strides: Sequence[int], *inner: Tensor) -> Any:
        parts = dict(zip(self.names, inner, strict=True))
        cls: Any = self.cls
        with torch._C.DisableTorchFunctionSubclass():
            made = cls.__tensor_unflatten__(parts, self.context, tuple(sizes), tuple(strides))
        return made

    @property
    def __name__(self) -> str:
        return self.cls.__name__

    def __str__(self) -> str:
        return self.__name__


def has_wrappers(graph: Graph) -> bool:
    """Does a graph make or take tensors that wrap others?"""
    return any(is_wrapper(node.meta.get("val")) for node in graph.nodes)


def take_apart(tensor: Any) -> tuple[WrapperLayout, list[Tensor]]:
    """The layout of a wrapping tensor, and the plain tensors inside, in order."""
    with torch._C.DisableTorchFunctionSubclass():  # its class may have a method for these
        return _take_apart(tensor)


def _take_apart(tensor: Any) -> tuple[WrapperLayout, list[Tensor]]:
    names, context = tensor.__tensor_flatten__()
    parts: list[WrapperLayout | None] = []
    plain: list[Tensor] = []
    for name in names:
        inner = getattr(tensor, name)
        if is_wrapper(inner):
            layout, inside = _take_apart(inner)
            parts.append(layout)
            plain += inside
        else:
            parts.append(None)
            plain.append(inner)
    sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
    layout = WrapperLayout(type(tensor), tuple(names), tuple(parts), context, sizes, strides)
    return layout, plain


def put_together(layout: WrapperLayout, plain: Sequence[Tensor]) -> Any:
    """A tensor of this layout around these plain tensors."""
    with torch._C.DisableTorchFunctionSubclass():
        return _put_together(layout, iter(plain))


def _put_together(layout: WrapperLayout, plain: Iterator[Tensor]) -> Any:
    inner = {
        name: next(plain) if part is None else _put_together(part, plain)
        for name, part in zip(layout.names, layout.parts, strict=True)
    }
    cls: Any = layout.cls
    return cls.__tensor_unflatten__(inner, layout.context, layout.sizes, layout.strides)


def wrapper_of_fakes(real: Any, memo: FakeMemo) -> Any:
    """A tensor like a wrapping tensor, around fakes of what is inside."""
    if type(real).__module__.startswith(_TORCHS_OWN):
        raise UnsupportedTensorError("PyTorch's own subclasses do more than their protocol says")
    if real.layout is not torch.strided:
        raise UnsupportedTensorError(f"no fake for layout {real.layout}")
    layout, plain = take_apart(real)
    made = like_wrapper(real, layout, [from_real(t, memo=memo) for t in plain])[0]
    if type(made) is not type(real):
        raise UnsupportedTensorError(f"its __tensor_unflatten__ gives a {type(made).__name__}")
    return made


def like_wrapper(example: Any, layout: WrapperLayout, plain: Sequence[Tensor]) -> tuple[Any, Any]:
    """A tensor around `plain` that is to autograd what `example` is, and the leaf below it (which
    it may be itself)."""
    with torch._C.DisableTorchFunctionSubclass():
        return _like_wrapper(example, layout, plain)


def _like_wrapper(example: Any, layout: WrapperLayout, plain: Sequence[Tensor]) -> tuple[Any, Any]:

    def make() -> Any:
        return put_together(layout, plain)

    tensor = leaf = make()
    if example.requires_grad:
        leaf.requires_grad_()
        if not example.is_leaf:
            with torch.enable_grad():
                tensor = _NonLeafWrapper.apply(leaf, make)
    if isinstance(example, torch.nn.Parameter):
        tensor._is_param = True
    return tensor, leaf


class _NonLeafWrapper(torch.autograd.Function):
    """Gives a wrapping tensor that is no leaf."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, make: Callable[[], Tensor]) -> Tensor:
        ctx.set_materialize_grads(False)
        return make()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        return gradient, None
