"""Plans, native executor, kernels' cache and compile pool."""

from dovetail_runtime.artifact import CompiledArtifact as CompiledArtifact
from dovetail_runtime.artifact import KernelBuild as KernelBuild
from dovetail_runtime.artifact import LoadOptions as LoadOptions
from dovetail_runtime.artifact import load as load
from dovetail_runtime.knobs import Knobs as Knobs
from dovetail_runtime.native import release_idle_memory as release_idle_memory
from dovetail_runtime.plan import Allocate as Allocate
from dovetail_runtime.plan import CallAten as CallAten
from dovetail_runtime.plan import Choose as Choose
from dovetail_runtime.plan import Constant as Constant
from dovetail_runtime.plan import CopyInto as CopyInto
from dovetail_runtime.plan import CppKernel as CppKernel
from dovetail_runtime.plan import Free as Free
from dovetail_runtime.plan import FreeSlab as FreeSlab
from dovetail_runtime.plan import LaunchCpp as LaunchCpp
from dovetail_runtime.plan import LaunchTriton as LaunchTriton
from dovetail_runtime.plan import Plan as Plan
from dovetail_runtime.plan import PlanInput as PlanInput
from dovetail_runtime.plan import Ref as Ref
from dovetail_runtime.plan import SizeExpr as SizeExpr
from dovetail_runtime.plan import SymbolBinding as SymbolBinding
from dovetail_runtime.plan import TensorSpec as TensorSpec
from dovetail_runtime.plan import TritonKernel as TritonKernel
from dovetail_runtime.plan import View as View
from dovetail_runtime.plan import While as While
from dovetail_runtime.plan_text import as_python as as_python
from dovetail_runtime.plan_text import write_program as write_program
from dovetail_runtime.serialize import load_plan as load_plan
from dovetail_runtime.serialize import save_plan as save_plan

__version__ = "0.1.0"
