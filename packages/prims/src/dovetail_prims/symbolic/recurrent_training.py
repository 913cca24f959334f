"""Recurrent layers in training on a GPU: cuDNN's operator, whose backward reads what its forward
put aside.

How many bytes that are, and how cuDNN wants the weights to lie, only cuDNN tells: it is asked once
for each kind of layers and sizes. Where eager would not call cuDNN, nothing stands for the call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_LAYERS = (
    "str kind, Tensor x, Tensor[] state, Tensor[] params, bool biases, bool bidirectional, "
    "int[] places, int total, int reserved"
)


@dataclass(frozen=True)
class CudnnNeeds:
    """What cuDNN needs of some layers: `places` in a buffer of `total` elements, one for each
    parameter, and `reserved` bytes between forward and backward."""

    places: tuple[int, ...]
    total: int
    reserved: int


@dataclass(frozen=True)
class _Layers:
    """The numbers that describe recurrent layers: `arrays` parameters for each layer and direction,
    of the `hidden` state's width, which an LSTM may project to the width `projected` (else 0)."""

    kind: str
    biases: bool
    bidirectional: bool
    count: int
    hidden: int
    projected: int

    @classmethod
    def of(cls, kind: str, state: Sequence[Tensor], biases: bool, bidirectional: bool) -> _Layers:
        """Of a first state: (layers and directions, batch, width) each."""
        width, hidden = state[0].shape[2], state[-1].shape[2]
        count = state[0].shape[0] // (2 if bidirectional else 1)
        projected = width if width != hidden else 0
        return cls(kind, biases, bidirectional, count, hidden, projected)

    @property
    def arrays(self) -> int:
        return 2 + 2 * self.biases + (self.projected > 0)

    def numbers(self) -> tuple[int, int, int, int]:
        """As cuDNN's operators take them."""
        return _MODES[self.kind], self.hidden, self.projected, self.count


@functools.cache
def operators() -> tuple[OpOverload, OpOverload, Any]:
    """The operator and its backward, registered when first asked for; and what registered them."""
    make: Any = torch.library.Library
    library = make("dovetail_recurrent", "FRAGMENT")
    library.define(f"trained({_LAYERS}) -> Tensor[]")
    library.define(
        f"trained_backward({_LAYERS}, Tensor y, Tensor reserve, Tensor[] grads, bool[] of)"
        " -> Tensor[]"
    )
    library.impl("trained", _trained, "CompositeExplicitAutograd")
    library.impl("trained_backward", _trained_backward, "CompositeExplicitAutograd")
    names = ("dovetail_recurrent::trained", "dovetail_recurrent::trained_backward")
    register: Any = torch.library.register_autograd
    fakes: tuple[Callable[..., Any], ...] = (_trained_fake, gradients_fake)
    for name, fake in zip(names, fakes, strict=True):
        torch.library.register_fake(name, fake, lib=library)
    register(names[0], _backward, setup_context=_setup, lib=library)
    register(names[1], _no_double_backward, lib=library)
    ops: Any = torch.ops.dovetail_recurrent
    return ops.trained.default, ops.trained_backward.default, library


def trained(
    needs: CudnnNeeds,
    kind: str,
    x: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    biases: bool,
    bidirectional: bool,
) -> list[Tensor]:
    """The last layer's outputs of x (steps, batch, features), and the last states."""
    places, total, reserved = list(needs.places), needs.total, needs.reserved
    given = (kind, x, list(state), list(params), biases, bidirectional, places, total, reserved)
    results: list[Tensor] = operators()[0](*given)
    return results[:-1]


def cudnn_needs(
    function: Callable[..., Any],
    kind: str,
    x: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    biases: bool,
    bidirectional: bool,
) -> CudnnNeeds | None:
    """What cuDNN needs for layers of these shapes; None if `function`, PyTorch's own, would not
    call it."""
    flags = torch.backends.cudnn.enabled, torch.backends.cudnn.allow_tf32
    shapes = [tuple(map(int, value.shape)) for value in (x, *state, *params)]
    layers = _Layers.of(kind, state, biases, bidirectional)
    if not torch.cuda.is_available():
        return None
    return _asked(layers, function, tuple(shapes), len(state), x.dtype, x.device, flags)


@functools.cache
def _asked(
    layers: _Layers,
    function: Callable[..., Any],
    shapes: tuple[tuple[int, ...], ...],
    states: int,
    dtype: torch.dtype,
    device: torch.device,
    flags: tuple[bool, bool],
) -> CudnnNeeds | None:
    """By a call of `function`, PyTorch's own, on zeros. (`flags` are what it depends on, too.)"""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.enable_grad():
        made = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
        x, state, params = made[0], made[1 : 1 + states], made[1 + states :]
        mode, hidden, projected, count = layers.numbers()
        try:
            with torch.no_grad():
                buffer = torch._cudnn_rnn_flatten_weight(
                    params, layers.arrays, x.shape[-1], mode, hidden, projected, count, False,
                    layers.bidirectional,
                )  # fmt: skip
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # a type that cuDNN has no layers of
            return None
        places = tuple(int(value.storage_offset()) for value in params)
        given = tuple(state) if layers.kind == "lstm" else state[0]
        weights = [value.requires_grad_() for value in params]
        with torch._C._DisableAutocast():
            results = function(
                x, given, weights, layers.biases, count, 0.0, True, layers.bidirectional, False
            )
        node = results[0].grad_fn
        if node is None or not node.name().startswith("CudnnRnn"):
            return None
        return CudnnNeeds(places, buffer.numel(), node._saved_result3.numel())


def _flat(params: Sequence[Tensor], places: Sequence[int], total: int) -> Tensor:
    """The parameters in one buffer: the one that they lie in, if they lie as cuDNN wants it."""
    first = params[0]
    begin = first.storage_offset() - places[0]
    storage = first.untyped_storage()
    if (
        begin >= 0
        and storage.nbytes() >= (begin + total) * first.element_size()
        and all(
            value.untyped_storage().data_ptr() == storage.data_ptr()
            and value.storage_offset() == begin + place
            and value.is_contiguous()
            for value, place in zip(params, places, strict=True)
        )
    ):
        return first.as_strided((total,), (1,), begin)
    buffer = first.new_zeros(total)
    for value, place in zip(params, places, strict=True):
        buffer[place : place + value.numel()].view(value.shape).copy_(value)
    return buffer


def _trained(
    kind: str,
    x: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    biases: bool,
    bidirectional: bool,
    places: Sequence[int],
    total: int,
    reserved: int,
) -> list[Tensor]:
    layers = _Layers.of(kind, state, biases, bidirectional)
    first, cell = _states(kind, state)
    y, last, last_cell, reserve, _ = torch.ops.aten._cudnn_rnn(
        x, list(params), layers.arrays, _flat(params, places, total), first, cell,
        *layers.numbers(), False, 0.0, True, bidirectional, [], None,
    )  # fmt: skip
    if reserve.numel() != reserved:
        raise RuntimeError(
            f"cuDNN put {reserve.numel()} bytes aside for the backward of recurrent layers that "
            f"were compiled for {reserved}: its settings are others now. Compile them again "
            "(dovetail.reset())"
        )
    return [y, last, *([last_cell] if kind == "lstm" else []), reserve]


def _trained_backward(
    kind: str, x: Tensor, state: Sequence[Tensor], params: Sequence[Tensor], *rest: Any
) -> list[Tensor]:
    """The gradients of those of x, state and params that `of` says."""
    biases, bidirectional, places, total, _, y, reserve, grads, of = rest
    layers = _Layers.of(kind, state, biases, bidirectional)
    first, cell = _states(kind, state)
    of_results = [value.contiguous() for value in grads]
    end = 1 + len(state)
    wanted = [of[0], of[1], kind == "lstm" and of[2], any(of[end:])]
    of_cell = of_results[2] if kind == "lstm" else None
    # cuDNN writes to the reserve, which another backward, or a run to warm up, may read again.
    of_x, of_first, of_first_cell, of_params = torch.ops.aten._cudnn_rnn_backward(
        x, list(params), layers.arrays, _flat(params, places, total), first, cell, y,
        of_results[0], of_results[1], of_cell, *layers.numbers(), False, 0.0, True,
        bidirectional, [], None, reserve.clone(), wanted,
    )  # fmt: skip
    of_state = [of_first, of_first_cell][: len(state)]
    found = [of_x, *of_state, *(of_params if wanted[3] else [None] * len(params))]
    return [one.contiguous() for one, is_wanted in zip(found, of, strict=True) if is_wanted]


def _states(kind: str, state: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """The hidden state and the cell's, as cuDNN's operators take them."""
    return state[0].contiguous(), state[1].contiguous() if kind == "lstm" else None


def _trained_fake(
    kind: str, x: Tensor, state: Sequence[Tensor], params: Sequence[Tensor], *rest: Any
) -> list[Tensor]:
    _, bidirectional, *_, reserved = rest
    width = state[0].shape[2] * (2 if bidirectional else 1)
    results = [x.new_empty((x.shape[0], x.shape[1], width))]
    results += [x.new_empty(tuple(part.shape)) for part in state]
    return [*results, x.new_empty((reserved,), dtype=torch.uint8)]


def gradients_fake(
    kind: str, x: Tensor, state: Sequence[Tensor], params: Sequence[Tensor], *rest: Any
) -> list[Tensor]:
    """The gradients that are wanted, each like what it is of."""
    *_, of = rest
    given = (x, *state, *params)
    return [v.new_empty(tuple(v.shape)) for v, wanted in zip(given, of, strict=True) if wanted]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    kind, x, state, params, *ctx.rest = inputs
    ctx.kind, ctx.states = kind, len(state)
    ctx.of = [value.requires_grad for value in (x, *state, *params)]
    ctx.save_for_backward(x, *state, *params, output[0], output[-1])


def _backward(ctx: Any, grads: Sequence[Tensor]) -> tuple[Any, ...]:
    x, *values, y, reserve = ctx.saved_tensors
    state, params = values[: ctx.states], values[ctx.states :]
    given = (ctx.kind, x, state, params, *ctx.rest, y, reserve, list(grads[:-1]), ctx.of)
    found = iter(operators()[1](*given))
    slopes = [next(found) if wanted else None for wanted in ctx.of]
    end = 1 + ctx.states
    return (None, slopes[0], slopes[1:end], slopes[end:], *([None] * len(ctx.rest)))


def _no_double_backward(ctx: Any, *grads: Any) -> Any:
    raise NotImplementedError(
        "the gradient of a recurrent layer's gradient: cuDNN, which eager calls here, too, has "
        "none. Disable it (torch.backends.cudnn.flags(enabled=False)) around the forward"
    )
