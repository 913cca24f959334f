"""Ahead-of-time joint forward and backward tracing."""

from dovetail_autograd_aot.aot_log import AotLog, SavedSet
from dovetail_autograd_aot.compiled_backward import BackwardReport, compiled_autograd
from dovetail_autograd_aot.compiled_function import aot_compile
from dovetail_autograd_aot.graphs import (
    JointGraph,
    MutatedInput,
    OutputInfo,
    OutputKind,
    PartitionedGraph,
    Signature,
    ViewStep,
)
from dovetail_autograd_aot.joint import trace_joint
from dovetail_autograd_aot.narrow_indices import narrow_saved_indices
from dovetail_autograd_aot.partition import default_partition, min_cut_partition
from dovetail_autograd_aot.scored_attention import recognise_scored_attention
from dovetail_autograd_aot.storage import TraceError
from dovetail_autograd_aot.values import example_values
from dovetail_autograd_aot.written_attention import recognise_attention

__version__ = "0.1.0"

__all__ = [
    "AotLog",
    "BackwardReport",
    "JointGraph",
    "MutatedInput",
    "OutputInfo",
    "OutputKind",
    "PartitionedGraph",
    "SavedSet",
    "Signature",
    "TraceError",
    "ViewStep",
    "aot_compile",
    "compiled_autograd",
    "default_partition",
    "example_values",
    "min_cut_partition",
    "narrow_saved_indices",
    "recognise_attention",
    "recognise_scored_attention",
    "trace_joint",
]
