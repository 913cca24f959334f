"""Grouped convolutions on a GPU: in rows, as eager calls them, beside channels-last.

python integration_tests/benchmarks/convolution_layouts.py [--dtype bfloat16]

Prints a Markdown table of microseconds: the measurement behind `prefer_channels_last`'s choice.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

aten = torch.ops.aten


@dataclass(frozen=True)
class Shape:
    """A convolution without bias, padded to keep its sizes: images, channels, results, side of an
    image, side of the window, stride, groups."""

    images: int
    channels: int
    results: int
    side: int
    window: int
    stride: int
    groups: int


def shapes() -> Iterator[Shape]:
    """Of one channel a group, with one result for it and two; and groups of more channels."""
    for channels, side in ((64, 56), (256, 28), (384, 14)):
        for window, stride in ((3, 1), (3, 2), (5, 1), (7, 1), (7, 2)):
            for results in (1, 2):
                yield Shape(32, channels, results * channels, side, window, stride, channels)
    for own in (2, 3, 4, 8, 16, 24, 29, 32, 64):
        for groups in (4, 32):
            channels = own * groups
            if channels <= 1024:
                yield Shape(32, channels, channels, 28, 3, 1, groups)
                yield Shape(32, channels, 2 * channels, 28, 3, 1, groups)


def microseconds(call: Callable[[], object], repeats: int = 8) -> float:
    """The mean time of a call on the GPU."""
    for _ in range(3):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats * 1e3


def measured(shape: Shape, dtype: torch.dtype, layout: torch.memory_format) -> tuple[float, float]:
    """Forward and backward of a convolution all of whose tensors are in one layout."""

    def drawn(*sizes: int) -> torch.Tensor:
        made = torch.randn(*sizes, device="cuda", dtype=dtype)
        return made.contiguous(memory_format=layout)

    x = drawn(shape.images, shape.channels, shape.side, shape.side)
    window = shape.window
    w = drawn(shape.results, shape.channels // shape.groups, window, window)
    how = [shape.stride] * 2, [window // 2] * 2, [1, 1], False, [0, 0], shape.groups
    y = aten.convolution(x, w, None, *how)
    g = torch.randn_like(y).contiguous(memory_format=layout)
    both = [True, True, False]
    return (
        microseconds(lambda: aten.convolution(x, w, None, *how)),
        microseconds(lambda: aten.convolution_backward(g, x, w, None, *how, both)),
    )


def main() -> None:
    """Measure every shape in both layouts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16")
    dtype = getattr(torch, parser.parse_args().dtype)
    print("| convolution | of a group | rows | channels-last | backward, rows | channels-last |")
    print("|---|---|---|---|---|---|")
    for shape in shapes():
        rows = measured(shape, dtype, torch.contiguous_format)
        last = measured(shape, dtype, torch.channels_last)
        title = (
            f"{shape.images}x{shape.channels}x{shape.side}x{shape.side} by {shape.window}x"
            f"{shape.window}, stride {shape.stride}, {shape.groups} groups"
        )
        own = f"{shape.channels // shape.groups} to {shape.results // shape.groups}"
        figures = " | ".join(f"{us:.0f}" for us in (rows[0], last[0], rows[1], last[1]))
        print(f"| {title} | {own} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
