"""Which quotients of floats may be off by their last digits.

A division that rounds as IEEE says takes several times the instructions of the GPU's fast one,
which is up to two units off. Where a quotient is only multiplied, chosen and stored in 2 bytes,
that is far below the rounding of the store. A sum may cancel all but the last digits, and what
rounds or compares makes much of them: there quotients are exact.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail_inductor.loop_ir.expr import Apply, Expr, walk
from dovetail_inductor.loop_ir.loops import Buffer
from dovetail_inductor.scheduler.kernels import FusedKernel

QUOTIENTS = ("div", "reciprocal")

# What keeps a small relative error small.
_KEEPING = ("mul", "div", "reciprocal", "neg", "abs", "maximum", "minimum", "relu", "where", "sqrt",
            "rsqrt", "round_f16", "round_bf16")  # fmt: skip


def rough_quotients(kernel: FusedKernel, buffers: Mapping[str, Buffer]) -> frozenset[int]:
    """The uids of the quotients of a kernel that need not be exact."""
    read = frozenset().union(*(nest.reads() for nest in kernel.nests))
    quotients: set[int] = set()
    exact: set[int] = set()  # what has to be: expressions, by uid
    for nest in kernel.nests:
        nodes = list(walk(nest.values))
        quotients.update(n.uid for n in nodes if isinstance(n, Apply) and n.op in QUOTIENTS)
        stored = nest.reduction is None and nest.scan is None and nest.scatter is None
        rounded = stored and buffers[nest.buffer].dtype.itemsize == 2 and nest.buffer not in read
        exact.update(value.uid for value in nest.values[1 if rounded else 0 :])
        for node in reversed(nodes):  # what is made of a node stands before it
            exact.update(a.uid for a in node.args if not _keeps(node, a) or node.uid in exact)
    return frozenset(quotients - exact)


def _keeps(node: Expr, operand: Expr) -> bool:
    """Whether `node` makes no more of an error of an operand than that was."""
    if not isinstance(node, Apply) or node.op not in _KEEPING:
        return isinstance(node, Apply) and node.op == "cast" and node.dtype.is_floating_point
    return node.op != "where" or operand is not node.args[0]
