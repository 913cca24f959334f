"""Dovetail: a compiler for PyTorch programs, used in place of `torch.compile`."""

from dovetail_capture import (
    CaptureError,
    allow_in_graph,
    assume_constant_result,
    disable,
    dont_skip_tracing,
    error_on_graph_break,
    explain_guards,
    forbid_in_graph,
    graph_break,
    is_compiling,
    is_dynamo_compiling,
    is_exporting,
    mark_dynamic,
    mark_static,
    mark_static_address,
    mark_unbacked,
    maybe_mark_dynamic,
    nonstrict_trace,
    recompiles,
    reset,
    run,
    substitute_in_graph,
    takes_symbolic_graphs,
    wrap_numpy,
)

from dovetail import compiler, config
from dovetail.backends.registry import (
    get_default_backend,
    list_backends,
    register_backend,
    set_default_backend,
)
from dovetail.compilation import compile, compile_in_place, compiled_autograd, set_stance
from dovetail.compiler import cudagraph_mark_step_begin
from dovetail.config import patch as patch_dynamo_config
from dovetail.explanation import Explanation, explain
from dovetail.install import install, installed, uninstall
from dovetail.logs import apply_torch_logs, read_environment, set_logs
from dovetail.options import Options, list_mode_options, list_options
from dovetail.report import Report, report

__version__ = "0.1.0"

__all__ = [
    "CaptureError", "Explanation", "Options", "Report", "allow_in_graph", "apply_torch_logs",
    "assume_constant_result", "compile", "compile_in_place", "compiled_autograd", "compiler",
    "config", "cudagraph_mark_step_begin", "disable", "dont_skip_tracing", "error_on_graph_break",
    "explain", "explain_guards", "forbid_in_graph", "get_default_backend", "graph_break", "install",
    "installed", "is_compiling", "is_dynamo_compiling", "is_exporting", "list_backends",
    "list_mode_options", "list_options", "mark_dynamic", "mark_static", "mark_static_address",
    "mark_unbacked", "maybe_mark_dynamic", "nonstrict_trace", "patch_dynamo_config", "recompiles",
    "register_backend", "report", "reset", "run", "set_default_backend", "set_logs", "set_stance",
    "substitute_in_graph", "takes_symbolic_graphs", "uninstall", "wrap_numpy",
]  # fmt: skip

read_environment()
