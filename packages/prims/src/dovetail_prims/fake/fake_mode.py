"""Our modes of dispatch: `DispatchMode`, their base, and `FakeMode`; and which calls draw random
numbers.

Inside a `FakeMode`, factories and ops on real tensors give fakes too.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail_prims.fake.from_real import FakeMemo, from_real
from dovetail_prims.fake_tensor import FakeTensor, has_other_types, propagate


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The base of all our dispatch modes."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True (the default) makes PyTorch import its own compiler on the first dispatch.
        return False


# What tells of a random operator whether it drops anything, or is in training.
_SWITCHES = ("dropout_p", "dropout", "train", "training")


@functools.lru_cache(maxsize=4096)
def _switches(func: Any) -> tuple[tuple[int, str, Any], ...] | None:
    """The place, name and default of such arguments of a random operator; None of another."""
    # (Attention's backward is tagged as random too, but takes its seed as an argument.)
    if not isinstance(func, OpOverload) or torch.Tag.nondeterministic_seeded not in func.tags:
        return None
    if func._schema.name.endswith("_backward"):
        return None
    return tuple(
        (place, argument.name, argument.default_value)
        for place, argument in enumerate(func._schema.arguments)
        if argument.name in _SWITCHES
    )


def draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call advances the generator: one of a random operator, other than attention or
    dropout that drops nothing."""
    switches = _switches(func)
    if switches is None:
        return False
    for place, name, default in switches:
        given = args[place] if place < len(args) else kwargs.get(name, default)
        if given is not None and given == 0:
            return False
    return True


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
