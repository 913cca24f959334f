"""The common calls of a compiled graph in training, decided when compiling.

`training_calls.cpp` runs them without any Python between autograd and the compiled code; all
else goes to the general functions that it is given (see `autograd_function.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from dovetail_autograd_aot.boundary import Signature
from dovetail_autograd_aot.calls.double_backward import DoubleBackward, Replay
from dovetail_autograd_aot.calls.graph_calls import Compiled
from dovetail_autograd_aot.calls.partial_backwards import Rest
from dovetail_autograd_aot.calls.saved_tensors import SavedValues
from dovetail_autograd_aot.calls.tangents import Tangents
from dovetail_autograd_aot.native import nodes_module
from dovetail_autograd_aot.outputs.copy_back import count_writes

# Of an output that is made of a saved value: (output, saved value, its sizes, strides, offset).
Alias = tuple[int, int, tuple[Any, Any, Any]]


class CommonCalls:
    """`forward` and `backward` take what those of an `autograd.Function` do."""

    def __init__(
        self,
        signature: Signature,
        compiled: Compiled,
        general: tuple[Callable[..., Any], Callable[..., Any]],
        double: DoubleBackward,
        saved: SavedValues,
        aliases: Sequence[Alias],
        inputs: Sequence[tuple[bool, bool]],
        pending: Collection[Any] | None,
        autocast: bool,
    ) -> None:
        """`inputs` tells of each whether it is a tensor, and whether it gets a gradient. What is
        `pending` is not empty while gradients of this graph were taken apart (see
        `cross_output_gradients.py`). `autocast` is to be switched off."""
        count = signature.num_forward_outputs
        differentiable = signature.differentiable

        def remember_written(inputs: tuple[Any, ...]) -> Replay:
            count_writes(signature, inputs)
            return double.remember(inputs)

        remember: Callable[..., Replay] | None = None
        if signature.writes:
            remember = remember_written
        elif not double.remembers_inputs_only:
            remember = double.remember
        forward, backward = general
        self._native = nodes_module().TrainingCalls(
            forward=forward,
            backward=backward,
            compiled=compiled,
            remember=remember,
            replay=Replay,
            pending=pending,
            outputs=count,
            inputs=bytes(is_tensor + (is_tensor and reached) for is_tensor, reached in inputs),
            primals=tuple(saved.primals),
            constant=tuple(i for i in range(count) if i not in differentiable),
            beside=bytes(i in saved.numbers for i in range(saved.count)),
            aliases=tuple(map(_alias, aliases)),
            autocast=autocast,
            minds_hooks=bool(saved.masks or signature.mutated),
        )
        self._differentiable = differentiable
        self.forward: Callable[..., Any] = self._native.forward
        self.backward: Callable[..., Any] = self._native.backward
        self.is_complete = False

    def give_to(self, function: Any) -> None:
        """Let a subclass of `autograd.Function` be called so, forward and backward."""
        function.forward = staticmethod(self.forward)
        function._backward_cls.apply = nodes_module().as_method(self.backward)

    def learn(self, run: Compiled, rest: Rest, tangents: Tangents) -> None:
        """From now on the common backward is known: it calls `run`, and leaves `rest` if it frees
        the graph. (Until then all backwards go the general way.)"""
        layouts = tuple(
            (output, *layout)
            for output, layout in zip(self._differentiable, tangents.layouts(), strict=True)
        )
        self._native.learn(run, getattr(run, "run_consuming", None), rest, layouts)
        self.is_complete = True


def _alias(alias: Alias) -> tuple[int, int, Any, Any, int]:
    output, saved, (sizes, strides, offset) = alias
    if all(type(s) is int for s in (*sizes, *strides, offset)):
        return output, saved, tuple(sizes), tuple(strides), offset
    return output, saved, None, None, 0
