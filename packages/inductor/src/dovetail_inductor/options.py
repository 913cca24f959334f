"""The settings of a compilation: one frozen type, every field with a meaning and a test."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dovetail_inductor.loop_ir.ops import EIGHT_BIT_FLOATS
from dovetail_inductor.targets import CPU, CUDA, Target, target_of
from dovetail_inductor.targets.target import Machine

HOPPER = 9  # major number of its compute capability


@dataclass(frozen=True)
class Gpu:
    """What the choice of a kernel's form depends on: how many multiprocessors, and whether a copy
    engine reads tiles by descriptors of tensors. From Hopper on one does, 8-bit floats can be
    converted, and kernels launched while the ones before run. By default an H100's."""

    multiprocessors: int = 132
    descriptors: bool = True


@dataclass(frozen=True)
class FusionLimits:
    """How far fusion goes.

    min_rows, max_columns: a kernel that handles a row at a time is not made when there are fewer
        rows than `min_rows` and more columns than `max_columns`: nothing would run in parallel.
    max_nests, max_buffers: limits on the size of one kernel.
    max_scratch_bytes: limit on what one row keeps between passes over its columns.
    max_shared_readers: kernels that share only a read are merged if the buffer has at most so many
        readers.
    """

    min_rows: int = 16
    max_columns: int = 8192
    max_nests: int = 48
    max_buffers: int = 40
    max_scratch_bytes: int = 256 * 1024
    max_shared_readers: int = 8


@dataclass(frozen=True)
class InductorOptions:
    """How a graph is compiled.

    fusion: how far fusion goes.
    split_reductions: cut reductions to few results into two stages.
    combine: compute small independent kernels of a GPU graph in one launch.
    combine_bytes: how many bytes may live longer than they need to for that, and how many the
        kernels of one launch may read and write.
    simd_bytes: width of the vector registers to generate code for; None asks the host.
    triton: generate Triton kernels; None does so for graphs on a GPU. (Set on a CPU, the plan runs
        in the reference executor under Triton's interpreter.)
    everywhere: generate kernels for what is left to the library because that was measured to be
        faster, too (to measure it again).
    gpu: what to choose the forms of kernels for; None asks the GPU, and takes an H100's where a
        graph is on none.
    target: write all kernels for this target; None: for that of each tensor's device.
    """

    fusion: FusionLimits = FusionLimits()
    split_reductions: bool = True
    combine: bool = True
    combine_bytes: int = 32 << 20
    simd_bytes: int | None = None
    triton: bool | None = None
    everywhere: bool = False
    gpu: Gpu | None = None
    target: Target | None = None

    @property
    def chosen_target(self) -> Target | None:
        """The target of all kernels, whatever the devices; None: that of each device."""
        if self.target is not None or self.triton is None:
            return self.target
        return CUDA if self.triton else CPU

    def target_of(self, device: torch.device) -> Target:
        """What kernels for tensors on a device are written for."""
        return self.chosen_target or target_of(device)

    def converts(self, device: torch.device) -> frozenset[torch.dtype]:
        """What kernels for a device read and write beside what they compute with, to convert."""
        old = self.target_of(device) is CUDA and not self.gpu_of(device).descriptors
        return frozenset() if old else EIGHT_BIT_FLOATS

    def machine_of(self, device: torch.device) -> Machine:
        """What the text of kernels for a device depends on."""
        return Machine(self.simd_bytes, dependent_launches=self.gpu_of(device).descriptors)

    def gpu_of(self, device: torch.device) -> Gpu:
        """What kernels for tensors on a device are chosen for."""
        if self.gpu is not None or device.type != "cuda":
            return self.gpu or Gpu()
        found = torch.cuda.get_device_properties(device)
        return Gpu(found.multi_processor_count, found.major >= HOPPER)
