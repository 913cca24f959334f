"""Kernels that say what type each value has, so that one of another type does not compile.

Triton promotes some operands (its own reductions make 4 bytes of 1), its interpreter does so by
NumPy's rules, and results stay right until something wraps around: no number shows it. This is for
tests, which compile kernels ahead of time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from dovetail_inductor.loop_ir.expr import Apply, Expr, Load
from dovetail_inductor.loop_ir.index import Index
from dovetail_inductor.targets.cuda.body import BodyEmitter
from dovetail_inductor.targets.cuda.kernel import Emission
from dovetail_inductor.targets.cuda.triton_ops import TRITON_TYPES


class TypedEmitter(BodyEmitter):
    """Asserts the type of what it emits."""

    def index_value(self, index: Index, dtype: torch.dtype, read: Callable[[Expr], str]) -> str:
        """Of the given type."""
        return self._typed(super().index_value(index, dtype, read), dtype)

    def load(self, load: Load, mask: str | None, read: Callable[[Expr], str]) -> str:
        """Of the load's type, also where the kernel itself has computed it."""
        return self._typed(super().load(load, mask, read), load.dtype)

    def apply(self, op: str, args: Sequence[str], expr: Apply) -> str:
        """Of the expression's type."""
        return self._typed(super().apply(op, args, expr), expr.dtype)

    def _typed(self, name: str, dtype: torch.dtype) -> str:
        kind = TRITON_TYPES[dtype]
        self.lines.add(f'tl.static_assert({name}.dtype == {kind}, "{name} is no {kind}")')
        return name


@contextmanager
def typed_kernels() -> Iterator[None]:
    """Kernels emitted meanwhile, in any thread, assert their types."""
    plain, Emission.emitter = Emission.emitter, TypedEmitter
    try:
        yield
    finally:
        Emission.emitter = plain


__all__ = ["TypedEmitter", "typed_kernels"]
