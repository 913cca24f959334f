"""Plans, native executor, kernels' cache and compile pool."""

from dovetail_runtime.artifact import CompiledArtifact, KernelBuild, LoadOptions, load
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.native import release_idle_memory
from dovetail_runtime.plan import (
    Allocate,
    CallAten,
    Choose,
    Constant,
    CopyInto,
    CppKernel,
    Free,
    FreeSlab,
    LaunchCpp,
    LaunchTriton,
    Plan,
    PlanInput,
    Ref,
    SizeExpr,
    SymbolBinding,
    TensorSpec,
    TritonKernel,
    View,
    While,
)
from dovetail_runtime.plan_text import as_python, write_program
from dovetail_runtime.serialize import load_plan, save_plan

__version__ = "0.1.0"

__all__ = [
    "Allocate",
    "CallAten",
    "Choose",
    "CompiledArtifact",
    "Constant",
    "CopyInto",
    "CppKernel",
    "Free",
    "FreeSlab",
    "KernelBuild",
    "Knobs",
    "LaunchCpp",
    "LaunchTriton",
    "LoadOptions",
    "Plan",
    "PlanInput",
    "Ref",
    "SizeExpr",
    "SymbolBinding",
    "TensorSpec",
    "TritonKernel",
    "View",
    "While",
    "as_python",
    "load",
    "load_plan",
    "release_idle_memory",
    "save_plan",
    "write_program",
]
