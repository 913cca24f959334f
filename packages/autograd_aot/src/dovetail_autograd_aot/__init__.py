"""Ahead-of-time joint forward and backward tracing."""

from dovetail_autograd_aot.aot_log import AotLog, SavedSet
from dovetail_autograd_aot.boundary import (
    JointGraph,
    MutatedInput,
    OutputInfo,
    OutputKind,
    PartitionedGraph,
    Signature,
    ViewStep,
)
from dovetail_autograd_aot.compiled_backward import BackwardReport, compiled_autograd
from dovetail_autograd_aot.joint.joint_trace import trace_joint
from dovetail_autograd_aot.partition.min_cut import default_partition, min_cut_partition
from dovetail_autograd_aot.partition.narrow_indices import narrow_saved_indices
from dovetail_autograd_aot.patterns.attention_pattern import recognise_attention
from dovetail_autograd_aot.patterns.scored_attention import recognise_scored_attention
from dovetail_autograd_aot.pipeline import AotSettings, aot_compile
from dovetail_autograd_aot.trace.node_values import example_values
from dovetail_autograd_aot.trace.storage import TraceError

__version__ = "0.1.0"

__all__ = [
    "AotLog",
    "AotSettings",
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
