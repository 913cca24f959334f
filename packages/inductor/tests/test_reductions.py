"""Reductions of every kind and shape against eager."""

import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.options import FusionLimits
from dovetail_inductor.targets import CUDA
from dovetail_inductor.targets.target import Pieces, SplitRule
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import load
from dovetail_runtime.plan import LaunchCpp, LaunchTriton
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor

SHAPES = [((5, 7, 33), d) for d in (0, 1, 2, (0, 1), (1, 2), (0, 2), (0, 1, 2))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_kinds(check, dtype):
    def fn(x):
        out = []
        for _, dim in SHAPES:
            out += [x.sum(dim), torch.amax(x, dim), torch.amin(x, dim, keepdim=True)]
            out += [(x > 0).any(dim) if isinstance(dim, int) else (x > 0).sum(dim)]
        return (*out, x.prod(1), (x > 0).all(1), x.argmax(0), x.argmin(-1), x.argmax())

    check(fn, (torch.randn(5, 7, 33) * 2).to(dtype))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32])
def test_sums_and_products_that_are_truths(check, dtype):
    x = torch.randint(0, 9, (17, 9, 7)).to(dtype)
    check(lambda x: (x.prod(1, dtype=torch.bool), x.sum(1, dtype=torch.bool)), x)
    check(lambda x: (x.prod(dtype=torch.bool), x.sum((0, 2), dtype=torch.bool)), x)


@pytest.mark.parametrize("count", [4, 8, 12, 20])
def test_reductions_of_what_is_known_when_it_is_compiled(check, count):
    """Vectors of constants, which GCC wrote wrongly where `memcpy` was to."""

    def fn(x):
        few = torch.arange(16) < 4
        ones = torch.ones(count)
        whole = torch.ones(count, count).tril().sum()
        return x * ones.sum(), x + whole, few.float(), few.float().sum() + x.sum()

    check(fn, torch.randn(count))


def test_strided_inputs(check):
    x = torch.randn(33, 7, 10)[:, :, ::2].permute(2, 0, 1)
    check(lambda x: (x.sum(0), x.sum(1), x.sum(2), x.amax((0, 2)), x.argmax(1), x.argmax()), x)


def test_nan_wins(check):
    x = torch.randn(9, 40)
    x[3, 17] = float("nan")
    x[5, 0] = float("nan")
    check(lambda x: (x.amax(1), x.amin(0), x.argmax(1), x.argmin(0), x.sum(1)), x)


def test_ties_take_the_first(check):
    x = torch.randint(0, 3, (11, 70))
    check(lambda x: (x.argmax(1), x.argmin(0), x.argmax(), x.float().argmin(1)), x)


@pytest.mark.parametrize("order", [(2, 1, 0), (0, 2, 1), (1, 2, 0)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
@pytest.mark.parametrize("few", [True, False])
def test_positions_among_elements_in_another_order_in_memory(check, dtype, order, few):
    """They are counted as the tensor has them, and the first of equals is meant."""
    sizes = (23, 7, 70)
    x = torch.randint(0, 3, sizes) if few else torch.randperm(23 * 7 * 70).view(sizes)
    x = x.to(dtype).permute(order)
    if few and dtype is torch.float32:
        x[torch.rand(x.shape) < 0.02] = torch.nan

    def fn(x):
        rows, columns = x.flatten(1), x.flatten(0, 1)
        return x.argmax(), x.argmin(), rows.argmax(1), columns.argmin(0), x.sum()

    check(fn, x)
    plan = compile_graph(
        trace_aten(fn, x, decompositions=core_aten_table()),
        options=InductorOptions(triton=True, fusion=FusionLimits(max_columns=10**6)),
    )
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x)
    for one, wanted in zip(got[:4], fn(x)[:4], strict=True):
        assert torch.equal(one, wanted)


def test_variance(check):
    def fn(x):
        a = torch.var_mean(x, 2, correction=0)
        b = torch.var_mean(x, (0, 1), correction=1, keepdim=True)
        return (*a, *b, x.std(1), x.var(), x.mean((0, 2)))

    check(fn, torch.randn(5, 7, 33) + 100, rtol=2e-4)


def test_batch_norm_training(check):
    x, w, b = torch.randn(6, 8, 5, 7), torch.randn(8), torch.randn(8)

    def fn(x, w, b):
        return F.batch_norm(x, None, None, w, b, training=True)

    check(fn, x, w, b)
    check(fn, x.to(memory_format=torch.channels_last), w, b)


def test_group_norm(check):
    check(
        lambda x, w, b: F.group_norm(x, 4, w, b),
        torch.randn(3, 8, 5, 7),
        torch.randn(8),
        torch.randn(8),
    )


def test_large_sums_are_accurate(check):
    x = torch.rand(1_000_003)
    result = check(lambda x: (x.sum(), x.mean()), x, rtol=1e-4)
    exact = x.double().sum().item()
    ours = abs(result.outputs[0].item() - exact)
    assert ours <= max(abs(x.sum().item() - exact), 1e-6 * exact)


def test_column_sums_of_many_rows(check):
    x = torch.rand(20_000, 24)
    result = check(lambda x: x.sum(0), x, rtol=1e-4)
    exact = x.double().sum(0)
    assert ((result.outputs[0] - exact).abs() / exact).max() < 1e-6


NOTHING = {
    "sum": lambda x: x.sum(0),
    "prod": lambda x: x.prod(0),
    "any": lambda x: (x > 0).any(0),
    "all": lambda x: (x > 0).all(0),
    "mean": lambda x: x.mean(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "norm": lambda x: x.norm(dim=0),
    "everything": lambda x: x.sum() + 1,
}


@pytest.mark.parametrize("name", NOTHING)
def test_no_elements_in_a_triton_kernel(name):
    """A block has one element at least, which must not be read: what lies there is another's."""
    fn, x = NOTHING[name], torch.randn(5, 4)[2:2]
    gm = trace_aten(fn, x, decompositions=core_aten_table())
    plan = compile_graph(gm, [x], options=InductorOptions(triton=True))
    assert not any("tl.load" in k.source for k in plan.kernels)
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x)
    torch.testing.assert_close(got, fn(x), equal_nan=True)


def with_outlier(x):
    x = x.clone()
    x[:, 3] = 1e4
    return x


FAR_FROM_ZERO = {
    "far from zero": lambda: torch.randn(4, 49_152) + 1000,
    "of one value": lambda: torch.full((3, 65_536), 0.1),
    "with an outlier": lambda: with_outlier(torch.randn(4, 49_152)),
    "across": lambda: torch.randn(16_384, 16) + 100,
}


@pytest.mark.parametrize("triton", [False, True])
@pytest.mark.parametrize("name", FAR_FROM_ZERO)
def test_a_variance_in_pieces_reads_once_and_is_exact(name, triton):
    x = FAR_FROM_ZERO[name]()
    dim = 0 if name == "across" else 1

    def fn(x):
        return torch.var_mean(x, dim)

    gm = trace_aten(fn, x, decompositions=core_aten_table())
    plan = compile_graph(gm, [x], options=InductorOptions(triton=triton))
    (given,) = (i.name for i in plan.inputs)
    launches = [s for s in plan.steps if isinstance(s, LaunchCpp | LaunchTriton)]
    assert len(launches) == 2
    args = [s.tensors if isinstance(s, LaunchCpp) else s.args for s in launches]
    assert [given in names for names in args] == [True, False]
    if triton:
        got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x)
    else:
        got = load(plan)(x)
    for ours, eager, exact in zip(got, fn(x), fn(x.double()), strict=True):
        error, eagers = ((t - exact).abs().max() for t in (ours, eager))
        # (Where a vector holds 8 numbers, a lane adds 128 of them.)
        assert error <= 2 * eagers + 2e-6 * exact.abs().max() + 1e-12 * x.square().max()


def test_long_rows_of_several_results_are_read_once():
    """Where the rows that a GPU works on at a time exceed its cache, a norm's pieces are small, and
    what follows is spread over all points. (Rows of some thousand elements stand for such.)"""
    small = SplitRule(
        4, 16, 1 << 10, Pieces(64, 256, kept=256), Pieces(32, 64, kept=0), cache=(4, 1 << 14)
    )
    target = replace(CUDA, scheduling=replace(CUDA.scheduling, split=small))
    x, weight, bias = torch.randn(3, 4, 30, 50) + 3, torch.randn(4), torch.randn(4)

    def fn(x, weight, bias):
        return F.group_norm(F.gelu(x), 2, weight, bias) * 2

    gm = trace_aten(fn, x, weight, bias, decompositions=core_aten_table())
    plan = compile_graph(gm, options=InductorOptions(target=target))
    launches = [s for s in plan.steps if isinstance(s, LaunchTriton)]
    assert [s.kernel.split("_")[0] for s in launches] == ["reduce", "reduce", "pointwise"]
    programs, *_ = launches[0].grid
    assert programs >= 6 * 3000 // 512
    assert sum(plan.inputs[0].name in s.args for s in launches) == 1
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x, weight, bias)
    torch.testing.assert_close(got, fn(x, weight, bias), rtol=1e-5, atol=1e-5)


def test_squares_about_something_else_than_the_mean(check):
    """What the sums of the pieces say of distances from anything that a row has."""
    x, y = torch.randn(4, 49_152) + 5, torch.randn(4, 1)

    def fn(x, y):
        total = x.sum(1, keepdim=True)
        return total, ((x - y) ** 2).sum(1), ((x - total * 1e-4) ** 2).sum(1)

    check(fn, x, y, rtol=1e-4)


def test_rounding_errors_do_not_grow_with_rows_that_are_no_vectors(check):
    """Of every other element, and of what a pooling gives: one accumulator takes them all."""
    x = torch.rand(4, 8, 64, 64)

    def fn(x):
        pooled = F.max_pool2d(x, 2, 2)
        return pooled.sum((1, 2, 3)), F.group_norm(pooled, 2), x[:, 0, :, ::2].mean((1, 2))

    checked = check(fn, x)
    for ours, eager, exact in zip(checked.outputs, fn(x), fn(x.double()), strict=True):
        error, eagers = ((t - exact).norm() / exact.norm() for t in (ours, eager))
        assert error <= 1.5 * eagers + 3e-8


def triton_plan(fn, *inputs):
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, options=InductorOptions(triton=True))


def test_loops_of_a_reduction_follow_memory():
    """The channels of a group lie side by side in channels-last; the graph has them first."""
    x = torch.randn(2, 8, 20, 20).to(memory_format=torch.channels_last)

    def fn(x):
        return F.group_norm(x, 2)

    plan = triton_plan(fn, x)
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x)
    torch.testing.assert_close(got, fn(x), rtol=1e-5, atol=1e-5)
    (kernel,) = plan.kernels
    (innermost,) = set(re.findall(r"(v\d+) = r % 4\n", kernel.source))
    loads = re.findall(r"tl.load\(p\d \+ \((.*?)\)[,)]", kernel.source)
    assert loads and all(innermost in load.split(" + ") for load in loads)


def test_large_groups_leave_no_loop_over_all_their_elements():
    """Where a GPU's cache does not hold them from one pass to the next."""
    x = torch.empty(32, 64, 256, 256).to(memory_format=torch.channels_last)
    plan = triton_plan(lambda x: F.group_norm(x, 8), x)
    launches = [s for s in plan.steps if isinstance(s, LaunchTriton)]
    assert len(launches) == 3 and all("for start" not in k.source for k in plan.kernels)
    assert launches[0].grid[0] >= 4096


def test_dear_values_that_a_program_stored_are_read_back(build_for_h100):
    """Their values are compared on a GPU (`test_gpu_kernels.py`)."""
    x = torch.randn(20_000, 64)

    def fn(x):
        stored = torch.tanh(F.softplus(x)) * torch.sin(x)
        return F.batch_norm(stored, None, None, training=True)

    plan = triton_plan(fn, x)
    (kernel,) = [k for k in plan.kernels if "tl.debug_barrier()" in k.source]
    assert kernel.source.count("tl.sin(") == 1
    build_for_h100(plan.kernels)


@pytest.mark.parametrize(
    ("shape", "dims"),
    [((4096, 200), 0), ((1000, 200), 0), ((20_000, 72), 0), ((9, 5, 200, 70), (0, 2)),
     ((3, 2, 1500, 40), (0, 1, 2))],
)  # fmt: skip
def test_sums_down_columns_are_sums_of_sums(shape, dims):
    """Their error does not grow with the number of terms as that of one chain does."""
    torch.manual_seed(0)
    x = torch.randn(shape) + 1

    def fn(x):
        return x.sum(dims), (x * x).sum(dims)

    plan = compile_graph(trace_aten(fn, x, decompositions=core_aten_table()), [x])
    for got, exact in zip(load(plan).run(x), fn(x.double()), strict=True):
        error = (got.double() - exact).norm() / exact.norm()
        assert error <= 1.2e-7, error


def test_a_sum_of_one_number_at_a_place_is_that_number(check):
    """As a loss over classes gives its gradient to that of each target."""

    def fn(x, target, number):
        places = torch.arange(40)
        at = target[:, None] == places
        return (
            torch.where(at, number[:, None], 0.0).sum(1),
            torch.where(places == target[:, None], 7, 0).sum(1, keepdim=True),
            torch.where(at, x, 0.0).sum(1),  # depends on the place
            torch.where(at, number[:, None], 1.0).sum(1),  # is not 0 elsewhere
            torch.where(at, 0.0, number[:, None]).sum(1),
        )

    x, number = torch.randn(9, 40), torch.randn(9)
    target = torch.tensor([0, 39, 40, -1, -100, 5, 6, 7, 8])  # some are no place at all
    number[5:8] = torch.tensor([float("nan"), float("inf"), -0.0])
    checked = check(fn, x, target, number)
    assert not checked.outputs[0][7].signbit()

    def chosen(target, number):
        return torch.where(target[:, None] == torch.arange(40), number[:, None], 0.0).sum(1)

    plan = triton_plan(chosen, target, number)
    assert [kernel.symbol.split("_")[0] for kernel in plan.kernels] == ["pointwise"]


@pytest.mark.parametrize("shape", [(64, 4), (70, 96), (40, 128), (8, 4096), (3, 5000)])
def test_threads_agree_on_the_sum_of_a_row(shape, h100_builder):
    """No product is fused with the sum of it and another thread's: each thread would round another,
    and all store theirs to one place."""
    x, y = torch.randn(2, *shape)

    def fn(x, y):
        gated = F.gelu(x) * y
        return F.layer_norm(gated, shape[1:]), (x * y).sum(-1), x * y, (x * x).mean(-1)

    plan = triton_plan(fn, x, y)
    h100_builder.build(plan.kernels)
    text = "\n".join(map(h100_builder.assembler_text, plan.kernels))
    shuffled = set(re.findall(r"shfl\.sync\.bfly\.b32\s+(%\w+)", text))
    fused = re.findall(r"fma\.rn\.f32\s+%\w+, %\w+, %\w+, (%\w+);", text)
    assert shuffled and not shuffled & set(fused)
    # Threads that add up several first have sums to exchange, which nothing is fused with.
    assert any("tl.fma(" in k.source for k in plan.kernels) == (shape[1] < 96)
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(x, y)
    for mine, wanted in zip(got, fn(x, y), strict=True):
        torch.testing.assert_close(mine, wanted)


def test_squares_that_a_variance_sums_have_several_accumulators():
    """Beside the largest square in one, the others of that one are lost."""
    x = torch.full((12410,), 0.9)
    x[0] = 1e4
    graph = trace_aten(lambda x: (x.var(), x.sum()), x, decompositions=core_aten_table())
    plan = compile_graph(graph)
    (found, _) = load(plan)(x)
    wanted = x.double().var()
    assert abs(found - wanted) < 5e-6 * wanted
    assert all("[4]" in kernel.source for kernel in plan.kernels if "hsum" in kernel.source)
