import torch

from dovetail_runtime.artifact import LoadOptions, load
from dovetail_runtime.plan import *
from dovetail_runtime.cpp_build import CppBuilder
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.reference import ReferenceExecutor

CPU = torch.device("cpu")


def spec(*shape, dtype=torch.float32):
    stride = []
    n = 1
    for s in reversed(shape):
        stride.insert(0, n)
        n *= s
    return TensorSpec(tuple(shape), tuple(stride), dtype, CPU)


RELU = CppKernel(
    "relu_k",
    """
static inline float act(float x) { return x > 0 ? x : 0; }
extern "C" void relu_k(void* const* p, const int64_t* s, int64_t begin, int64_t end) {
  const float* x = (const float*)p[0]; float* y = (float*)p[1];
  for (int64_t i = begin; i < end; ++i) y[i] = act(x[i]) * s[0];
}""",
)


def test_smoke():
    plan = Plan(
        "smoke",
        "cpu",
        inputs=(PlanInput("x", spec(4, 8)), PlanInput("w", spec(8, 8))),
        symbols=(),
        constants=(),
        kernels=(RELU,),
        steps=(
            Allocate("t", spec(4, 8), 0),
            LaunchCpp("relu_k", ("x", "t"), (3,), 32, 16),
            Allocate("o", spec(4, 8), None),
            CallAten("aten::mm.out", (Ref("t"), Ref("w")), (("out", Ref("o")),)),
            Free(("t",)),
        ),
        slab_bytes=(("cpu", 128),),
        outputs=("o", None, "x"),
    )
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    art = load(plan, options=LoadOptions(check_inputs=True))
    ref = ReferenceExecutor(plan, CppBuilder(Knobs.from_environment()).build([RELU]))
    want = (x.relu() * 3) @ w
    for f in (art, ref):
        o, n, x2 = f(x, w)
        assert n is None and x2 is x
        torch.testing.assert_close(o, want)
