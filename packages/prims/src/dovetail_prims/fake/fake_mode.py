"""`FakeMode`: inside it, factories and ops on real tensors give fakes too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail_prims.fake.dispatch_mode import DispatchMode
from dovetail_prims.fake.from_real import FakeMemo, from_real
from dovetail_prims.fake.random_ops import draws
from dovetail_prims.fake_tensor import FakeTensor, has_other_types, propagate


class FakeMode(DispatchMode):  # type: ignore[no-untyped-call]
    """No kernel runs inside this mode: every op, a factory included, gives a `FakeTensor`.

    A real tensor met on the way is replaced by its fake; `memo` makes that the same fake each
    time, so that an in-place op on a real tensor is seen by later ops (the real one is untouched).
    """

    def __init__(self, memo: FakeMemo | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memo = memo if memo is not None else FakeMemo()
        self.drew = False  # has an op drawn random numbers? (Whoever asks sets it back.)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if has_other_types(types):
            return NotImplemented
        if not self.drew and draws(func, args, kwargs or {}):
            self.drew = True
        return propagate(func, self._fakes(args), self._fakes(kwargs) if kwargs else {})

    def _fakes(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value if type(value) is FakeTensor else from_real(value, memo=self.memo)
        if isinstance(value, (list, tuple)):
            return type(value)(self._fakes(v) for v in value)
        if isinstance(value, dict):
            return {k: self._fakes(v) for k, v in value.items()}
        return value


def fake_arguments(values: Any, memo: FakeMemo | None = None) -> Any:
    """A pytree with every tensor replaced by its fake, aliasing kept."""
    memo = memo if memo is not None else FakeMemo()
    return torch.utils._pytree.tree_map_only(Tensor, lambda t: from_real(t, memo=memo), values)
