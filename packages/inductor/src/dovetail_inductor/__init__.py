"""Loop IR, fusion, and code generation: from a functional ATen graph to a `Plan`."""

from dovetail_inductor.graph_passes.channels_last import (
    prefer_channels_last as prefer_channels_last,
)
from dovetail_inductor.graph_passes.constant_weights import PreparedGraph as PreparedGraph
from dovetail_inductor.graph_passes.constant_weights import prepare_weights as prepare_weights
from dovetail_inductor.lowering.values import UnsupportedGraph as UnsupportedGraph
from dovetail_inductor.options import InductorOptions as InductorOptions
from dovetail_inductor.pipeline import PassLog as PassLog
from dovetail_inductor.pipeline import compile_graph as compile_graph
from dovetail_inductor.pipeline import compile_to_callable as compile_to_callable
from dovetail_inductor.pipeline import find_error as find_error
from dovetail_inductor.pipeline import to_kernels as to_kernels
from dovetail_inductor.pipeline import to_loops as to_loops
from dovetail_inductor.pipeline import to_plan as to_plan
from dovetail_inductor.products.device_tuner import DeviceTuner as DeviceTuner

__version__ = "0.1.0"
