"""Where the tiles of a product's operands lie in memory, as text."""

from __future__ import annotations

from dovetail_inductor.loop_ir.loops import Strided
from dovetail_inductor.scheduler.kernels import ProductKernel


def numbered(name: str, product: ProductKernel) -> list[str]:
    """`name` for each right matrix: the plain one for the first."""
    return [f"{name}{number or ''}" for number in range(len(product.rights))]


def address(
    operand: Strided, positions: tuple[str, str], strides: tuple[int, ...], batched: bool
) -> str:
    """Offsets of a tile of an operand."""
    terms = [t if c == 1 else f"{t} * {c}" for t, c in zip(positions, strides, strict=True)]
    if batched:
        terms.append(f"pz * {operand.stride[0]}")
    if operand.offset:
        terms.append(str(operand.offset))
    return " + ".join(terms)


__all__ = ["address", "numbered"]
