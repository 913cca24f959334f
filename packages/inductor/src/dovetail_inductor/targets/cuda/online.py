"""Which reductions of a kernel form a softmax whose sum follows its maximum in one pass."""

from __future__ import annotations

import torch

from dovetail_inductor.loop_ir.expr import Apply, Expr, Load
from dovetail_inductor.scheduler.kernels import FusedKernel


def online_softmax(kernel: FusedKernel) -> dict[str, str]:
    """Sums of `exp(x - max(x))` that can be accumulated in the pass of their maximum: the sum's
    buffer -> the maximum's buffer."""
    by_buffer = {n.buffer: n for n in kernel.nests}
    found: dict[str, str] = {}
    for nest in kernel.nests:
        shifted = _shifted(kernel, nest.buffer)
        if not nest.is_sum or shifted is None:
            continue
        x, subtracted = shifted
        if isinstance(subtracted, Apply) and subtracted.op == "maximum":
            subtracted = subtracted.args[0]  # of a piece (see `split_reductions`)
        if not isinstance(subtracted, Load) or x.dtype != torch.float32:
            continue
        maximum = by_buffer.get(subtracted.buffer)
        if maximum is not None and maximum.is_maximum and maximum.body.uid == x.uid:
            found[nest.buffer] = maximum.buffer
    return found


def subtracted_in(kernel: FusedKernel, total: str) -> Expr:
    """What a sum of `online_softmax` subtracts from its elements."""
    shifted = _shifted(kernel, total)
    assert shifted is not None
    return shifted[1]


def _shifted(kernel: FusedKernel, total: str) -> tuple[Expr, Expr] | None:
    """The x and the y of a nest of `exp(x - y)`."""
    by_buffer = {n.buffer: n for n in kernel.nests}
    body = by_buffer[total].body
    if isinstance(body, Load) and body.buffer in by_buffer:
        body = by_buffer[body.buffer].body
    if not isinstance(body, Apply) or body.op != "exp":
        return None
    (shifted,) = body.args
    if not isinstance(shifted, Apply) or shifted.op != "sub":
        return None
    return shifted.args[0], shifted.args[1]
