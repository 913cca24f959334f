"""How many kernels common patterns become, and that they agree with eager."""

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor.lowering.lower import lower
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.pipeline import compile_graph
from dovetail_inductor.targets import CPU, CUDA
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor


def test_pointwise_chain_is_one_kernel(check):
    def chain(x, y):
        for _ in range(6):
            x = torch.tanh(x * y) + x
        return x

    assert check(chain, torch.randn(37, 129), torch.randn(37, 129)).launches == 1


def test_softmax_is_one_kernel(check):
    for shape, dim in [((64, 1000), -1), ((8, 37, 100), 1), ((5, 7), 0), ((3, 130), 1)]:
        assert check(lambda x, d=dim: torch.softmax(x, d), torch.randn(shape)).launches == 1


def test_log_softmax_is_one_kernel(check):
    assert check(lambda x: torch.log_softmax(x, -1), torch.randn(64, 1000)).launches == 1


def test_add_layer_norm_is_one_kernel(check):
    def fn(x, r, w, b):
        return F.layer_norm(x + r, (50,), w, b)

    x, r = torch.randn(4, 33, 50), torch.randn(4, 33, 50)
    assert check(fn, x, r, torch.randn(50), torch.randn(50)).launches == 1


def test_layer_norm_gelu_is_one_kernel(check):
    def fn(x, w, b):
        return F.gelu(F.layer_norm(x, (256,), w, b))

    assert check(fn, torch.randn(64, 256), torch.randn(256), torch.randn(256)).launches == 1


def test_column_sums_share_a_kernel(check):
    def fn(x, y):
        return (x * y).sum(0), x.sum(0)

    assert check(fn, torch.randn(60, 100), torch.randn(60, 100)).launches == 1


def test_transpose_add_is_one_kernel(check):
    assert check(lambda x, y: x + y.t(), torch.randn(64, 100), torch.randn(100, 64)).launches == 1


def test_cross_entropy(check):
    def fn(x, t):
        return F.cross_entropy(x, t)

    result = check(fn, torch.randn(64, 1000), torch.randint(0, 1000, (64,)))
    assert result.launches <= 2 and not result.externs


def test_matmul_epilogue(check):
    def fn(x, w, b):
        return F.gelu(torch.addmm(b, x, w)) * 2

    result = check(fn, torch.randn(32, 40), torch.randn(40, 24), torch.randn(24))
    assert result.launches == 1 and result.externs == ["aten::mm.out"]


def test_points_that_become_waves_are_not_rounded_on_a_gpu():
    """Rounded to a half type in memory, times 2**9, an angle would be off by whole turns."""

    def fn(origin, direction, depth):
        points = origin[:, None] + direction[:, None] * depth[..., None]
        angles = points[..., None] * 2.0 ** torch.arange(8)
        return angles.sin().flatten(-2)

    inputs = [torch.randn(16, 3), torch.randn(16, 3), torch.rand(16, 5)]
    gm = trace_aten(fn, *(x.bfloat16() for x in inputs))
    stored = lower(gm, CUDA).buffers.values()
    assert not [b for b in stored if b.dtype is torch.bfloat16 and b.shape == (16, 5, 3)]


@pytest.mark.parametrize("target", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("rows", [32, 32 * 1024])
def test_the_residual_stream_is_not_rounded_while_a_cache_holds_it(rows, target):
    def fn(x, *parts):
        found = []
        for part in parts:  # the sum is read by a norm and by the next sum
            x = x + part
            wide = x.float()
            found.append((wide * wide.square().mean(-1, keepdim=True).rsqrt()).to(x.dtype))
        return x, *found

    inputs = [torch.zeros(rows, 512, dtype=torch.bfloat16) for _ in range(10)]
    gm = trace_aten(fn, *inputs)
    graph = lower(gm, target)
    made = [b for b in graph.buffers.values() if b.shape == (rows, 512)]
    outputs = {output.buffer for output in graph.outputs}
    sums = [b for b in made if b.name.startswith("buf") and b.name not in outputs]
    rounded = [b for b in sums if b.dtype is torch.bfloat16]
    # Of a large one some sums are stored, on a CPU each.
    assert len(rounded) == (0 if rows == 32 else 2 if target is CUDA else 8)
    assert {b.dtype for b in made if b.name in outputs} == {torch.bfloat16}


def norms(rows, layers=6):
    """A block after another, each ending in a norm that a product and the next sum read; and its
    inputs in bfloat16."""

    def fn(x, *weights):
        for weight in weights:
            x = F.layer_norm(x + torch.tanh(x @ weight), (64,))
        return x

    torch.manual_seed(0)
    return fn, [torch.randn(n, 64).bfloat16() for n in [rows] + [64] * layers]


@pytest.mark.parametrize(("rows", "wide"), [(128, 5), (1 << 16, 0)])
def test_norms_that_products_read_too_are_not_rounded_for_the_next_sum(rows, wide):
    fn, inputs = norms(rows)
    graph = lower(trace_aten(fn, *inputs, decompositions=core_aten_table()), CUDA)
    made = [b.dtype for b in graph.buffers.values() if b.shape == (rows, 64)]
    assert made.count(torch.float32) == 6 + wide  # six sums; of the norms the last is the result


def kept_wide(fn, *shapes):
    """How many values of the first shape are in memory in float32, of a function of bfloat16."""
    gm = trace_aten(fn, *(torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes))
    buffers = lower(gm, CUDA).buffers.values()
    return sum(b.dtype is torch.float32 and b.shape == shapes[0] for b in buffers)


@pytest.mark.parametrize(("products", "wide"), [(1, 1), (4, 0)])
def test_what_a_cache_holds_no_longer_is_rounded(products, wide):
    def fn(x, w, large):
        y = torch.tanh(x)
        found = [y @ w]
        for _ in range(products):  # 32 MiB each, before y is read again
            large = large @ large
        return *found, large, y + 1

    assert kept_wide(fn, (128, 64), (64, 64), (4096, 4096)) == wide


def test_what_is_summed_up_or_convolved_is_rounded():
    def summed(x, w):
        y = torch.tanh(x)
        return y @ w, y + 1, y.sum(0)

    def convolved(x, w):
        y = torch.tanh(x)
        return torch.conv2d(y, w), y + 1

    assert kept_wide(lambda x, w: summed(x, w)[:2], (128, 64), (64, 64)) == 1
    assert kept_wide(summed, (128, 64), (64, 64)) == 0
    assert kept_wide(convolved, (1, 8, 16, 16), (8, 8, 1, 1)) == 0


def test_what_is_chosen_from_narrow_numbers_is_in_memory_once():
    def fn(x, w):
        small = torch.relu(torch.maximum(x, -x[:1]))
        return small @ w, small + 1

    gm = trace_aten(fn, torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16())
    assert not [b for b in lower(gm, CUDA).buffers.values() if b.dtype is torch.float32]


def test_unrounded_norms_are_nearer_to_float64():
    fn, inputs = norms(64)
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    plan = compile_graph(gm, options=InductorOptions(triton=True))
    exact = fn(*(x.double() for x in inputs))

    def error(values):
        return float((values.double() - exact).square().mean().sqrt())

    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    assert error(got) < 0.8 * error(fn(*inputs))


def test_two_narrow_tensors_are_read_again_rather_than_their_float32_sum():
    """What a norm's backward reads of its forward: as many bytes, and none are written."""

    def fn(x, y, z):
        total = x.float() - y.float()
        return (total * z).sum(-1), (total + z).sum(-1)

    inputs = [torch.zeros(1024, 64, dtype=torch.bfloat16) for _ in range(2)]
    gm = trace_aten(fn, *inputs, torch.zeros(1024, 64))
    for target in (CPU, CUDA):
        stored = [b.shape for b in lower(gm, target).buffers.values()]
        assert stored.count((1024, 64)) == (3 if target is CUDA else 4)
