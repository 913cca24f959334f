"""The passes of a looped kernel over its columns: what each computes, and what it reads; which
reductions form a softmax whose sum follows its maximum in one pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dovetail_inductor.loop_ir.expr import Apply, Expr, Load
from dovetail_inductor.loop_ir.handlers import count
from dovetail_inductor.loop_ir.loops import Buffer, LoopNest
from dovetail_inductor.scheduler.kernels import FusedKernel

# A stored value that takes more than this many additions is read back, from a cache or at memory's
# speed, at which that much can be computed meanwhile.
_DEAR = 40


@dataclass
class Pass:
    """What is known while a pass over the columns is written.

    full, memo: the full values of a block of columns, by their buffers, and all values in it.
    totals: the running totals before it.
    later, again: the rows that a later pass reads, and those that an earlier one has read.
    stored: what is read back from memory, where an earlier pass has stored it.
    """

    full: dict[str, str] = field(default_factory=dict)
    memo: dict[int, str] = field(default_factory=dict)
    totals: dict[str, str] = field(default_factory=dict)
    later: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()
    stored: set[str] = field(default_factory=set)


def by_pass(kernel: FusedKernel) -> list[list[LoopNest]]:
    """The nests in the order of computation, those of each pass together."""
    phases = kernel.phases()
    for total, maximum in online_softmax(kernel).items():
        phases[total] = phases[maximum]
    found: list[list[LoopNest]] = [[] for _ in range(1 + max(phases.values(), default=0))]
    for nest in kernel.nests:
        found[phases[nest.buffer]].append(nest)
    return found


def passing(kernel: FusedKernel, nests: Sequence[LoopNest]) -> list[LoopNest]:
    """What a pass over the columns is for. Full values that nobody else reads are computed where
    they are needed."""
    return [
        n
        for n in nests
        if n.reduction is not None or (kernel.is_full(n) and n.buffer not in kernel.internal)
    ]


def computed(
    kernel: FusedKernel, nests: Sequence[LoopNest], stored: Collection[str] = ()
) -> list[LoopNest]:
    """Nests of a pass, with the full values that they need and that are computed for them: those
    that are not `stored`."""
    own = {nest.buffer: nest for nest in kernel.nests if kernel.is_full(nest)}
    found = list(nests)
    seen = {*(nest.buffer for nest in found), *stored}
    for nest in found:
        for name in sorted(nest.reads() - seen):
            if name in own:
                seen.add(name)
                found.append(own[name])
    return found


def factors_of_sum(kernel: FusedKernel, nest: LoopNest) -> tuple[Expr, ...] | None:
    """The two factors of the products of floats that a nest adds up, if that is what it does."""
    if not nest.is_sum or not nest.body.dtype.is_floating_point:
        return None
    own = {n.buffer: n for n in kernel.nests if kernel.is_full(n) and n.scan is None}
    body = nest.body
    while isinstance(body, Load) and body.mask is None and body.buffer in own:
        body = own[body.buffer].body
    return body.args if isinstance(body, Apply) and body.op == "mul" else None


def extreme_with_place(nests: Sequence[LoopNest], nest: LoopNest) -> LoopNest:
    """Of a reduction: the one that finds where the extreme elements are that it gives, if it is
    among `nests`, or itself."""
    if nest.reduction is None or not nest.reduction.is_extreme:
        return nest
    of = (nest.reduction.of_values, nest.vars, nest.reduce_vars)
    for other in nests:
        if other.with_index and other.reduction is not None and other.body is nest.body:
            if (other.reduction.of_values, other.vars, other.reduce_vars) == of:
                return other
    return nest


def is_dear(nest: LoopNest, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a nest's values are read back where they are stored, which must not round them."""
    counted = count([nest.body])
    if nest.reduction is not None:
        return False
    dear = nest.scan is not None or counted.cost - counted.loads > _DEAR
    return dear and buffers[nest.buffer].dtype is nest.body.dtype


def rows_read(kernel: FusedKernel, nests: Sequence[LoopNest]) -> frozenset[str]:
    """Buffers of which a pass reads other elements in each row and column."""
    loads = [load for nest in computed(kernel, passing(kernel, nests)) for load in nest.loads]
    own = kernel.writes()
    return frozenset(ld.buffer for ld in loads if ld.buffer not in own and is_of_rows(kernel, ld))


def is_of_rows(kernel: FusedKernel, load: Load) -> bool:
    """True if each row and column reads another element."""
    variables = load.index.variables()
    return bool(variables & set(kernel.rows) and variables & set(kernel.columns))


def read_again(kernel: FusedKernel) -> frozenset[str]:
    """Rows that more passes than one read."""
    found: set[str] = set()
    seen: set[str] = set()
    for nests in by_pass(kernel):
        rows = rows_read(kernel, nests)
        found |= rows & seen
        seen |= rows
    return frozenset(found)


def reads_before_it_writes(kernel: FusedKernel, nest: LoopNest, name: str) -> bool:
    """Whether a kernel that goes through rows reads the buffer `name` only at the points that
    `nest` writes, by one load, and in no pass after that which writes them. (Passes end when all
    threads of a program have what they reduced.)"""
    loads = {load.uid: load for one in kernel.nests for load in one.loads if load.buffer == name}
    if len(loads) != 1 or not kernel.is_full(nest):
        return False
    (load,) = loads.values()
    if load.mask is not None or load.index != nest.index:
        return False
    reading = writing = -1
    for number, nests in enumerate(by_pass(kernel)):
        if any(name in one.reads() for one in computed(kernel, passing(kernel, nests))):
            reading = number
        if nest in nests:
            writing = number
    return reading <= writing


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
