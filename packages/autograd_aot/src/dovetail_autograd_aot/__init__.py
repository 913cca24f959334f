"""Ahead-of-time joint forward and backward tracing."""

from dovetail_autograd_aot.aot_log import AotLog as AotLog
from dovetail_autograd_aot.aot_log import SavedSet as SavedSet
from dovetail_autograd_aot.boundary import JointGraph as JointGraph
from dovetail_autograd_aot.boundary import MutatedInput as MutatedInput
from dovetail_autograd_aot.boundary import OutputInfo as OutputInfo
from dovetail_autograd_aot.boundary import OutputKind as OutputKind
from dovetail_autograd_aot.boundary import PartitionedGraph as PartitionedGraph
from dovetail_autograd_aot.boundary import Signature as Signature
from dovetail_autograd_aot.boundary import ViewStep as ViewStep
from dovetail_autograd_aot.compiled_backward import BackwardReport as BackwardReport
from dovetail_autograd_aot.compiled_backward import compiled_autograd as compiled_autograd
from dovetail_autograd_aot.joint.joint_trace import trace_joint as trace_joint
from dovetail_autograd_aot.partition.min_cut import default_partition as default_partition
from dovetail_autograd_aot.partition.min_cut import min_cut_partition as min_cut_partition
from dovetail_autograd_aot.partition.narrow_indices import (
    narrow_saved_indices as narrow_saved_indices,
)
from dovetail_autograd_aot.patterns.attention_pattern import (
    recognise_attention as recognise_attention,
)
from dovetail_autograd_aot.patterns.scored_attention import (
    recognise_scored_attention as recognise_scored_attention,
)
from dovetail_autograd_aot.pipeline import AotSettings as AotSettings
from dovetail_autograd_aot.pipeline import aot_compile as aot_compile
from dovetail_autograd_aot.trace.node_values import example_values as example_values
from dovetail_autograd_aot.trace.storage import TraceError as TraceError

__version__ = "0.1.0"
