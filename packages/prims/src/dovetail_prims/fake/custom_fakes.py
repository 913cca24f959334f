"""Operators that users register with a fake implementation: it tells what their results are.

It runs on our fakes (sizes may be symbolic, devices are the real ones). What it asks of
`torch.library.get_ctx()` is answered here: a size that depends on data is a new symbol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._library.fake_impl import set_ctx_getter
from torch._library.simple_registry import singleton

from dovetail_prims.fake.fake_mode import FakeMode
from dovetail_prims.fake_tensor import FakeTensor, make
from dovetail_prims.sizes.data_sizes import new_size


class _Context:
    """What `torch.library.get_ctx()` gives to a fake implementation."""

    def __init__(self, op: Any) -> None:
        self._op = op

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Any:
        """A size that only the data tells."""
        if type(min) is not int or type(max) not in (int, type(None)):
            raise ValueError(f"{self._op}: the bounds of a dynamic size must be plain numbers")
        if min < 0:
            raise ValueError(f"{self._op}: a dynamic size may not be negative")
        return new_size(self._op, min, max)

    def create_unbacked_symint(self, *, min: int = 2, max: int | None = None) -> Any:
        """The former name of `new_dynamic_size`."""
        return self.new_dynamic_size(min=min, max=max)


def registered_fake(op: Any) -> Callable[..., Any] | None:
    """The fake implementation that was registered for an operator, if one was."""
    if op.namespace == "aten":
        return None
    kernel: Callable[..., Any] | None = singleton.find(op._schema.name).fake_impl.kernel
    return kernel


def run_registered(
    kernel: Callable[..., Any], op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The results of `op` on fakes by its fake implementation: tensors of their own, even where
    that is careless and gives an argument or a view of one."""
    with set_ctx_getter(lambda: _Context(op)), FakeMode():
        return _own(kernel(*args, **kwargs))


def _own(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return make(value._sizes, value._strides, value._dtype, value._device)
    if isinstance(value, Tensor):
        raise TypeError(f"a fake implementation gave a {type(value).__name__} with data")
    if isinstance(value, (list, tuple)):
        return type(value)(_own(v) for v in value)
    return value
