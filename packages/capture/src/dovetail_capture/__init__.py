"""Bytecode capture of PyTorch programs into FX graphs."""

from dovetail_prims.graphs.backend_traits import BackendTraits, takes_symbolic_graphs

from dovetail_capture.api import (
    context_of,
    explain,
    explain_guards,
    export,
    graph_break,
    is_compiling,
    is_dynamo_compiling,
    is_exporting,
    optimize,
    optimize_in_place,
    recompiles,
    reset,
    run_graph,
)
from dovetail_capture.captured_frame import CapturedFrame, GraphBreak, GraphInput
from dovetail_capture.dim_marks import (
    has_static_address,
    mark_dynamic,
    mark_static,
    mark_static_address,
    mark_unbacked,
    maybe_mark_dynamic,
)
from dovetail_capture.errors import BackendError, CaptureError, GraphBreakError, RecompileLimitError
from dovetail_capture.export import ExportedGraph
from dovetail_capture.extensions.installed import EXTENSIONS
from dovetail_capture.extensions.numpy.numpy_arrays import wrap_numpy
from dovetail_capture.frames.guard_filter import GuardFilterEntry
from dovetail_capture.interpreter.library.function_table import install
from dovetail_capture.marks import (
    allow_in_graph,
    assume_constant_result,
    disable,
    forbid_in_graph,
    nonstrict_trace,
    substitute_in_graph,
)
from dovetail_capture.options import CaptureOptions
from dovetail_capture.reporting.compile_log import CompileLog
from dovetail_capture.reporting.explanation import Explanation
from dovetail_capture.stance import dont_skip_tracing, error_on_graph_break, run, set_stance
from dovetail_capture.wrappers.optimized_module import OptimizedModule, call_through

install(EXTENSIONS)
__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "BackendTraits",
    "CaptureError",
    "CaptureOptions",
    "CapturedFrame",
    "CompileLog",
    "Explanation",
    "ExportedGraph",
    "GraphBreak",
    "GraphBreakError",
    "GraphInput",
    "GuardFilterEntry",
    "OptimizedModule",
    "RecompileLimitError",
    "allow_in_graph",
    "assume_constant_result",
    "call_through",
    "context_of",
    "disable",
    "dont_skip_tracing",
    "error_on_graph_break",
    "explain",
    "explain_guards",
    "export",
    "forbid_in_graph",
    "graph_break",
    "has_static_address",
    "is_compiling",
    "is_dynamo_compiling",
    "is_exporting",
    "mark_dynamic",
    "mark_static",
    "mark_static_address",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "nonstrict_trace",
    "optimize",
    "optimize_in_place",
    "recompiles",
    "reset",
    "run",
    "run_graph",
    "set_stance",
    "substitute_in_graph",
    "takes_symbolic_graphs",
    "wrap_numpy",
]
