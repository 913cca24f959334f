"""The op language of Dovetail: dialects, fake tensors, shape rules, decompositions."""

# (The table of shape rules is loaded now, though it is asked for late: where a process forks while
# another thread loads a module, its child waits for that module's lock for ever.)
import dovetail_prims.fake.fake_fallback
import dovetail_prims.ops.rule_table  # noqa: F401
from dovetail_prims.dialects.dialect import Dialect, VerifyError, verify
from dovetail_prims.fake.fake_mode import FakeMode, fake_arguments
from dovetail_prims.fake.from_real import FakeMemo, from_real
from dovetail_prims.fake_tensor import (
    DataDependentError,
    FakeStorage,
    FakeTensor,
    FakeTensorError,
    TensorMeta,
    UnsupportedTensorError,
    propagate,
    tensor_meta,
)
from dovetail_prims.graphs.record import trace_aten
from dovetail_prims.ops.sdpa import choose_backend

__version__ = "0.1.0"

__all__ = [
    "DataDependentError",
    "Dialect",
    "FakeMemo",
    "FakeMode",
    "FakeStorage",
    "FakeTensor",
    "FakeTensorError",
    "TensorMeta",
    "UnsupportedTensorError",
    "VerifyError",
    "choose_backend",
    "fake_arguments",
    "from_real",
    "propagate",
    "tensor_meta",
    "trace_aten",
    "verify",
]
