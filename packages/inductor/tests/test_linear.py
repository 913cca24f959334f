"""Products and convolutions with a bias: added by the library call, or by the kernels that read the
product."""

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime import load
from dovetail_runtime.plan import Allocate, CallAten, LaunchTriton
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor

R = torch.randn


def test_readers_add_the_bias(check):
    result = check(lambda x, w, b: F.gelu(F.linear(x, w, b)) * 2, R(24, 16), R(32, 16), R(32))
    assert result.launches == 1 and result.externs == ["aten::mm.out"]


def test_two_readers_through_views_add_the_bias_each(check):
    def fn(x, w, b):
        y = F.linear(x, w, b)
        return F.layer_norm(x + y, (16,)), y.transpose(1, 2).relu().sum(1)

    result = check(fn, R(3, 7, 16), R(16, 16), R(16))
    assert result.externs == ["aten::mm.out"]


def test_a_product_that_leaves_has_its_bias(check):
    result = check(F.linear, R(24, 16), R(32, 16), R(32))
    assert result.launches == 0 and result.externs == ["aten::addmm.out"]


def test_a_product_that_another_call_reads_has_its_bias(check):
    result = check(lambda x, w, b: F.linear(x, w, b) @ w, R(24, 16), R(32, 16), R(32))
    assert result.externs == ["aten::addmm.out", "aten::mm.out"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_products_are_rounded_once(check, dtype):
    x, w, b = R(5, 16).to(dtype), R(8, 16).to(dtype), R(8).to(dtype)
    result = check(lambda x, w, b: F.linear(x, w, b).relu(), x, w, b)
    assert result.externs == ["aten::addmm.out"]


@pytest.mark.parametrize("scales", [{"beta": 2.0}, {"alpha": 0.5}, {"beta": 0}])
def test_scaled_sums_are_library_calls(check, scales):
    result = check(lambda b, x, w: torch.addmm(b, x, w, **scales).relu(), R(8), R(5, 16), R(16, 8))
    assert result.externs == ["aten::addmm.out"]


def test_a_matrix_as_bias_is_a_library_call(check):
    result = check(lambda b, x, w: torch.addmm(b, x, w).relu(), R(5, 8), R(5, 16), R(16, 8))
    assert result.externs == ["aten::addmm.out"]


@pytest.mark.parametrize("rows", [0, 1, 3, 17])
@pytest.mark.parametrize("columns", [1, 5, 33])
@pytest.mark.parametrize("inner", [0, 1, 7])
def test_sizes(check, rows, columns, inner):
    check(
        lambda x, w, b: F.linear(x, w, b).sigmoid(), R(rows, inner), R(columns, inner), R(columns)
    )


def test_one_bias_for_all_columns(check):
    check(lambda b, x, w: torch.addmm(b, x, w).relu(), R(1), R(5, 16), R(16, 8))


def test_strided_operands(check):
    x, w, b = R(16, 24).t(), R(64, 32)[::2, ::2], R(96)[::3]
    check(lambda x, w, b: F.linear(x, w, b).tanh(), x, w, b)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_not_finite_biases(check, value):
    b = R(8).double()
    b[3] = value
    check(lambda x, w, b: F.linear(x, w, b).exp(), R(5, 4).double(), R(8, 4).double(), b)


CONVOLUTIONS = {
    "2d": (F.conv2d, (R(2, 3, 8, 8), R(4, 3, 3, 3), R(4))),
    "1d_groups": (lambda x, w, b: F.conv1d(x, w, b, groups=3), (R(2, 3, 8), R(3, 1, 3), R(3))),
    "transposed": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2),
        (R(2, 3, 8, 8), R(3, 4, 3, 3), R(4)),
    ),
    "no_batch": (F.conv2d, (R(3, 8, 8), R(4, 3, 3, 3), R(4))),
    "3d_strided_bias": (F.conv3d, (R(1, 2, 5, 6, 7), R(4, 2, 2, 2, 2), R(8)[::2])),
    "channels_last": (
        F.conv2d,
        (R(2, 8, 8, 8).to(memory_format=torch.channels_last), R(4, 8, 3, 3), R(4)),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_readers_add_a_convolutions_bias_on_a_gpu(name, dtype):
    """There the library adds it in a kernel of its own, to what it has rounded."""
    fn, inputs = CONVOLUTIONS[name]
    inputs = [t.to(dtype) for t in inputs]

    def block(x, w, b):
        return fn(x, w, b).relu()

    gm = trace_aten(block, *inputs, decompositions=core_aten_table())
    plan = compile_graph(gm, inputs, options=InductorOptions(triton=True))
    (call,) = (s for s in plan.steps if isinstance(s, CallAten))
    assert call.op == "aten::convolution" and call.args[2] is None
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) == 1
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    x, w, b = inputs
    exact, eager = block(x.double(), w.double(), b.double()), block(*inputs)
    product = fn(x, w, None)
    own_kernel = (product + b.view(-1, *(1,) * (w.ndim - 2))).relu()
    assert got.stride() == eager.stride() and got.dtype == eager.dtype
    assert (got - exact).abs().max() <= (own_kernel - exact).abs().max() + 1e-6


@pytest.mark.parametrize("shapes", [((2, 6, 8, 8), (12, 1, 3, 3)), ((2, 6, 9), (6, 1, 4))])
def test_the_library_adds_the_bias_of_a_depthwise_convolution_that_is_all(shapes):
    """Its own kernels of those add it before they write."""
    x, w = (R(shape) for shape in shapes)
    how = ([1] * (w.ndim - 2), [1] * (w.ndim - 2), [1] * (w.ndim - 2), False, [0] * (w.ndim - 2), 6)

    def calls_and_launches(fn):
        inputs = (x, w, R(len(w)))
        gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
        plan = compile_graph(gm, inputs, options=InductorOptions(triton=True))
        (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
        torch.testing.assert_close(got, fn(*inputs))
        (call,) = (s for s in plan.steps if isinstance(s, CallAten))
        return call.args[2] is not None, sum(isinstance(s, LaunchTriton) for s in plan.steps)

    conv = torch.ops.aten.convolution
    assert calls_and_launches(lambda x, w, b: conv(x, w, b, *how)) == (True, 0)
    assert calls_and_launches(lambda x, w, b: conv(x, w, b, *how).relu()) == (False, 1)


def test_a_grouped_convolution_over_transposed_rows_gets_its_copy_from_a_kernel():
    """`x.transpose(1, 2)`, which the library would copy."""

    def fn(x, w):
        return F.conv1d((x * 2 + 1).transpose(1, 2), w, padding=3, groups=8)

    x, w = R(2, 40, 8), R(8, 1, 4)
    gm = trace_aten(fn, x, w, decompositions=core_aten_table())
    plan = compile_graph(gm, options=InductorOptions(triton=True))
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x, w)
    torch.testing.assert_close(got, fn(x, w), rtol=1e-5, atol=1e-5)
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) == 1
    (call,) = [s for s in plan.steps if isinstance(s, CallAten)]
    (written,) = [s for s in plan.steps if isinstance(s, Allocate) and s.name == call.args[0].name]
    assert written.spec.stride == (320, 40, 1)


@pytest.mark.parametrize("asked", [(True, True, True), (False, True, True), (True, False, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_gradient_of_a_convolutions_bias_is_a_sum_on_a_gpu(asked, dtype):
    """Computed where what it sums up is: one kernel beside the library's call."""

    def fn(g, x, w):
        how = [8], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, list(asked)
        found = torch.ops.aten.convolution_backward(g.relu() * 2, x, w, *how)
        return tuple(t for t, wanted in zip(found, asked, strict=True) if wanted)

    inputs = (R(3, 8, 6, 7).to(dtype), R(3, 4, 8, 9).to(dtype), R(8, 4, 3, 3).to(dtype))
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    plan = compile_graph(gm, inputs, options=InductorOptions(triton=True))
    assert sum(isinstance(s, LaunchTriton) for s in plan.steps) == 1
    (call,) = (s for s in plan.steps if isinstance(s, CallAten))
    assert not asked[2] or (call.args[-1] == (*asked[:2], False) and call.args[3] is None)
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    for mine, eager in zip(got, fn(*inputs), strict=True):
        assert mine.stride() == eager.stride() and mine.dtype == eager.dtype
        torch.testing.assert_close(mine, eager, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_column_times_a_row_is_no_library_call(check, dtype, rows):
    def fn(a, b):
        return a @ b, (a.expand(3, -1, -1) @ b.expand(3, -1, -1)).cos()

    result = check(fn, R(rows, 1).to(dtype), R(1, 7).to(dtype))
    assert result.externs == []


def test_the_gradient_of_a_layer_for_one_row_is_no_library_call(check):
    result = check(lambda g, x: (g.t() @ x * 2, g.sum(0)), R(1, 12), R(1, 9))
    assert result.launches <= 2 and result.externs == []


def test_zeros_of_products_of_one_term_have_no_sign():
    """A sum begins with zero. (What eager gives depends on the library's kernel.)"""
    inputs = -torch.ones(2, 1), torch.zeros(1, 3)
    gm = trace_aten(torch.mm, *inputs, decompositions=core_aten_table())
    for triton in (False, True):
        plan = compile_graph(gm, inputs, options=InductorOptions(triton=triton))
        run = ReferenceExecutor(plan, launch_triton=run_in_interpreter) if triton else load(plan)
        (found,) = run(*inputs)
        assert not found.any() and not found.signbit().any()


def test_products_of_numbers_that_loops_do_not_hold_stay_calls(check):
    a, b = R(4, 1, dtype=torch.complex64), R(1, 4, dtype=torch.complex64)
    assert check(lambda a, b: a @ b, a, b).externs == ["aten::mm.out"]
