"""Loop IR, fusion, and code generation: from a functional ATen graph to a `Plan`."""

from dovetail_inductor.graph_passes.channels_last import prefer_channels_last
from dovetail_inductor.graph_passes.constant_weights import PreparedGraph, prepare_weights
from dovetail_inductor.lowering.values import UnsupportedGraph
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.pipeline import (
    PassLog,
    compile_graph,
    compile_to_callable,
    find_error,
    to_kernels,
    to_loops,
    to_plan,
)
from dovetail_inductor.products.device_tuner import DeviceTuner

__version__ = "0.1.0"

__all__ = [
    "DeviceTuner",
    "InductorOptions",
    "PassLog",
    "PreparedGraph",
    "UnsupportedGraph",
    "compile_graph",
    "compile_to_callable",
    "find_error",
    "prefer_channels_last",
    "prepare_weights",
    "to_kernels",
    "to_loops",
    "to_plan",
]
