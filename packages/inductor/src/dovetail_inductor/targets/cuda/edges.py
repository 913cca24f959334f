"""Where a mask may be wider than what it stands for, so that loads stay vectors.

A vector of eight elements is loaded at once only if its mask is the same for all eight: `r < 50257`
never is, at the end of a row. If the memory goes on there (the row is padded, say), the mask may
let the whole last vector through; what it reads beyond is masked again where values are used.
"""

from __future__ import annotations

from dovetail_inductor.loop_ir.expr import Apply, Constant, Expr, IndexValue
from dovetail_inductor.loop_ir.index import Index, Var
from dovetail_inductor.loop_ir.loops import Buffer
from dovetail_inductor.loop_ir.sizes import any_symbolic
from dovetail_inductor.targets.cuda.tiling import Axis

VECTOR = 8  # elements: 16 bytes of the narrow types


def load_condition(axis: Axis, index: Index, buffer: Buffer) -> str:
    """The condition under which a load that depends on `axis` touches memory."""
    if len(axis.vars) != 1 or any_symbolic((axis.size, buffer.extent)):
        return axis.mask
    rounded = -(-axis.size // VECTOR) * VECTOR
    past = rounded - axis.size
    if past == 0 or axis.block % VECTOR or index.indirects():
        return axis.mask
    (var,) = axis.vars
    if index.coefficient(var) != 1 or not _begins_vectors(index, var):
        return axis.mask
    if any_symbolic(index.bounds) or index.bounds[1] + past >= buffer.extent:
        return axis.mask
    return f"({axis.name} < {rounded})"


def _begins_vectors(index: Index, along: Var) -> bool:
    """True if the address is a multiple of a vector wherever `along` is."""
    others = [c for atom, c in index.terms if atom != along]
    return not any_symbolic(others) and all(c % VECTOR == 0 for c in (*others, index.const))


def is_upper_edge(mask: Expr, index: Index, buffer: Buffer) -> bool:
    """True if the mask only cuts off the end of a loop, by an eighth at most, and the load may as
    well touch memory there."""
    if not isinstance(mask, Apply) or mask.op != "lt" or index.indirects():
        return False
    position, limit = mask.args
    if not isinstance(position, IndexValue) or not isinstance(limit, Constant):
        return False
    if len(position.index.terms) != 1 or position.index.const != 0:
        return False
    atom, coefficient = position.index.terms[0]
    if not isinstance(atom, Var) or coefficient != 1 or any_symbolic((atom.size, buffer.extent)):
        return False
    low, high = index.bounds
    if any_symbolic((low, high)) or 8 * limit.value < 7 * atom.size:
        return False
    return low >= 0 and high < buffer.extent
