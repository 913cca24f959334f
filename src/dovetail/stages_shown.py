"""What can be shown of the stages behind capture: loops, kernels, plans (see `artifact_log`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from dovetail_inductor.kernel_names import head_of
from dovetail_inductor.loop_ir.loops import LoopGraph
from dovetail_inductor.pipeline import PassLog
from dovetail_inductor.scheduler.kernels import KernelGraph
from dovetail_prims.artifact_log import is_wanted, tell
from dovetail_runtime import as_python
from dovetail_runtime.plan import CppKernel, Kernel, Plan
from torch.fx import GraphModule

from dovetail.debug_folder import graph_as_dot, kernels_as_dot

# By the pass that gives it.
_OF_PASS: Mapping[str, tuple[str, ...]] = {
    "lower": ("ir_pre_fusion",),
    "fuse": ("ir_post_fusion", "fusion"),
    "combine": ("schedule",),
}
_SHOWN = ("post_grad_graphs", "graph_diagram", "passes", "output_code", "kernel_code")


def is_anything_shown() -> bool:
    """Whether somebody asks for any of it."""
    of_passes = (name for names in _OF_PASS.values() for name in names)
    return any(map(is_wanted, (*_SHOWN, *of_passes)))


def passes_shown(gm: GraphModule, place: str) -> PassLog | None:
    """Log a functional graph, and give what logs the compiler's passes over it; None if nothing is
    asked for."""
    tell("post_grad_graphs", place, lambda: str(gm.code.strip()), suffix="py")
    tell("graph_diagram", place, lambda: graph_as_dot(gm), suffix="dot")
    if not is_anything_shown():
        return None

    previous = ""

    def observe(name: str, result: object) -> None:
        nonlocal previous
        if isinstance(result, LoopGraph | KernelGraph):
            if is_wanted("passes"):
                text = result.as_text()
                shown = "(unchanged)" if text == previous else text
                tell("passes", place, lambda: f"after {name}:\n{shown}")
                previous = text
            for artifact in _OF_PASS.get(name, ()):
                tell(artifact, place, result.as_text, value=result)
        if name == "combine" and isinstance(result, KernelGraph):
            tell("graph_diagram", place, partial(kernels_as_dot, result), suffix="dot")

    return PassLog(observe=observe)


def tell_of_plan(plan: Plan, place: str) -> None:
    """Log a plan as a program, and its kernels."""
    if is_wanted("output_code"):
        tell("output_code", place, lambda: as_python(plan), suffix="py", value=plan)
    if not is_wanted("kernel_code"):
        return
    for kernel in plan.kernels:
        suffix = "cpp" if isinstance(kernel, CppKernel) else "py"
        text = partial(_with_head, kernel, plan)
        tell("kernel_code", place, text, suffix=suffix)


def _with_head(kernel: Kernel, plan: Plan) -> str:
    return head_of(kernel, plan) + kernel.source


def tell_of_cuda_graph(place: str, what: str) -> None:
    """Log that a graph was recorded, or why it is not."""
    tell("cudagraphs", place, lambda: what)
