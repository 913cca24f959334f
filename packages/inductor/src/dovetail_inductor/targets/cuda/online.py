"""Which reductions of a kernel form a softmax whose sum follows its maximum in one pass."""

from __future__ import annotations

import torch

from dovetail_inductor.loop_ir.expr import Apply, Load
from dovetail_inductor.scheduler.kernels import FusedKernel


def online_softmax(kernel: FusedKernel) -> dict[str, str]:
    """Sums of `exp(x - max(x))` that can be accumulated in the pass of their maximum: the sum's
    buffer -> the maximum's buffer."""
    by_buffer = {n.buffer: n for n in kernel.nests}
    found: dict[str, str] = {}
    for nest in kernel.nests:
        body = nest.body
        if isinstance(body, Load) and body.buffer in by_buffer:
            body = by_buffer[body.buffer].body
        if not nest.is_sum or not isinstance(body, Apply) or body.op != "exp":
            continue
        (shifted,) = body.args
        if not isinstance(shifted, Apply) or shifted.op != "sub":
            continue
        x, subtracted = shifted.args
        if not isinstance(subtracted, Load) or x.dtype != torch.float32:
            continue
        maximum = by_buffer.get(subtracted.buffer)
        if maximum is not None and maximum.is_maximum and maximum.body.uid == x.uid:
            found[nest.buffer] = maximum.buffer
    return found
