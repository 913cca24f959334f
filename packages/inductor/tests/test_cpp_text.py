"""The C++ of two small graphs, word for word."""

import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table


def source(fn, *inputs):
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    (kernel,) = compile_graph(gm, options=InductorOptions(simd_bytes=64)).kernels
    return kernel.source.replace(kernel.symbol, "k")


def test_pointwise():
    assert source(lambda x: torch.relu(x) * 2, torch.empty(3, 32)) == (
        'extern "C" void k(void* const* pointers, const int64_t*, int64_t begin, int64_t end) {\n'
        "  auto p0 = (float*)pointers[0];\n"
        "  auto p1 = (float*)pointers[1];\n"
        "  for (int64_t item = begin; item < end; ++item) {\n"
        "    for (int64_t i0 = 0; i0 < 96; i0 += 16) {\n"
        "      const auto t0 = ld<16>(p0 + i0);\n"
        "      const auto t1 = relu_(t0);\n"
        "      const auto t2 = t1 * bc<16>(2.0f);\n"
        "      st(p1 + i0, t2);\n"
        "    }\n"
        "  }\n"
        "}\n"
    )


def test_row_reduction():
    assert source(lambda x: x.exp().sum(1), torch.empty(5, 35)) == (
        'extern "C" void k(void* const* pointers, const int64_t*, int64_t begin, int64_t end) {\n'
        "  auto p0 = (float*)pointers[0];\n"
        "  auto p1 = (float*)pointers[1];\n"
        "  for (int64_t item = begin; item < end; ++item) {\n"
        "    const int64_t i0 = item;\n"
        "    V<float, 16> acc0 = bc<16>(0.0f);\n"
        "    for (int64_t i1 = 0; i1 < 32; i1 += 16) {\n"
        "      const auto t0 = ld<16>(p0 + 35 * i0 + i1);\n"
        "      const auto t1 = exp_(t0);\n"
        "      acc0 = acc0 + t1;\n"
        "    }\n"
        "    {\n"
        "      const int64_t i1 = 32;\n"
        "      const int n = 3;\n"
        "      const auto t2 = ldn<16>(p0 + 35 * i0 + i1, n);\n"
        "      const auto t3 = exp_(t2);\n"
        "      acc0 = acc0 + sel(first_lanes<16>(n), t3, bc<16>(0.0f));\n"
        "    }\n"
        "    const auto resultacc0 = hsum(acc0);\n"
        "    st1(p1 + i0, resultacc0);\n"
        "  }\n"
        "}\n"
    )


def test_equal_kernels_are_one():
    def fn(x, y, w):
        return torch.relu(x @ w) + 1, torch.relu(y @ w) + 1

    x = torch.empty(8, 8)
    plan = compile_graph(trace_aten(fn, x, x.clone(), x.clone()))
    assert len(plan.kernels) == 1
