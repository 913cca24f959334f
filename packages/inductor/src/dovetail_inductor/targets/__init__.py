"""The machines that kernels are written for: one folder each, behind the Protocol `Target`."""

from __future__ import annotations

import torch

from dovetail_inductor.targets.cpu.cpu_target import CPU
from dovetail_inductor.targets.cpu.syntax import ScopeError, check_scopes
from dovetail_inductor.targets.cuda.cuda_target import CUDA
from dovetail_inductor.targets.target import Target

# By the type of the device; kernels for all others are the CPU's.
TARGETS: dict[str, Target] = {"cpu": CPU, "cuda": CUDA}


def target_of(device: torch.device) -> Target:
    """The target of the tensors on a device."""
    return TARGETS.get(device.type, CPU)


__all__ = ["CPU", "CUDA", "ScopeError", "Target", "check_scopes", "target_of"]
