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
from dovetail_inductor.loop_ir.ops import HALVES, ROUNDING
from dovetail_inductor.scheduler.kernels import FusedKernel
from dovetail_inductor.targets.cuda.triton_ops import NARROW

QUOTIENTS = ("div", "reciprocal")

# What keeps a small relative error small.
_KEEPING = frozenset(
    ("mul", "div", "reciprocal", "neg", "abs", "maximum", "minimum", "relu", "where", "sqrt",
     "rsqrt", *(ROUNDING[half] for half in HALVES))
)  # fmt: skip
# What, besides, keeps an error small beside the largest of its operands, and of 1.
_SMOOTH = _KEEPING | frozenset(
    ("add", "sub", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "tanh",
     "erf")
)  # fmt: skip
_COMPARING = ("eq", "ne", "lt", "le", "gt", "ge")


# What must be right of a value, each more than the one before: its size beside what it is made of
# and added to; its first digits; whether it is zero, too; all digits.
_SIZE, _DIGITS, _ZERO, _EXACT = range(4)


def rough_quotients(kernel: FusedKernel, buffers: Mapping[str, Buffer]) -> frozenset[int]:
    """The uids of the quotients of a kernel that need not be exact."""
    needs: dict[int, int] = {}  # what must be right of each expression, by uid
    of_buffers: dict[str, int] = {}  # and of results that the kernel reads itself
    quotients: set[int] = set()
    of_halves = _reads_halves_only(kernel, buffers)

    def need(expr: Expr, what: int) -> None:
        needs[expr.uid] = max(needs.get(expr.uid, _SIZE), what)

    for nest in reversed(kernel.nests):
        read = of_buffers.get(nest.buffer, _SIZE)
        need(nest.body, _needed(nest, read, kernel, buffers, of_halves))
        for place in nest.values[1:]:
            need(place, _EXACT)
        for node in reversed(list(walk(nest.values))):  # what is made of a node stands before it
            own = needs.get(node.uid, _SIZE)
            if isinstance(node, Load):
                of_buffers[node.buffer] = max(of_buffers.get(node.buffer, _SIZE), own)
            elif isinstance(node, Apply) and node.op in QUOTIENTS:
                quotients.add(node.uid)
            for operand in node.args:
                need(operand, _of_operand(node, operand, own))
    return frozenset(uid for uid in quotients if needs.get(uid, _SIZE) < _EXACT)


def _reads_halves_only(kernel: FusedKernel, buffers: Mapping[str, Buffer]) -> bool:
    """Whether every float that a kernel reads from memory has 2 bytes."""
    read = [buffers[name].dtype for name in kernel.reads() if name in buffers]
    return all(dtype.itemsize == 2 for dtype in read if dtype.is_floating_point)


def _needed(
    nest: LoopNest, read: int, kernel: FusedKernel, buffers: Mapping[str, Buffer], of_halves: bool
) -> int:
    """What must be right of a nest's values, if `read` must be of its results where the kernel
    itself reads them."""
    if nest.is_sum and of_halves:
        return _EXACT if read >= _ZERO else _SIZE  # its own rounding is as large
    if nest.reduction is not None or nest.scan is not None or nest.scatter is not None:
        return _EXACT
    if nest.buffer in kernel.internal:
        return read
    return max(read, _DIGITS if buffers[nest.buffer].dtype.itemsize == 2 else _EXACT)


def _of_operand(node: Expr, operand: Expr, own: int) -> int:
    """What must be right of an operand, if `own` must be of what `node` makes of it."""
    if not isinstance(node, Apply):
        return _EXACT  # a place, or a mask
    if node.op in _COMPARING or node.op == "isnan":
        other = node.args[-1]
        if other is node.args[0]:
            return _SIZE  # whether it is a NaN
        return _ZERO if isinstance(other, Constant) and other.value == 0 else _EXACT
    keeps = node.op in _KEEPING or (node.op == "cast" and node.dtype.is_floating_point)
    if keeps and not (node.op == "where" and operand is node.args[0]):
        return own
    return _SIZE if node.op in _SMOOTH and node.op != "where" and own == _SIZE else _EXACT


def stores_narrow(kernel: FusedKernel, buffers: Mapping[str, Buffer]) -> bool:
    """True if all that is made of transcendental functions is stored in 2 bytes."""
    return all(
        nest.reduction is None and buffers[nest.buffer].dtype.itemsize == 2
        for nest in kernel.nests
        if any(isinstance(n, Apply) and n.op in NARROW for n in walk(nest.values))
    )
