"""The passes of a looped kernel over its columns: what each computes, and what it reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dovetail_inductor.loop_ir.expr import Apply, Expr, Load
from dovetail_inductor.loop_ir.loops import LoopNest
from dovetail_inductor.scheduler.kernels import FusedKernel
from dovetail_inductor.targets.cuda.online import online_softmax


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


__all__ = [
    "by_pass", "computed", "factors_of_sum", "is_of_rows", "passing", "read_again",
    "reads_before_it_writes", "rows_read",
]  # fmt: skip
