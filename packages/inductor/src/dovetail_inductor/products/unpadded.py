"""The pass `write_unpadded`: large products that the library would compute with padded rows, for
another kernel to copy without the padding, are computed by a kernel of ours that writes the rows as
they are wanted.

A head of 50257 classes is the common case: its logits are then in memory once, not twice.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail_inductor.loop_ir.expr import Apply, Builder, Constant, Expr, IndexValue, Load
from dovetail_inductor.loop_ir.index import Index, linear, variable
from dovetail_inductor.loop_ir.loops import Buffer, ExternCall, LoopNest, Strided
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.products.find_products import is_ours_to_compute, with_forms
from dovetail_inductor.products.products import Form, Product
from dovetail_inductor.scheduler.kernels import FusedKernel, KernelGraph, ProductTiles, Step
from dovetail_inductor.scheduler.lifetimes import live_bytes

# On an H100 two programs with such tiles share a multiprocessor: one writes while the other
# multiplies. Measured with as many rows as a head has, that takes as long as the library and the
# copy where 768 numbers are multiplied and 7% more where 1536 are.
TILES = ProductTiles(128, 128, 64, 8, 3)
LEAST_TILES = 8 * 132
MOST_MULTIPLIED = 1024
# Where a loss reads the result anyway, which could then copy it, the library is faster. So the
# memory must count: this part of what the call needs at its peak.
LEAST_OF_PEAK = 0.3


def write_unpadded(graph: KernelGraph, options: InductorOptions) -> KernelGraph:
    """Put one kernel in the place of a padded product and the copy of its part that is wanted,
    where that saves much memory and takes hardly longer."""

    forms = []
    for position, step in enumerate(graph.steps):
        if not isinstance(step, ExternCall) or step.op != "aten::mm.out":
            continue
        if is_ours_to_compute(step, graph, options.target_of):
            form = _in_place(graph, position)
            forms += [] if form is None else [form]
    return with_forms(graph, forms) if forms else graph


def _in_place(graph: KernelGraph, position: int) -> Form | None:
    """The product at `position` written where one of its readers copies it to, and all its readers
    reading that; None if none copies, or the library is to be preferred."""
    whole = Product(graph, position).out
    if any(isinstance(o, Strided) and o.buffer == whole.name for o in graph.outputs):
        return None
    readers: dict[int, FusedKernel] = {}
    for at, step in enumerate(graph.steps):
        if whole.name in step.reads():
            if not isinstance(step, FusedKernel):
                return None
            readers[at] = step
    for at, reader in readers.items():
        for nest in reader.nests:
            columns = _copied_columns(nest, whole)
            if columns is None or nest.buffer in reader.internal:
                continue
            alone = FusedKernel(nest.buffer, nest.vars, (), (nest,))
            apart = replace(graph, steps=(*graph.steps[:at], alone, *graph.steps[at + 1 :]))
            narrow, unused = _narrowed(graph, position, columns)
            product = Product(apart, position, at, position, at, narrow)
            pays = _is_fast(product) and _saves(graph, graph.buffers[nest.buffer])
            form = product.in_one(TILES) if pays else None
            others = _reading_the_copy(graph.builder, readers, whole, nest)
            if form is not None and others is not None:
                placed = {**others, **form.placed}
                return Form(placed, frozenset({position, *readers, *unused}), form.buffers)
    return None


def _narrowed(graph: KernelGraph, position: int, columns: int) -> tuple[Strided, tuple[int, ...]]:
    """The first columns of the right matrix of the product at `position`, in the memory that they
    were padded from if that can be, and the kernel that nobody needs then."""
    right = Product(graph, position).operands[1]
    narrow = replace(right, shape=(right.shape[0], columns))
    users = [at for at, step in enumerate(graph.steps) if right.buffer in step.reads()]
    for at, step in enumerate(graph.steps[:position]):
        if isinstance(step, FusedKernel) and step.writes() == {right.buffer}:
            source = _padded_from(step.nests[0], narrow)
            if (
                source is not None
                and graph.buffers[source].dtype == graph.buffers[right.buffer].dtype
            ):
                return replace(narrow, buffer=source), (at,) if users == [position] else ()
    return narrow, ()


def _padded_from(nest: LoopNest, turned: Strided) -> str | None:
    """The buffer that a nest copies to the same places of another, with zeros after its last rows,
    if the transpose of a matrix that was stored by rows has none of those."""
    match nest.body:
        case Apply(
            op="where",
            args=(
                Apply(op="lt", args=(IndexValue(index=row), Constant(value=end))),
                Load() as load,
                Constant(value=0),
            ),
        ):
            length = turned.stride[1]
            rows = [v for v in nest.vars if variable(v) == row]
            columns = [v for v in nest.vars if variable(v) != row]
            in_rows = len(rows) == len(columns) == 1 and turned.stride[0] == 1
            if not in_rows or turned.offset or turned.shape[1] > end:
                return None
            place = linear([variable(rows[0]), variable(columns[0])], (length, 1))
            return load.buffer if load.index == nest.index == place else None
    return None


def _copied_columns(nest: LoopNest, whole: Buffer) -> int | None:
    """How many of the first columns of a matrix a nest copies, if it does nothing else."""
    body = nest.body
    if not isinstance(body, Load) or body.buffer != whole.name or body.mask is not None:
        return None
    for columns in nest.vars:
        rows = tuple(v for v in nest.vars if v is not columns)
        if len(rows) == 1 and body.index == linear(map(variable, (*rows, columns)), whole.stride):
            return columns.size if columns.size < whole.shape[1] else None
    return None


def _reading_the_copy(
    builder: Builder, readers: dict[int, FusedKernel], whole: Buffer, copy: LoopNest
) -> dict[int, tuple[Step, ...]] | None:
    """The readers of a matrix, reading its copied part instead; None if one may read more."""
    columns = next(v for v in copy.vars if _copied_columns(copy, whole) == v.size)
    (rows,) = (v for v in copy.vars if v is not columns)
    beyond = False

    def element(load: Load, index: Index, mask: Expr | None) -> Expr:
        nonlocal beyond
        if load.buffer != whole.name:
            return builder.load(load.buffer, index, load.dtype, mask)
        row, column = (index.floordiv(whole.stride[0]), index.mod(whole.stride[0]))
        beyond |= column.bounds[1] >= columns.size
        place = copy.index.substitute(lambda v: row if v == rows else column, lambda e: e)
        return builder.load(copy.buffer, place, load.dtype, mask)

    found: dict[int, tuple[Step, ...]] = {}
    for at, reader in readers.items():
        nests = (n for n in reader.nests if n is not copy)
        moved = tuple(nest.renamed(builder, element=element) for nest in nests)
        found[at] = (replace(reader, nests=moved),) if moved else ()
    return None if beyond else found


def _is_fast(product: Product) -> bool:
    _, m, n, k = product.sizes
    return -(-m // TILES.m) * -(-n // TILES.n) >= LEAST_TILES and k <= MOST_MULTIPLIED


def _saves(graph: KernelGraph, copy: Buffer) -> bool:
    return copy.nbytes >= LEAST_OF_PEAK * live_bytes(graph).bytes
