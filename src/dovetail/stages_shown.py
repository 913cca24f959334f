"""What can be shown of the stages behind capture: loops, kernels, plans (see `artifact_log`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from dovetail_inductor.pipeline import PassLog
from dovetail_prims.artifact_log import is_wanted, tell
from dovetail_runtime import as_python
from dovetail_runtime.plan import CppKernel, Plan
from torch.fx import GraphModule

# By the pass that gives it.
_OF_PASS: Mapping[str, tuple[str, ...]] = {
    "lower": ("ir_pre_fusion",),
    "fuse": ("ir_post_fusion", "fusion"),
    "combine": ("schedule",),
}


def passes_shown(gm: GraphModule, place: str) -> PassLog | None:
    """Log a functional graph, and give what logs the compiler's passes over it; None if nothing of
    them is asked for."""
    tell("post_grad_graphs", place, lambda: str(gm.code.strip()), suffix="py")
    if not any(is_wanted(name) for names in _OF_PASS.values() for name in names):
        return None

    def dump(name: str, text: str) -> None:
        for artifact in _OF_PASS.get(name, ()):
            tell(artifact, place, lambda: text)

    return PassLog(dump=dump)


def tell_of_plan(plan: Plan, place: str) -> None:
    """Log a plan as a program, and its kernels."""
    tell("output_code", place, lambda: as_python(plan), suffix="py")
    if not is_wanted("kernel_code"):
        return
    for kernel in plan.kernels:
        suffix = "cpp" if isinstance(kernel, CppKernel) else "py"
        tell("kernel_code", place, partial(str, kernel.source), suffix=suffix)
