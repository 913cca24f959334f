"""Plans, native executor, artifact cache and compile pool."""

from dovetail_runtime.artifact import CompiledArtifact, LoadOptions, load, start_cpp
from dovetail_runtime.plan import (
    Allocate,
    CallAten,
    Constant,
    CopyInto,
    CppKernel,
    Free,
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
)
from dovetail_runtime.reference import ReferenceExecutor

__all__ = [
    "Allocate",
    "CallAten",
    "CompiledArtifact",
    "Constant",
    "CopyInto",
    "CppKernel",
    "Free",
    "LaunchCpp",
    "LaunchTriton",
    "LoadOptions",
    "Plan",
    "PlanInput",
    "Ref",
    "ReferenceExecutor",
    "SizeExpr",
    "SymbolBinding",
    "TensorSpec",
    "TritonKernel",
    "View",
    "load",
    "start_cpp",
]
