"""The settings of a compilation: one frozen type, every field with a meaning and a test."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class InductorOptions:
    """How a graph is compiled.

    fuse: merge loop nests into kernels; off, every nest is a kernel of its own (for debugging).
    min_rows, max_columns: a kernel that handles a row at a time is not made when there are fewer
        rows than `min_rows` and more columns than `max_columns`: nothing would run in parallel.
    max_nests, max_buffers: limits on the size of one kernel.
    max_scratch_bytes: limit on what one row keeps between passes over its columns.
    max_shared_readers: kernels that share only a read are merged if the buffer has at most so many
        readers.
    split_reductions: cut reductions to few results into two stages.
    combine: compute small independent kernels of a GPU graph in one launch.
    combine_bytes: how many bytes may live longer than they need to for that, and how many the
        kernels of one launch may read and write.
    simd_bytes: width of the vector registers to generate code for; None asks the host.
    triton: generate Triton kernels; None does so for graphs on a GPU. (Set on a CPU, the plan runs
        in the reference executor under Triton's interpreter.)
    """

    fuse: bool = True
    min_rows: int = 16
    max_columns: int = 8192
    max_nests: int = 48
    max_buffers: int = 40
    max_scratch_bytes: int = 256 * 1024
    max_shared_readers: int = 8
    split_reductions: bool = True
    combine: bool = True
    combine_bytes: int = 32 << 20
    simd_bytes: int | None = None
    triton: bool | None = None

    def on_gpu(self, device: torch.device) -> bool:
        """Whether code for tensors on a device is Triton's."""
        return device.type == "cuda" if self.triton is None else self.triton
