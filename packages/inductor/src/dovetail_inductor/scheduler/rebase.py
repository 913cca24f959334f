"""Kernels that read a buffer from some element on are told where it begins by their pointer.

The steps of an unrolled loop, and the parts of a tensor that was split, are computed alike but for
where they read. With the place in the pointer instead of the text they are one kernel, which is
compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dovetail_inductor.loop_ir.expr import Builder, Expr, Load
from dovetail_inductor.loop_ir.index import Index
from dovetail_inductor.loop_ir.loops import Buffer, Strided
from dovetail_inductor.loop_ir.sizes import is_symbolic
from dovetail_inductor.scheduler.kernels import CombinedKernel, FusedKernel

_ALIGNMENT = 16  # bytes: what a pointer is known to be a multiple of, it still is


def rebase(
    kernel: FusedKernel,
    builder: Builder,
    buffers: Mapping[str, Buffer],
    name_of: Callable[[Strided], str],
) -> tuple[FusedKernel, dict[str, Buffer]]:
    """The kernel with loads that begin where the first of them in a buffer does, and the buffers
    that stand for those parts, named by `name_of`."""
    starts = _starts(kernel, buffers)
    if not starts:
        return kernel, {}
    names: dict[str, str] = {}
    parts: dict[str, Buffer] = {}
    for name, start in starts.items():
        buffer = buffers[name]
        length = buffer.extent - start
        part = name_of(Strided(name, (length,), (1,), start, buffer.dtype))
        names[name] = part
        parts[part] = replace(
            buffer, name=part, shape=(length,), stride=(1,), offset=buffer.offset + start
        )

    def element(load: Load, index: Index, mask: Expr | None) -> Expr:
        if load.buffer not in starts:
            return builder.load(load.buffer, index, load.dtype, mask)
        return builder.load(names[load.buffer], index - starts[load.buffer], load.dtype, mask)

    nests = tuple(nest.renamed(builder, element=element) for nest in kernel.nests)
    return replace(kernel, nests=nests), parts


def rebase_combined(
    combined: CombinedKernel,
    builder: Builder,
    buffers: Mapping[str, Buffer],
    name_of: Callable[[Strided], str],
) -> tuple[CombinedKernel, dict[str, Buffer]]:
    """The same for each of the kernels in one launch that are no products."""
    kernels = []
    parts: dict[str, Buffer] = {}
    for kernel in combined.kernels:
        if isinstance(kernel, FusedKernel):
            kernel, own = rebase(kernel, builder, buffers, name_of)
            parts |= own
        kernels.append(kernel)
    return replace(combined, kernels=tuple(kernels)), parts


def _starts(kernel: FusedKernel, buffers: Mapping[str, Buffer]) -> dict[str, int]:
    """Where the kernel's loads of each buffer begin, if that is a known place within it.

    Not of what the kernel writes: its loads and stores must go by one name.
    """
    found: dict[str, int] = {}
    unknown = kernel.writes() | {n.scatter.over for n in kernel.nests if n.scatter is not None}
    for nest in kernel.nests:
        for load in nest.loads:
            if is_symbolic(load.index.const):
                unknown.add(load.buffer)
            else:
                const = load.index.const
                found[load.buffer] = min(found.get(load.buffer, const), const)
    starts: dict[str, int] = {}
    for name, start in found.items():
        buffer = buffers.get(name)
        if name in unknown or buffer is None or buffer.is_symbolic or is_symbolic(buffer.offset):
            continue
        aligned = start - start % max(1, _ALIGNMENT // buffer.dtype.itemsize)
        if 0 < aligned < buffer.extent:
            starts[name] = aligned
    return starts
