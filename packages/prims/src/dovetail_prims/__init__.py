"""The op language of Dovetail: dialects, fake tensors, shape rules, decompositions."""

# (The table of shape rules is loaded now, though it is asked for late: where a process forks while
# another thread loads a module, its child waits for that module's lock for ever.)
import dovetail_prims.fake.fake_fallback
import dovetail_prims.ops.rule_table  # noqa: F401
from dovetail_prims.dialects.dialect import Dialect as Dialect
from dovetail_prims.dialects.dialect import VerifyError as VerifyError
from dovetail_prims.dialects.dialect import verify as verify
from dovetail_prims.fake.fake_mode import FakeMode as FakeMode
from dovetail_prims.fake.fake_mode import fake_arguments as fake_arguments
from dovetail_prims.fake.from_real import FakeMemo as FakeMemo
from dovetail_prims.fake.from_real import from_real as from_real
from dovetail_prims.fake_tensor import DataDependentError as DataDependentError
from dovetail_prims.fake_tensor import FakeStorage as FakeStorage
from dovetail_prims.fake_tensor import FakeTensor as FakeTensor
from dovetail_prims.fake_tensor import FakeTensorError as FakeTensorError
from dovetail_prims.fake_tensor import TensorMeta as TensorMeta
from dovetail_prims.fake_tensor import UnsupportedTensorError as UnsupportedTensorError
from dovetail_prims.fake_tensor import propagate as propagate
from dovetail_prims.fake_tensor import tensor_meta as tensor_meta
from dovetail_prims.graphs.record import trace_aten as trace_aten
from dovetail_prims.ops.sdpa import choose_backend as choose_backend

__version__ = "0.1.0"
