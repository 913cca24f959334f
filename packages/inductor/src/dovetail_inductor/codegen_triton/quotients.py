"""Which quotients of floats may be off by their last digits.

A division that rounds as IEEE says takes several times the instructions of the GPU's fast one,
which is up to two units off. Where a quotient is only multiplied, chosen and stored in 2 bytes,
that is far below the rounding of the store; where all that a kernel reads are numbers of 2 bytes
and it only adds up what it makes of quotients, it is far below theirs. A single difference may
cancel all but the last digits, and what rounds or compares makes much of them: there quotients are
exact.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail_inductor.loop_ir.expr import Apply, Constant, Expr, Load, walk
from dovetail_inductor.loop_ir.loops import Buffer, LoopNest
from dovetail_inductor.scheduler.kernels import FusedKernel

QUOTIENTS = ("div", "reciprocal")

# What keeps a small relative error small.
_KEEPING = frozenset(
    ("mul", "div", "reciprocal", "neg", "abs", "maximum", "minimum", "relu", "where", "sqrt",
     "rsqrt", "round_f16", "round_bf16")
)  # fmt: skip
# What, besides, keeps an error small beside the largest of its operands, and of 1.
_SMOOTH = _KEEPING | frozenset(
    ("add", "sub", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "tanh",
     "erf")
)  # fmt: skip
_COMPARING = ("eq", "ne", "lt", "le", "gt", "ge")


def rough_quotients(kernel: FusedKernel, buffers: Mapping[str, Buffer]) -> frozenset[int]:
    """The uids of the quotients of a kernel that need not be exact."""
    quotients: set[int] = set()
    exact: set[int] = set()  # what has to be: expressions, by uid
    exact_buffers: set[str] = set()  # and results that the kernel reads itself
    of_halves = _reads_halves_only(kernel, buffers)
    kept: dict[str, frozenset[str]] = {}  # by result that the kernel reads: what may be made of it
    for nest in reversed(kernel.nests):
        nodes = list(walk(nest.values))
        quotients.update(n.uid for n in nodes if isinstance(n, Apply) and n.op in QUOTIENTS)
        summed = nest.reduction == "sum" and of_halves
        keeping = _SMOOTH if summed else kept.get(nest.buffer, _KEEPING)
        if nest.buffer not in kernel.internal and not summed:
            keeping = _KEEPING
        if nest.buffer in exact_buffers or not (summed or _ends_rough(kernel, nest, buffers)):
            exact.add(nest.body.uid)
        exact.update(value.uid for value in nest.values[1:])
        for node in reversed(nodes):  # what is made of a node stands before it
            if isinstance(node, Load):
                kept[node.buffer] = kept.get(node.buffer, keeping) & keeping
                if node.uid in exact:
                    exact_buffers.add(node.buffer)
            if _is_settled(node):
                continue
            exact.update(a.uid for a in node.args if not _keeps(node, a, keeping))
            if node.uid in exact:
                exact.update(a.uid for a in node.args)
    return frozenset(quotients - exact)


def _reads_halves_only(kernel: FusedKernel, buffers: Mapping[str, Buffer]) -> bool:
    """Whether every float that a kernel reads from memory has 2 bytes."""
    read = [buffers[name].dtype for name in kernel.reads() if name in buffers]
    return all(dtype.itemsize == 2 for dtype in read if dtype.is_floating_point)


def _ends_rough(kernel: FusedKernel, nest: LoopNest, buffers: Mapping[str, Buffer]) -> bool:
    """Whether the last digits of a nest's values are lost where it stores them, if it does."""
    if nest.reduction is not None or nest.scan is not None or nest.scatter is not None:
        return False
    return nest.buffer in kernel.internal or buffers[nest.buffer].dtype.itemsize == 2


def _is_settled(node: Expr) -> bool:
    """Whether a comparison comes out the same for a quotient that is off by its last digits."""
    if not isinstance(node, Apply) or node.op not in (*_COMPARING, "isnan"):
        return False
    other = node.args[-1]
    return other is node.args[0] or (isinstance(other, Constant) and other.value == 0)


def _keeps(node: Expr, operand: Expr, keeping: frozenset[str]) -> bool:
    """Whether `node` makes no more of an error of an operand than that was."""
    if not isinstance(node, Apply) or node.op not in keeping:
        return isinstance(node, Apply) and node.op == "cast" and node.dtype.is_floating_point
    return node.op != "where" or operand is not node.args[0]
