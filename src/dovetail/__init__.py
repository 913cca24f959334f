"""Dovetail: a compiler for PyTorch programs, used in place of `torch.compile`."""

from dovetail_capture import (
    CaptureError,
    allow_in_graph,
    disable,
    explain,
    graph_break,
    is_compiling,
    reset,
)

from dovetail.backends import list_backends
from dovetail.compiler import compile
from dovetail.options import Options
from dovetail.report import Report, report

__all__ = [
    "CaptureError",
    "Options",
    "Report",
    "allow_in_graph",
    "compile",
    "disable",
    "explain",
    "graph_break",
    "is_compiling",
    "list_backends",
    "report",
    "reset",
]
