"""Transformed functions run on fakes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.symbolic_forms import symbolic_form
from torch.overrides import TorchFunctionMode


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
