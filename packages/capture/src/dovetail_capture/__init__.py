"""Bytecode capture of PyTorch programs into FX graphs."""

from dovetail_prims.graphs.backend_traits import BackendTraits as BackendTraits
from dovetail_prims.graphs.backend_traits import takes_symbolic_graphs as takes_symbolic_graphs

from dovetail_capture.api import context_of as context_of
from dovetail_capture.api import explain as explain
from dovetail_capture.api import explain_guards as explain_guards
from dovetail_capture.api import export as export
from dovetail_capture.api import graph_break as graph_break
from dovetail_capture.api import is_compiling as is_compiling
from dovetail_capture.api import is_dynamo_compiling as is_dynamo_compiling
from dovetail_capture.api import is_exporting as is_exporting
from dovetail_capture.api import optimize as optimize
from dovetail_capture.api import optimize_in_place as optimize_in_place
from dovetail_capture.api import recompiles as recompiles
from dovetail_capture.api import reset as reset
from dovetail_capture.api import run_graph as run_graph
from dovetail_capture.captured_frame import CapturedFrame as CapturedFrame
from dovetail_capture.captured_frame import GraphBreak as GraphBreak
from dovetail_capture.captured_frame import GraphInput as GraphInput
from dovetail_capture.dim_marks import has_static_address as has_static_address
from dovetail_capture.dim_marks import mark_dynamic as mark_dynamic
from dovetail_capture.dim_marks import mark_static as mark_static
from dovetail_capture.dim_marks import mark_static_address as mark_static_address
from dovetail_capture.dim_marks import mark_unbacked as mark_unbacked
from dovetail_capture.dim_marks import maybe_mark_dynamic as maybe_mark_dynamic
from dovetail_capture.errors import BackendError as BackendError
from dovetail_capture.errors import CaptureError as CaptureError
from dovetail_capture.errors import GraphBreakError as GraphBreakError
from dovetail_capture.errors import RecompileLimitError as RecompileLimitError
from dovetail_capture.export import ExportedGraph as ExportedGraph
from dovetail_capture.extensions.installed import EXTENSIONS
from dovetail_capture.extensions.numpy.numpy_arrays import wrap_numpy as wrap_numpy
from dovetail_capture.frames.guard_filter import GuardFilterEntry as GuardFilterEntry
from dovetail_capture.interpreter.library.function_table import install
from dovetail_capture.marks import allow_in_graph as allow_in_graph
from dovetail_capture.marks import assume_constant_result as assume_constant_result
from dovetail_capture.marks import disable as disable
from dovetail_capture.marks import forbid_in_graph as forbid_in_graph
from dovetail_capture.marks import nonstrict_trace as nonstrict_trace
from dovetail_capture.marks import substitute_in_graph as substitute_in_graph
from dovetail_capture.options import CaptureOptions as CaptureOptions
from dovetail_capture.reporting.compile_log import CompileLog as CompileLog
from dovetail_capture.reporting.explanation import Explanation as Explanation
from dovetail_capture.stance import dont_skip_tracing as dont_skip_tracing
from dovetail_capture.stance import error_on_graph_break as error_on_graph_break
from dovetail_capture.stance import run as run
from dovetail_capture.stance import set_stance as set_stance
from dovetail_capture.wrappers.optimized_module import OptimizedModule as OptimizedModule
from dovetail_capture.wrappers.optimized_module import call_through as call_through

install(EXTENSIONS)
__version__ = "0.1.0"
