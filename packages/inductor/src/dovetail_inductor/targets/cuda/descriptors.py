"""Operands through tensor descriptors.

A GPU's copy engine (from Hopper on: the Tensor Memory Accelerator) reads whole tiles by them: no
thread computes an address, and what lies outside of a matrix is zeros without a mask. It wants
dense rows that begin at multiples of 16 bytes, dimensions that contain one another, and tiles of
at most 256 elements along each (CUDA driver API, `cuTensorMapEncodeTiled`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail_inductor.loop_ir.loops import Buffer, Strided
from dovetail_inductor.targets.cuda.body import Lines

ALIGNMENT = 16  # bytes


@dataclass(frozen=True)
class Described:
    """A matrix (or several, along the first of three dimensions) as the engine sees it: from the
    outermost dimension in memory to the innermost. `turned`: its columns are the rows there."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    turned: bool

    def define(self, lines: Lines, name: str, pointer: str, block: Sequence[int]) -> None:
        """Define the descriptor of blocks of (rows, columns)."""
        base = f"{pointer} + {self.offset}" if self.offset else pointer
        own = list(block[::-1] if self.turned else block)
        if len(self.shape) == 3:
            own.insert(0, 1)
        shape, stride = list(self.shape), list(self.stride)
        lines.add(f"{name} = tl.make_tensor_descriptor({base}, {shape}, {stride}, {own})")

    def load(self, name: str, place: tuple[str, str], block: tuple[int, int], batch: str) -> str:
        """The text of the block at (row, column), of the matrix numbered `batch`."""
        first, second = place[::-1] if self.turned else place
        text = f"{name}.load([{first}, {second}])"
        if len(self.shape) == 3:
            sides = block[::-1] if self.turned else block
            text = f"{name}.load([{batch}, {first}, {second}]).reshape({list(sides)})"
        return f"{text}.T" if self.turned else text


def described(operand: Strided, buffers: Mapping[str, Buffer]) -> Described | None:
    """How the engine sees an operand; None if it cannot read it."""
    buffer = buffers[operand.buffer]
    size = buffer.dtype.itemsize
    turned = operand.stride[-1] != 1
    order = [-1, -2] if turned else [-2, -1]
    if len(operand.shape) == 3:
        order.insert(0, 0)
    shape = tuple(operand.shape[d] for d in order)
    stride = tuple(operand.stride[d] for d in order)
    starts = [buffer.offset + operand.offset, *stride[:-1]]
    if stride[-1] != 1 or any(n * size % ALIGNMENT for n in starts):
        return None
    inside = zip(stride[:-1], stride[1:], shape[1:], strict=True)
    if any(own % inner or own < inner * length for own, inner, length in inside):
        return None
    return Described(shape, stride, operand.offset, turned)
