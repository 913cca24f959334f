"""Attention with a function of its scores: `softmax(f(q @ k.mT)) @ v` as one operator.

`dovetail_attention::forward` takes q [batch, heads, m, d], k [batch, key heads, n, d] and v [batch,
key heads, n, e], where each head of keys serves as many neighbouring heads of queries, and the
function as text (`graph_text`). That graph takes the scores, in float32 [batch, heads, m, n], what
else it reads (`captured`), and what stands for the gradient of what it makes of the scores; it
gives what it makes of them, and their gradient. It is a function of one score and its place: of no
other score. `empty` is what a row gets of whose scores nothing is left: 0 or NaN.

It gives the rows and, for each, the logarithm of the sum of its scores' exponentials. Its gradients
are `dovetail_attention::backward`, which gets them (of the rows' gradients, and `delta`, the sum
along each row of its elements times their gradients, less the gradient of the logarithm). What is
captured gets none.

Here are the operators' plain meaning and their shapes; a compiler has kernels for them that do not
keep scores in memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from dovetail_prims.graphs.graph_text import run_text

NAMESPACE = "dovetail_attention"  # of the operators

_FORWARD = "(Tensor q, Tensor k, Tensor v, Tensor[] captured, str score, float empty)"
_BACKWARD = (
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor sums, Tensor delta, Tensor[] captured, "
    "str score, float empty)"
)


@functools.cache
def attention_operators() -> tuple[OpOverload, OpOverload, Any]:
    """The operator and its backward, registered when first asked for; and what registered them."""
    make: Any = torch.library.Library
    library = make(NAMESPACE, "FRAGMENT")
    library.define(f"forward{_FORWARD} -> (Tensor, Tensor)")
    library.define(f"backward{_BACKWARD} -> (Tensor, Tensor, Tensor)")
    library.impl("forward", _forward, "CompositeExplicitAutograd")
    library.impl("backward", _backward, "CompositeExplicitAutograd")
    names = (f"{NAMESPACE}::forward", f"{NAMESPACE}::backward")
    fakes: tuple[Callable[..., Any], ...] = (_forward_fake, _backward_fake)
    for name, fake in zip(names, fakes, strict=True):
        torch.library.register_fake(name, fake, lib=library)
    register: Any = torch.library.register_autograd
    register(names[0], _gradients, setup_context=_setup, lib=library)
    register(names[1], _no_double_backward, lib=library)
    ops: Any = torch.ops.dovetail_attention
    return ops.forward.default, ops.backward.default, library


def scored_attention(
    q: Tensor, k: Tensor, v: Tensor, captured: Sequence[Tensor], score: str, empty: float
) -> tuple[Tensor, Tensor]:
    """The operator: rows, and the logarithm of the sum of each one's exponentials."""
    rows, sums = attention_operators()[0](q, k, v, list(captured), score, empty)
    return rows, sums


def _repeated(heads: int, kept: Tensor) -> Tensor:
    """Keys or values, in float32, once for each head of queries."""
    return kept.float().repeat_interleave(heads // kept.shape[1], 1)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, captured: Sequence[Tensor], score: str, empty: float
) -> tuple[Tensor, Tensor]:
    scores = q.float() @ _repeated(q.shape[1], k).mT
    (made,) = run_text(score, [scores, *captured], 1)
    sums = torch.logsumexp(made.expand_as(scores).float(), -1)
    shares = torch.exp(made - _start(sums, empty).unsqueeze(-1))
    out = shares.to(v.dtype).float() @ _repeated(q.shape[1], v)
    return _laid_out_like(q, v.shape[-1]).copy_(out), sums


def _start(sums: Tensor, empty: float) -> Tensor:
    """What is taken from scores: of a row of which nothing is left NaN comes of it, or 0."""
    return sums if math.isnan(empty) else torch.where(sums == -math.inf, 0.0, sums)


def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sums: Tensor,
    delta: Tensor,
    captured: Sequence[Tensor],
    score: str,
    empty: float,
) -> tuple[Tensor, Tensor, Tensor]:
    heads = q.shape[1]
    keys = _repeated(heads, k)
    scores = q.float() @ keys.mT
    (made,) = run_text(score, [scores, *captured], 1)
    shares = torch.exp(made - _start(sums, empty).unsqueeze(-1))
    of_made = shares * (grad.float() @ _repeated(heads, v).mT - delta.unsqueeze(-1))
    _, of_scores = run_text(score, [scores, *captured, of_made])
    dq = of_scores.to(q.dtype).float() @ keys
    dk = of_scores.to(q.dtype).float().mT @ q.float()
    dv = shares.to(q.dtype).float().mT @ grad.float()
    return (
        _laid_out_like(q).copy_(dq),
        _laid_out_like(k).copy_(_by_key_head(dk, k)),
        _laid_out_like(v).copy_(_by_key_head(dv, v)),
    )


def _by_key_head(gradient: Tensor, like: Tensor) -> Tensor:
    """The sums of what the heads give that share those of `like`."""
    batch, heads, n, d = like.shape
    return gradient.reshape(batch, heads, -1, n, d).sum(2)


def _laid_out_like(x: Tensor, width: int | None = None) -> Tensor:
    """An empty tensor like `x` (but for `width`, the length of its rows) with its dimensions in
    memory in the order of those of `x`, but its last one innermost."""
    shape = [*x.shape[:-1], x.shape[-1] if width is None else width]
    strides = x.stride()
    made = [1] * len(shape)
    step = shape[-1]
    for d in sorted(range(len(shape) - 1), key=lambda d: (strides[d], -d)):
        made[d] = step
        step = step * shape[d]
    return x.new_empty_strided(shape, made)


def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, captured: Sequence[Tensor], score: str, empty: float
) -> tuple[Tensor, Tensor]:
    return _laid_out_like(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


def _backward_fake(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _laid_out_like(q), _laid_out_like(k), _laid_out_like(v)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, captured, ctx.score, ctx.empty = inputs
    ctx.save_for_backward(q, k, v, *output, *captured)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, of_rows: Tensor | None, of_sums: Tensor | None) -> tuple[Any, ...]:
    q, k, v, rows, sums, *captured = ctx.saved_tensors
    if of_rows is None:
        if of_sums is None:
            return (None, None, None, [None] * len(captured), None, None)
        of_rows = torch.zeros_like(rows)
    delta = (rows.float() * of_rows.float()).sum(-1)
    if of_sums is not None:
        delta = delta - of_sums
    backward = attention_operators()[1]
    found = backward(of_rows, q, k, v, sums, delta, captured, ctx.score, ctx.empty)
    return (*found, [None] * len(captured), None, None)


def _no_double_backward(ctx: Any, *grads: Any) -> Any:
    raise RuntimeError("attention with a function of its scores has no second derivative")
