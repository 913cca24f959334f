"""Which tiles of a product are worth measuring, for an H100's multiprocessors and memories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dovetail_inductor.options import Gpu
from dovetail_inductor.scheduler.kernels import ProductTiles, covering

MOST = 10  # candidates of one product
SHARED_BYTES = 220 * 1024  # of tiles on their way
SHARED_LIMIT = 227 * 1024 - 1024  # of all that a program keeps, but for barriers
MOST_PARTS = 16

Table = Sequence[tuple[int, ...]]

# Rows few enough that the weights are read once, at the memory's speed: much on its way, in as many
# programs as fill the GPU.
_FEW_ROWS = (
    (16, 32, 128, 4, 6), (16, 32, 256, 4, 4), (16, 64, 128, 4, 5), (16, 64, 256, 4, 4),
    (16, 128, 128, 4, 4), (16, 16, 256, 2, 6), (16, 128, 64, 4, 6),
)  # fmt: skip
_SOME_ROWS = (
    (64, 64, 64, 4, 5), (64, 64, 128, 4, 4), (64, 32, 128, 4, 5), (32, 64, 128, 4, 5),
    (32, 32, 128, 4, 5), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4), (128, 128, 64, 8, 4),
    (128, 32, 128, 4, 4),
)  # fmt: skip
_MANY_ROWS = (
    (128, 128, 64, 8, 4), (128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 4, 3),
    (128, 128, 64, 4, 4), (128, 256, 64, 8, 4), (256, 128, 64, 8, 4), (128, 64, 64, 4, 4),
    (64, 256, 64, 4, 4), (64, 128, 64, 4, 5), (128, 128, 128, 8, 3), (64, 64, 64, 4, 5),
    (256, 64, 64, 8, 4),
)  # fmt: skip
# Many small matrices (attention's), with few steps along the inner dimension.
_MANY_BATCHES = (
    (128, 128, 64, 8, 4), (128, 128, 64, 4, 3), (128, 64, 64, 4, 4), (64, 128, 64, 4, 5),
    (64, 64, 64, 4, 5), (64, 256, 64, 4, 4), (128, 256, 64, 8, 3), (256, 64, 64, 8, 4),
)  # fmt: skip
# Of persistent kernels the last number is that of programs on a multiprocessor: of two, one
# multiplies while the other ends a tile. Where operands are described no addresses are kept in
# registers, which leaves them for larger tiles.
_PERSISTENT_MANY = ((128, 256, 64, 8, 3, 1), (128, 128, 64, 4, 3, 2), (128, 128, 64, 4, 3, 1))
_PERSISTENT_SOME = ((128, 128, 64, 8, 4, 1), (128, 64, 64, 4, 4, 2))
_PERSISTENT_BATCHES = ((128, 128, 64, 8, 3, 1), (64, 128, 64, 4, 4, 2), (64, 64, 64, 4, 3, 3))
_UNDESCRIBED = 1  # so many of them are tried without descriptors where there are descriptors


def candidates(
    sizes: tuple[int, int, int, int], followed: bool, gpu: Gpu, itemsize: int = 2
) -> list[ProductTiles]:
    """Tiles for a product of (batch, m, n, k), the likely ones first; none where the library is
    known to be as fast: a large product of half types that nothing follows. `gpu.descriptors` tells
    whether they may describe the operands, `itemsize` how many bytes an element of these has."""
    batch, m, n, k = sizes
    few = m <= 32
    some = batch * -(-m // 128) * -(-n // 128) < 2 * gpu.multiprocessors
    if not few and not some and not followed and itemsize == 2:
        return []
    table: Table = _FEW_ROWS
    found: dict[ProductTiles, None] = {}
    if not few:
        one = (_SOME_ROWS, _PERSISTENT_SOME) if some else (_MANY_ROWS, _PERSISTENT_MANY)
        table, persistent = one if some or batch == 1 else (_MANY_BATCHES, _PERSISTENT_BATCHES)
        found |= dict.fromkeys(_persistent(persistent, sizes, gpu, itemsize))
    for block_m, block_n, block_k, warps, stages in table:
        block_m = max(block_m, 32) if few and m > 16 else min(block_m, covering(m))
        block_n, block_k = min(block_n, covering(n)), _depth(block_k, k, itemsize)
        tiles = ProductTiles(block_m, block_n, block_k, warps, stages)
        while tiles.stages > 2 and _shared(tiles, itemsize) > SHARED_BYTES:
            tiles = replace(tiles, stages=tiles.stages - 1)
        found |= dict.fromkeys(_in_parts(tiles, sizes, gpu))
    return list(found)[:MOST]


def _persistent(
    rows: Table, sizes: tuple[int, int, int, int], gpu: Gpu, itemsize: int
) -> Iterable[ProductTiles]:
    """Tiles of persistent kernels, if each of their programs has several: those whose operands the
    copy engine reads, if it can, and few of the others."""
    batch, m, n, k = sizes
    table = [(row, True) for row in rows] if gpu.descriptors else []
    table += [(row, False) for row in rows[: _UNDESCRIBED if table else None]]
    for (block_m, block_n, block_k, warps, stages, each), descriptors in table:
        block_m, block_n = min(block_m, covering(m)), min(block_n, covering(n))
        programs = each * gpu.multiprocessors
        if batch * -(-m // block_m) * -(-n // block_n) <= programs:
            continue
        block_k = _depth(block_k, k, itemsize)
        tiles = ProductTiles(block_m, block_n, block_k, warps, stages)
        # What ends a tile has memory of its own, beside that of the next tile's operands: sums
        # change hands in it, rounded or (as a part of several dimensions) not.
        ending = block_m * block_n * (2 if batch == 1 else 4)
        while tiles.stages > 2 and _shared(tiles, itemsize) + ending > SHARED_LIMIT:
            tiles = replace(tiles, stages=tiles.stages - 1)
        yield replace(tiles, programs=programs, descriptors=descriptors)


def _depth(block: int, k: int, itemsize: int) -> int:
    """As many bytes along the inner dimension as a table says of elements of two."""
    return max(32 // itemsize, min(2 * block // itemsize, covering(k)))


def _in_parts(
    tiles: ProductTiles, sizes: tuple[int, int, int, int], gpu: Gpu
) -> Iterable[ProductTiles]:
    """The tiles as they are if they keep half of the multiprocessors busy, and shared among so many
    programs that all are."""
    batch, m, n, k = sizes
    programs = batch * -(-m // tiles.m) * -(-n // tiles.n)
    if programs * 2 >= gpu.multiprocessors or k < 4 * tiles.k:
        yield tiles
    if batch > 1 or programs >= gpu.multiprocessors:
        return
    parts = 2
    while programs * parts < gpu.multiprocessors:
        parts *= 2
    while parts > 1 and (parts > MOST_PARTS or k < 2 * parts * tiles.k):
        parts //= 2
    if parts > 1:
        yield replace(tiles, parts=parts)


def _shared(tiles: ProductTiles, itemsize: int) -> int:
    return tiles.stages * tiles.k * (tiles.m + tiles.n) * itemsize
