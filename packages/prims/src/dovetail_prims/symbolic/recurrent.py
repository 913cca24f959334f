"""Recurrent layers as one operator for all steps, by PyTorch's own kernels: of symbolic sizes, and
of any where a GPU computes them without gradients.

`torch.lstm`, `gru`, `rnn_tanh` and `rnn_relu` are made of an operation or more for each step, of
sizes in numbers: their graph is for one length, and for one batch. Where a size is symbolic, they
are `dovetail_recurrent::layers` instead: it has a shape for every size, and calls PyTorch's
function when it runs. Its gradients are those of that function, which the backward computes again
to have what its own backward needs; on a GPU, with known sizes, training is cuDNN's own operator
instead (`recurrent_training`). Dropout between layers stands between calls. Cells, which are
one step, are written out; on a GPU always, where PyTorch has fused kernels for them, into which
nothing else can be fused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from dovetail_prims.symbolic.recurrent_training import cudnn_needs, gradients_fake, trained

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "lstm": torch.lstm,
    "gru": torch.gru,
    "rnn_tanh": torch.rnn_tanh,
    "rnn_relu": torch.rnn_relu,
}
_ABOVE_AUTOGRAD = ("AutogradCPU", "AutogradCUDA", "AutogradOther", "ADInplaceOrView")
_FLAGS = "bool biases, bool train, bool bidirectional"
_LAYERS = f"(str kind, Tensor x, Tensor[] state, Tensor[] params, {_FLAGS})"
_GIVEN = (
    f"(str kind, Tensor x, Tensor[] state, Tensor[] params, {_FLAGS}, Tensor[] grads, bool[] of)"
)


@functools.cache
def _operators() -> tuple[OpOverload, OpOverload, Any]:
    """The operator and its backward, registered when first asked for; and what registered them."""
    make: Any = torch.library.Library
    library = make("dovetail_recurrent", "FRAGMENT")
    library.define(f"layers{_LAYERS} -> Tensor[]")
    library.define(f"layers_backward{_GIVEN} -> Tensor[]")
    library.impl("layers", _layers, "CompositeExplicitAutograd")
    library.impl("layers_backward", _layers_backward, "CompositeExplicitAutograd")
    names = ("dovetail_recurrent::layers", "dovetail_recurrent::layers_backward")
    register: Any = torch.library.register_autograd
    fakes: tuple[Callable[..., Any], ...] = (_layers_fake, gradients_fake)
    for name, fake in zip(names, fakes, strict=True):
        torch.library.register_fake(name, fake, lib=library)
    register(names[0], _backward, setup_context=_setup, lib=library)
    register(names[1], _no_double_backward, lib=library)
    ops: Any = torch.ops.dovetail_recurrent
    return ops.layers.default, ops.layers_backward.default, library


# In what follows `flags` are `biases`, `train` and `bidirectional`, as in the schemas.


def _layers(
    kind: str, x: Tensor, state: Sequence[Tensor], params: Sequence[Tensor], *flags: bool
) -> list[Tensor]:
    """What the layers give of (steps, batch, features): the last layer's outputs, and states."""
    return [value.contiguous() for value in _run(kind, x, state, params, *flags)]


def _run(
    kind: str, x: Tensor, state: Sequence[Tensor], params: Sequence[Tensor], *flags: bool
) -> Sequence[Tensor]:
    biases, train, bidirectional = flags
    given = tuple(state) if kind == "lstm" else state[0]
    count = state[0].shape[0] // (2 if bidirectional else 1)
    function = _FUNCTIONS[kind]
    found: Sequence[Tensor] = function(
        x, given, list(params), biases, count, 0.0, train, bidirectional, False
    )
    return found


def _layers_fake(
    kind: str, x: Tensor, state: Sequence[Tensor], params: Sequence[Tensor], *flags: bool
) -> list[Tensor]:
    width = state[0].shape[2] * (2 if flags[-1] else 1)
    results = [x.new_empty((x.shape[0], x.shape[1], width))]
    return results + [x.new_empty(tuple(part.shape)) for part in state]


def _layers_backward(
    kind: str, x: Tensor, state: Sequence[Tensor], params: Sequence[Tensor], *rest: Any
) -> list[Tensor]:
    """The gradients of those of x, state and params that `of` says; `rest` are the flags, `grads`
    and `of`."""
    *flags, grads, of = rest
    guard: Any = torch._C._ForceDispatchKeyGuard
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for name in _ABOVE_AUTOGRAD:
        excluded = excluded.remove(getattr(torch._C.DispatchKey, name))
    with guard(torch._C._dispatch_tls_local_include_set(), excluded), torch.enable_grad():
        given = [
            value.detach().requires_grad_(wanted)
            for value, wanted in zip((x, *state, *params), of, strict=True)
        ]
        end = 1 + len(state)
        results = _run(kind, given[0], given[1:end], given[end:], *flags)
        wanted = [value for value in given if value.requires_grad]
        found = torch.autograd.grad(results, wanted, list(grads))
    return [gradient.contiguous() for gradient in found]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    kind, x, state, params, *flags = inputs
    ctx.kind, ctx.states, ctx.flags = kind, len(state), flags
    ctx.of = [value.requires_grad for value in (x, *state, *params)]
    ctx.save_for_backward(x, *state, *params)


def _backward(ctx: Any, grads: Sequence[Tensor]) -> tuple[Any, ...]:
    x, *rest = ctx.saved_tensors
    state, params = rest[: ctx.states], rest[ctx.states :]
    backward = _operators()[1]
    found = iter(backward(ctx.kind, x, state, params, *ctx.flags, list(grads), ctx.of))
    slopes = [next(found) if wanted else None for wanted in ctx.of]
    end = 1 + ctx.states
    return (None, slopes[0], slopes[1:end], slopes[end:], None, None, None)


def _no_double_backward(ctx: Any, *grads: Any) -> Any:
    raise RuntimeError(
        "the gradient of a recurrent layer's gradient is there for layers of known sizes: "
        "compile the function that has it with dynamic=False"
    )


def _has_gradient(*values: Any) -> bool:
    return torch.is_grad_enabled() and any(value.requires_grad for value in values)


def _form(kind: str) -> Callable[..., Any]:
    """`torch.lstm` and its like of padded sequences with symbolic sizes. On a GPU, where they are
    one call of the library that asks where the weights lie, also with known ones."""

    def form(x: Any, state: Any, params: Any, *options: Any) -> Any:
        # (A packed sequence has its batch sizes second, and no `batch_first`.)
        if len(options) != 6 or not isinstance(params, (list, tuple)) or x.dim() != 3:
            return NotImplemented
        biases, count, dropout, train, bidirectional, batch_first = options
        parts = list(state) if kind == "lstm" else [state]
        known = all(type(n) is int for value in (x, *parts) for n in value.shape)
        if known and x.device.type != "cuda":
            return NotImplemented
        if torch.is_autocast_enabled(x.device.type):
            if x.device.type != "cuda" or not torch.backends.cudnn.enabled:
                return NotImplemented  # its casts are those of PyTorch's own parts
            # Whole layers of cuDNN it casts to this type, whichever it is for.
            x, *rest = (_cast(value, torch.float16) for value in (x, *parts, *params))
            parts, params = rest[: len(parts)], rest[len(parts) :]
        rows = count * (2 if bidirectional else 1)
        batch = x.shape[0 if batch_first else 1]
        for value in parts:
            if value.dim() != 3 or tuple(value.shape[:2]) != (rows, batch):
                raise RuntimeError(
                    f"{kind}: a state is of shape {tuple(value.shape)}, "
                    f"expected ({rows}, {batch}, ...)"
                )
        flags = bool(biases), bool(train), bool(bidirectional)
        y = x.transpose(0, 1) if batch_first else x
        if train and dropout:  # between layers, which are apart then
            found = _with_dropout(dropout, kind, y, parts, params, count, flags, known)
        else:
            found = _at_once(kind, y, parts, params, flags, known)
        if found is None:
            return NotImplemented
        y, *lasts = found
        return (y.transpose(0, 1) if batch_first else y, *lasts)

    return form


def _at_once(
    kind: str,
    x: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    flags: tuple[bool, bool, bool],
    known: bool,
) -> list[Tensor] | None:
    """The outputs and last states of layers without dropout between, `known` sizes or not; None if
    nothing stands for them."""
    biases, train, bidirectional = flags
    # (Not in training, cuDNN has no backward, and eager raises its error.)
    if not (known and train and _has_gradient(x, *state, *params)):
        found: list[Tensor] = _operators()[0](kind, x, list(state), list(params), *flags)
        return found
    form = kind, x, state, params, biases, bidirectional
    needs = cudnn_needs(_FUNCTIONS[kind], *form)
    return None if needs is None else trained(needs, *form)


def _with_dropout(
    dropout: float,
    kind: str,
    x: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    count: int,
    flags: tuple[bool, bool, bool],
    known: bool,
) -> list[Tensor] | None:
    """The same of `count` layers with dropout between."""
    arrays, rows = len(params) // count, state[0].shape[0] // count
    lasts: list[list[Tensor]] = []
    for layer in range(count):
        own = [part[layer * rows : (layer + 1) * rows] for part in state]
        weights = params[layer * arrays : (layer + 1) * arrays]
        found = _at_once(kind, x, own, weights, flags, known)
        if found is None:
            return None
        x, *last = found
        lasts.append(last)
        if layer + 1 < count:
            x = torch.dropout(x, dropout, True)
    return [x, *(torch.cat(part) for part in zip(*lasts, strict=True))]


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """A value as autocast gives it to an operator of low precision."""
    narrow = value is not None and value.is_floating_point() and value.dtype != torch.float64
    return value.to(dtype) if narrow else value


def _cell(step: Callable[[Tensor, Tensor, tuple[Tensor, ...]], Any]) -> Callable[..., Any]:
    """`torch.gru_cell` and its like with symbolic sizes, or on a GPU. `step` takes what the input
    and the hidden state give, of (batch, gates), and the states."""

    def form(x: Any, state: Any, *params: Any, **kwargs: Any) -> Any:
        states = tuple(state) if isinstance(state, (list, tuple)) else (state,)
        if kwargs or len(params) not in (2, 4) or any(v.dim() != 2 for v in (x, *states)):
            return NotImplemented
        known = all(type(n) is int for value in (x, *states) for n in value.shape)
        if known and x.device.type != "cuda":
            return NotImplemented
        if torch.is_autocast_enabled(x.device.type):
            if x.device.type != "cuda":
                return NotImplemented
            dtype = torch.get_autocast_dtype("cuda")  # what it casts whole cells to
            x, *rest = (_cast(value, dtype) for value in (x, *states, *params))
            states, params = tuple(rest[: len(states)]), tuple(rest[len(states) :])
        hidden, (of_input, of_hidden, *biases) = states[0], (*params, None, None)[:4]
        if any(x.shape[0] != value.shape[0] for value in states):
            raise RuntimeError(
                f"Input batch size {x.shape[0]} doesn't match hidden0 batch size {hidden.shape[0]}"
            )
        given = torch.nn.functional.linear(x, of_input, biases[0])
        return step(given, torch.nn.functional.linear(hidden, of_hidden, biases[1]), states)

    return form


def _gru_step(given: Tensor, recalled: Tensor, states: tuple[Tensor, ...]) -> Tensor:
    resets, updates, news = given.chunk(3, 1)
    own_resets, own_updates, own_news = recalled.chunk(3, 1)
    reset, update = (resets + own_resets).sigmoid(), (updates + own_updates).sigmoid()
    new = (news + own_news * reset).tanh()
    return (states[0] - new) * update + new


def _lstm_step(
    given: Tensor, recalled: Tensor, states: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    put, forget, new, out = (given + recalled).chunk(4, 1)
    kept = forget.sigmoid() * states[1] + put.sigmoid() * new.tanh()
    return out.sigmoid() * kept.tanh(), kept


RECURRENT_FORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    **{function: _form(kind) for kind, function in _FUNCTIONS.items()},
    torch.gru_cell: _cell(_gru_step),
    torch.lstm_cell: _cell(_lstm_step),
    torch.rnn_tanh_cell: _cell(lambda given, recalled, _: (given + recalled).tanh()),
    torch.rnn_relu_cell: _cell(lambda given, recalled, _: (given + recalled).relu()),
}
"""The forms of `torch.lstm` and its like for symbolic sizes, by the function."""
