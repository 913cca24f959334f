"""The partitioner: what is saved, what is computed again, and the maximum flow beneath."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from aot_testing import TABLES, as_graph, lift, run_fx
from dovetail_autograd_aot import (
    AotLog,
    aot_compile,
    default_partition,
    min_cut_partition,
    trace_joint,
)
from dovetail_autograd_aot.graph.op_info import draws_random_numbers
from dovetail_autograd_aot.outputs.output_aliasing import is_view_node
from dovetail_autograd_aot.partition.min_cut import FlowNetwork
from dovetail_prims.dialects import exact_comparisons
from trace_costs import LanguageModel


def brute_force_cut(n, edges):
    best = None
    for chosen in itertools.product([0, 1], repeat=n - 2):
        side = [0, 1, *chosen]  # vertex 0 is the source, 1 the sink
        cut = sum(c for a, b, c in edges if side[a] == 0 and side[b] == 1)
        best = cut if best is None else min(best, cut)
    return best


@pytest.mark.parametrize("seed", range(40))
def test_max_flow_equals_brute_force_minimum_cut(seed):
    rng = random.Random(seed)
    n = rng.randint(2, 9)
    edges = [
        (a, b, rng.randint(0, 9))
        for a, b in itertools.permutations(range(n), 2)
        if rng.random() < 0.5
    ]
    network = FlowNetwork(n)
    for edge in edges:
        network.add_edge(*edge)
    flow = network.max_flow(0, 1)
    assert flow == brute_force_cut(n, edges)
    reaches = network.reaches_sink(1)
    assert reaches[1] and not reaches[0]
    assert sum(c for a, b, c in edges if not reaches[a] and reaches[b]) == flow


def joint(fn, *inputs, table="core"):
    return trace_joint(as_graph(fn, len(inputs)), inputs, decompositions=TABLES[table])


def p(*shape):
    return torch.randn(*shape, requires_grad=True)


def test_pointwise_from_inputs_is_computed_again():
    parts = min_cut_partition(joint(lambda a: (a.sin().cos().exp().sum(),), p(100)))
    assert parts.saved == ("arg0",) and parts.saved_primals == (0,)
    assert parts.saved_bytes == 0
    assert default_partition(joint(lambda a: (a.sin().cos().exp().sum(),), p(100))).saved_bytes > 0


def test_matrix_products_are_not_computed_again():
    j = joint(lambda a, w: ((a @ w).sin().sum(),), p(8, 8), p(8, 8))
    parts = min_cut_partition(j)
    forward = [n.target for n in parts.forward.graph.nodes]
    backward = [n.target for n in parts.backward.graph.nodes]
    mm = torch.ops.aten.mm.default
    assert forward.count(mm) == 1 and backward.count(mm) == 2
    assert len(parts.saved) == 3 and parts.saved_bytes == 8 * 8 * 4


def test_the_smaller_value_is_saved():
    # The bfloat16 copy is half the size, and the backward of sin can be had from it.
    def fn(a, w):
        return ((a @ w).to(torch.bfloat16).sin().sum(),)

    assert min_cut_partition(joint(fn, p(8, 8), p(8, 8))).saved_bytes == 8 * 8 * 2


def test_random_numbers_are_saved():
    def fn(a):
        return (F.dropout(a, 0.5, True).sin().sum(),)

    parts = min_cut_partition(joint(fn, p(64)))
    backward = [str(n.target) for n in parts.backward.graph.nodes if n.op == "call_function"]
    assert not any("bernoulli" in t or "dropout" in t for t in backward)


def test_of_equal_values_what_is_in_memory_anyway_is_saved():
    def fn(a, w):
        return (((a @ w).sigmoid().float() * 3).sum(),)

    def gate(a, w):
        return ((a @ w).relu() @ w,)

    half = [torch.randn(8, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]
    parts = min_cut_partition(joint(fn, *half))
    assert "mm_default" in parts.saved and "sigmoid_default" not in parts.saved
    parts = min_cut_partition(joint(gate, *half))
    assert "relu_default" in parts.saved and "mm_default" not in parts.saved


@pytest.mark.parametrize("select", [False, True])
def test_rows_are_gathered_again_from_what_is_there(select: bool) -> None:
    """The edges of a graph network: more of them than nodes."""
    edges = torch.randint(0, 4, (50,))

    def messages(x, w, s, numbers):
        h = x @ w
        return ((h.index_select(0, numbers) if select else h[numbers]) * s,)

    parts = min_cut_partition(joint(messages, p(4, 8), p(8, 16), p(50, 16), edges))
    assert "mm_default" in parts.saved and not any("index" in name for name in parts.saved)
    assert parts.saved_bytes == 4 * 16 * 4
    # Short rows come from all over memory; which are true is known on the way only.
    parts = min_cut_partition(joint(messages, p(4, 8), p(8, 2), p(50, 2), edges))
    assert any("index" in name for name in parts.saved)


@pytest.mark.parametrize("graded", [False, True])
def test_rows_of_inputs_are_kept_as_eager_does(graded: bool) -> None:
    """An embedding's weight, or a bank of what was seen, may be written to before the backward."""
    tokens, table = torch.randint(0, 100, (5,)), p(100, 16).detach().requires_grad_(graded)
    parts = min_cut_partition(joint(lambda w, s, t: (w[t] * s,), table, p(5, 16), tokens))
    assert 0 not in parts.saved_primals and parts.saved_bytes == 5 * 16 * 4


def test_views_are_never_saved():
    def fn(a, w):
        b = a @ w
        return (b.view(4, 16).t().sin().sum() + b[0].exp().sum() + b.chunk(2)[1].cos().sum(),)

    j = joint(fn, p(8, 8), p(8, 8))
    parts = min_cut_partition(j)
    nodes = {n.name: n for n in j.gm.graph.nodes}
    assert not any(is_view_node(nodes[name]) for name in parts.saved)
    assert parts.saved_bytes == 8 * 8 * 4


def test_an_overwritten_input_is_saved_as_a_copy():
    def fn(a, w):
        b = a.clone() * w
        a.zero_()
        return (b,)

    parts = min_cut_partition(joint(fn, torch.randn(4), p(4)))
    assert 0 not in parts.saved_primals and parts.saved_bytes == 16


@torch.library.custom_op("dovetail_test::double_in_place", mutates_args={"x"})
def double_in_place(x: torch.Tensor) -> None:
    x.mul_(2)


def written_by_an_operator(a):
    copied = a.clone()
    double_in_place(copied)
    return (copied + 1,)


def counted_from_the_beginning(a):
    return (a.t().clone().fill_diagonal_(2.0),)


def seen_in_order(a):
    return (a.t().clone(memory_format=torch.preserve_format).view(a.t().shape).sin(),)


@pytest.mark.parametrize(
    "fn, requires_grad",
    [
        (written_by_an_operator, False),
        (counted_from_the_beginning, False),
        (counted_from_the_beginning, True),
        (seen_in_order, False),
        (seen_in_order, True),
    ],
)
def test_a_copy_whose_memory_matters_stays(fn, requires_grad):
    """The input begins within its memory, which nobody may write to."""
    memory = torch.arange(30.0)
    a = memory[2:18].view(4, 4).detach().requires_grad_(requires_grad)
    before = memory.clone()
    run = aot_compile(as_graph(fn, 1), (a,), forward_compiler=lambda g, i: g.forward)
    (got,), (wanted,) = run(a), fn(a)
    torch.testing.assert_close(got, wanted)
    assert got.stride() == wanted.stride() and torch.equal(memory, before)
    if a.requires_grad:
        grads = [torch.autograd.grad(t.sum(), a)[0] for t in (got, wanted)]
        torch.testing.assert_close(*grads)


def test_a_copy_of_an_input_is_saved_as_a_copy():
    """The program makes it to write to the input before the backward."""

    def fn(a, w):
        return (w @ a.clone() + a[:4, :4].clone().t().sin() @ w, a.clone() + 1)

    a, w = torch.randn(4, 4), p(4, 4)
    parts = min_cut_partition(joint(fn, a, w))
    assert parts.saved_primals == () and parts.saved_bytes == 64
    copies = [n for n in parts.forward.graph.nodes if n.target is torch.ops.aten.clone.default]
    assert len(copies) == 1  # what nobody keeps is not copied
    wanted = torch.autograd.grad(fn(a, w)[0].sum(), w)
    run = aot_compile(as_graph(fn, 2), (a, w), forward_compiler=lambda g, i: g.forward)
    got = run(a, w)[0]
    a.zero_()
    torch.testing.assert_close(torch.autograd.grad(got.sum(), w), wanted)
    no_backward = trace_joint(as_graph(fn, 2), (a, w.detach()), decompositions=TABLES["core"])
    forward = min_cut_partition(no_backward).forward.graph
    assert not any(n.target is torch.ops.aten.clone.default for n in forward.nodes)


def eager_saved_bytes(module, inputs):
    """Bytes of the storages autograd saves in eager, parameters and inputs not counted."""
    free = {
        t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers(), *inputs)
    }
    seen = {}

    def pack(t):
        storage = t.untyped_storage()
        if storage.data_ptr() not in free:
            seen[storage.data_ptr()] = (storage.nbytes(), t)  # held: pointers stay distinct
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = module(*inputs)
    total = sum(size for size, _ in seen.values())
    del out
    return total


def conv_net():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(inplace=True), torch.nn.MaxPool2d(2), torch.nn.Conv2d(8, 8, 3),
        torch.nn.SiLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(8, 4), torch.nn.Softmax(-1),
    )  # fmt: skip


class Sampled(torch.nn.Module):
    """Features read at places that are learned, too: attention that samples a few of them."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.places = torch.nn.Linear(4, 2 * 32 * 64)

    def forward(self, image, x):
        places = torch.tanh(self.places(x)).view(2, 32, 64, 2)
        return F.grid_sample(self.features(image), places, align_corners=False).sum(-1)


MODELS = {
    "sampled": (Sampled(), [torch.randn(2, 3, 6, 6), torch.randn(2, 4)]),
    "language_model": (LanguageModel(2, 32), [torch.randint(0, 128, (2, 16))] * 2),
    "conv_net": (conv_net(), [torch.randn(4, 3, 16, 16)]),
    "mlp": (
        torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Dropout(0.1),
            torch.nn.Linear(32, 8), torch.nn.LayerNorm(8), torch.nn.Tanh(),
        ),
        [torch.randn(16, 8)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("table", ["aten", "core"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_saves_no_more_than_eager(name, table):
    module, inputs = MODELS[name]
    fn, values = lift(module)
    j = joint(fn, *values, *inputs, table=table)
    ours = min_cut_partition(j).saved_bytes
    assert ours <= default_partition(j).saved_bytes
    assert ours <= eager_saved_bytes(module, inputs), (ours, eager_saved_bytes(module, inputs))


class _OfInputs(torch.autograd.Function):
    """Keeps what is small, and computes what is wide again, as users write it by hand."""

    @staticmethod
    def forward(ctx, a, w):
        ctx.save_for_backward(a, w)
        return (a @ w).tanh().sum()

    @staticmethod
    def backward(ctx, grad):
        a, w = ctx.saved_tensors
        slope = grad * (1 - (a @ (w * 2) / 2).tanh() ** 2)
        return slope @ w.T, a.T @ slope


def test_what_eager_computes_in_the_backward_is_computed_there():
    parts = min_cut_partition(joint(lambda a, w: (_OfInputs.apply(a, w),), p(256, 4), p(4, 256)))
    assert parts.saved_bytes == 0 and len(parts.saved_primals) == 2


def test_recomputed_values_stand_near_their_use():
    def fn(a, w):
        for _ in range(4):
            a = (a @ w).sin()
        return (a,)

    parts = min_cut_partition(joint(fn, p(4, 4), p(4, 4)))
    nodes = [n for n in parts.backward.graph.nodes if n.op == "call_function"]
    cosines = [i for i, n in enumerate(nodes) if n.target is torch.ops.aten.cos.default]
    assert len(cosines) == 4 and cosines[-1] - cosines[0] > 4


def test_of_equal_cuts_the_one_that_saves_an_output_is_taken():
    def fn(x, w):
        return (torch.tanh(x @ w),)

    inputs = (torch.randn(4, 3), torch.randn(3, 5, requires_grad=True))
    joint = trace_joint(as_graph(fn, 2), inputs, decompositions=TABLES["core"])
    parts = min_cut_partition(joint)
    results = parts.forward.graph.output_node().args[0]
    assert len(results) == 2 and results[0] is results[1]


def test_logits_that_are_returned_are_saved_with_their_rows_statistics():
    """Not the log-probabilities of the same size, which would be held beside the logits."""

    def fn(x, w, target):
        logits = x @ w
        return F.cross_entropy(logits, target), logits

    inputs = (torch.randn(64, 8), torch.randn(8, 500, requires_grad=True), torch.arange(64))
    parts = min_cut_partition(trace_joint(as_graph(fn, 3), inputs, decompositions=TABLES["core"]))
    results = parts.forward.graph.output_node().args[0]
    assert results[1] in results[2:]
    others = [n for n in results[2:] if n is not results[1] and n.op == "call_function"]
    assert others and all(n.meta["val"].numel() <= 64 for n in others)


def test_a_checkpointed_region_is_computed_again_from_what_goes_in():
    def layers(x, w, marks):
        graph = torch.fx.Graph()
        value, weight = graph.placeholder("x"), graph.placeholder("w")
        for region in range(3):
            for op in (torch.mm, torch.tanh, torch.exp):
                args = (value, weight) if op is torch.mm else (value,)
                value = graph.call_function(op, args)
                if marks:
                    value.meta["checkpoint"] = region
        graph.output((value,))
        gm = torch.fx.GraphModule(torch.nn.Module(), graph)
        return min_cut_partition(trace_joint(gm, [x, w]))

    x = torch.randn(8, 8)
    w = torch.randn(8, 8, requires_grad=True)
    one = x.numel() * 4
    # Each product, or what is made of it; with marks, what the regions give to one another.
    assert layers(x, w, False).saved_bytes == 3 * one
    parts = layers(x, w, True)
    assert parts.saved_bytes == 3 * one and parts.saved[2:] == (
        "exp_default",
        "exp_default_1",
        "exp_default_2",
    ), parts.saved
    again = [n for n in parts.backward.graph.nodes if n.target is torch.ops.aten.tanh.default]
    assert len(again) == 3


@pytest.mark.parametrize(
    "reduce",
    [
        lambda a: a.amax(0),
        lambda a: a.min(),
        lambda a: torch.linalg.vector_norm(a, float("inf"), dim=1),
        lambda a: a.renorm(float("inf"), 0, 0.5),
        lambda a: torch.where(a >= a.topk(2, dim=1).values[:, -1:], a, 0.0),
        lambda a: a.new_zeros(2, 5).scatter_reduce(0, (a > 9).long(), a, "amax"),
        lambda a: torch.cdist(a, a.roll(1, 0), p=float("inf")),
    ],
)
def test_what_is_compared_with_its_reduction_is_not_computed_again(reduce):
    """The backward either has the mask, or what the reduction saw: another kernel's roundings
    would leave no element that equals the largest."""

    def fn(x, y):
        return (reduce((x * y).exp() + x),)

    parts = min_cut_partition(joint(fn, p(4, 5), p(4, 5)))
    graph = parts.backward.graph
    made_again = set()
    for node in graph.nodes:
        if node.op == "call_function" and made_again.intersection(node.all_input_nodes):
            made_again.add(node)
        elif node.target is torch.ops.aten.exp.default:
            made_again.add(node)
    comparing = set(exact_comparisons.COMPARISONS) | {torch.ops.aten._cdist_backward.default}
    for node in graph.nodes:
        if node.target in comparing:
            assert not made_again.intersection(node.all_input_nodes[-2:]), node.format_node()


def layers(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor]:
    for w in weights:
        x = F.layer_norm(F.gelu(x @ w), (x.shape[-1],)) + x
    return ((x.softmax(-1) * x).sum(),)


def test_a_budget_bounds_what_is_saved() -> None:
    """Fewer bytes the smaller the budget, and each time the same gradients."""
    inputs = [torch.randn(32, 16), *(torch.randn(16, 16) for _ in range(6))]
    for t in inputs:
        t.requires_grad_()
    traced = joint(layers, *inputs)
    expected = torch.autograd.grad(layers(*inputs)[0], inputs)
    full = min_cut_partition(traced).saved_bytes
    sizes, again = [], []
    for budget in (0, 0.2, 0.4, 0.6, 0.8, 1):
        parts = min_cut_partition(traced, activation_memory_budget=budget)
        sizes.append(parts.saved_bytes)
        log = AotLog()
        run = aot_compile(
            as_graph(layers, len(inputs)), inputs, forward_compiler=run_fx, log=log,
            decompositions=TABLES["core"],
            partition=lambda j, budget=budget: min_cut_partition(
                j, activation_memory_budget=budget
            ),
        )  # fmt: skip
        (out,) = run(*inputs)
        for ours, eager in zip(torch.autograd.grad(out, inputs), expected, strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)
        (saved,) = log.saved
        assert saved.bytes == parts.saved_bytes <= budget * full
        assert f"{saved.bytes:,} bytes" in "\n".join(log.lines())
        again.append(saved.recomputed)
    assert sizes == sorted(sizes) and sizes[0] == 0 and len(set(sizes)) > 3
    assert again == sorted(again, reverse=True)


def test_a_budget_computes_nothing_random_again() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
        return (F.dropout(x @ w, 0.5).sin().sum(),)

    x, w = p(8, 8), p(8, 8)
    parts = min_cut_partition(joint(fn, x, w), activation_memory_budget=0)
    drawn = [n for n in parts.backward.graph.nodes if draws_random_numbers(n)]
    products = [n for n in parts.backward.graph.nodes if n.target is torch.ops.aten.mm.default]
    assert not drawn and len(products) == 3  # the forward's once more, and two gradients
    assert parts.saved_bytes > 0  # what was drawn


@pytest.mark.parametrize("budget", [-0.1, 1.1])
def test_a_budget_is_a_part(budget: float) -> None:
    with pytest.raises(ValueError, match="not 0 to 1"):
        min_cut_partition(joint(lambda a: (a.sin().sum(),), p(2)), activation_memory_budget=budget)
