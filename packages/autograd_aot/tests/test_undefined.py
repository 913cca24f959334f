"""Backwards in which some outputs have no gradient; saved tensors freed while a backward runs."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.nn.functional as F
from aot_testing import TABLES, Recorder, as_graph, clone_inputs, run_fx
from dovetail_autograd_aot import aot_compile, min_cut_partition, trace_joint
from dovetail_autograd_aot.calls import tangents
from dovetail_autograd_aot.calls.lazy_backward import MAX_VARIANTS


def two_headed(x, w, v):
    hidden = F.gelu(x @ w)
    logits = hidden @ v
    return (logits, F.cross_entropy(logits, torch.zeros(4, dtype=torch.long)), hidden.sum(1))


def inputs():
    torch.manual_seed(0)
    sizes = [(4, 3), (3, 5), (5, 7)]
    return [torch.randn(s, requires_grad=i > 0) for i, s in enumerate(sizes)]


@pytest.mark.parametrize("table", ["aten", "core"])
@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_gradients_where_outputs_are_not_used(table, used):
    recorder = Recorder()
    eager_inputs, our_inputs = inputs(), inputs()
    run = aot_compile(
        as_graph(two_headed, 3), our_inputs,
        forward_compiler=recorder, decompositions=TABLES[table],
    )  # fmt: skip
    for fn, given in ((two_headed, eager_inputs), (run, our_inputs)):
        outputs = fn(*given)
        sum((outputs[i] ** 2).sum() for i in used).backward()
    for ours, eager in zip(our_inputs, eager_inputs, strict=True):
        assert (ours.grad is None) == (eager.grad is None)
        if eager.grad is not None:
            torch.testing.assert_close(ours.grad, eager.grad)
    backward = recorder.graphs[-1]
    taken = {n.name for n in backward.graph.nodes if n.op == "placeholder"}
    assert {f"tangent_{i}" for i in used} == {n for n in taken if n.startswith("tangent")}


def test_what_only_a_missing_gradient_needs_is_not_computed():
    recorder = Recorder()
    run = aot_compile(as_graph(two_headed, 3), inputs(), forward_compiler=recorder)
    run(*inputs())[2].sum().backward()
    products = [n for n in recorder.graphs[-1].graph.nodes if n.target is torch.ops.aten.mm.default]
    assert len(products) == 1  # w's gradient; none for v, none from the logits


def test_zeros_are_made_where_an_operator_needs_them():
    class Shifted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a * 2, b * 3

        @staticmethod
        def backward(ctx, ga, gb):
            return torch.cos(ga) + gb, (gb + 1) * (ga + 2)

    def fn(a, b):
        return Shifted.apply(a, b)

    def run(call, used):
        a, b = (torch.arange(3.0, requires_grad=True) for _ in range(2))
        call(a, b)[used].sum().backward()
        return a.grad, b.grad

    example = [torch.arange(3.0, requires_grad=True) for _ in range(2)]
    compiled = aot_compile(as_graph(fn, 2), example, forward_compiler=run_fx)
    for used in (0, 1):
        for ours, eager in zip(run(compiled, used), run(fn, used), strict=True):
            torch.testing.assert_close(ours, eager)


def test_only_so_many_backwards_are_compiled():
    def fn(x):
        return tuple(torch.exp(x * i) for i in range(4))

    recorder = Recorder()
    x = torch.randn(3, requires_grad=True)
    run = aot_compile(as_graph(fn, 1), [x], forward_compiler=recorder)
    for used in range(1, 16):
        ours, eager = run(x), fn(x)
        for outputs in (ours, eager):
            chosen = [outputs[i] for i in range(4) if used >> i & 1]
            (gradient,) = torch.autograd.grad(sum(o.sum() for o in chosen), [x])
            if outputs is ours:
                found = gradient
        torch.testing.assert_close(found, gradient)
    # the forward, the specialised ones, and the one that takes all tangents
    assert len(recorder.graphs) <= 1 + MAX_VARIANTS + 1


BETWEEN = {
    "a cumulative product": lambda v: v.cumprod(1),
    "elements taken": lambda v: v.take(torch.tensor([0, 1])),
    "the largest": lambda v: v.topk(2)[0],
    "a variance": lambda v: v.var(1),
    "parts": lambda v: torch.cat([v[1:], v[:, :4] * v[:1]]),
    "rows by number": lambda v: F.embedding(torch.tensor([0, 1, 1]), v),
    "an inverse": lambda v: torch.linalg.inv(v @ v.t() + torch.eye(3)),
    "complex": lambda v: torch.complex(v, v).abs(),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_an_infinite_derivative_that_is_not_needed_makes_no_nan(name):
    """Zero times it would; also where other outputs that share what is computed are used."""

    def fn(x):
        inverse, root = 1 / x, x.sqrt()
        both = BETWEEN[name](inverse)
        return x * 2, both, BETWEEN[name](root), x + 1

    x = torch.tensor([[0.0, 1, 2, 3], [1, 0, 2, 4], [2, 2, 0, 1]], requires_grad=True)
    run = aot_compile(as_graph(fn, 1), [x], forward_compiler=run_fx, decompositions=TABLES["core"])
    for used in ((0,), (3,), (0, 3)):
        ours, eager = (
            torch.autograd.grad(sum(call(x)[i].sum() for i in used), x)[0] for call in (run, fn)
        )
        torch.testing.assert_close(ours, eager, equal_nan=True)
        assert torch.isfinite(eager).all() and torch.isfinite(ours).all()


class Consuming:
    """A compiler whose programs take their inputs away: each is dropped when it was read last."""

    def __init__(self):
        self.alive = []

    def __call__(self, gm, example_inputs):
        names = [n.name for n in gm.graph.nodes if n.op == "placeholder"]
        alive = self.alive

        class Program:
            def __call__(self, *arguments):
                return gm(*arguments)

            def run_consuming(self, arguments):
                values = dict(zip(names, arguments, strict=True))
                storages = {n: weakref.ref(v) for n, v in values.items() if v.dim()}
                arguments.clear()
                results = gm(*values.values())
                values.clear()
                alive.append({n for n, r in storages.items() if r() is not None})
                return results

        return Program()


def chain(x, w):
    return (torch.sigmoid(x @ w) @ w,)


def test_saved_tensors_belong_to_the_backward_unless_the_graph_is_retained():
    x = torch.randn(4, 4)
    w = torch.randn(4, 4, requires_grad=True)
    compiler = Consuming()
    run = aot_compile(as_graph(chain, 2), [x, w], forward_compiler=compiler)
    (out,) = run(x, w)
    tangent = torch.ones(4, 4)
    out.backward(tangent, retain_graph=True)
    kept = compiler.alive.pop()
    out.backward(tangent)
    freed = compiler.alive.pop()
    assert len(kept - freed) == 1  # the sigmoid's result; x, w and the tangent are the caller's
    with pytest.raises(RuntimeError, match="second time"):
        out.backward(tangent)
    eager = clone_inputs([x, w])
    chain(*eager)[0].backward(tangent)
    torch.testing.assert_close(w.grad, 2 * eager[1].grad)


def test_inputs_are_let_go_with_the_saved_tensors():
    w = torch.randn(4, 4, requires_grad=True)
    run = aot_compile(
        as_graph(lambda x, w: (torch.exp(x) @ w,), 2), [torch.ones(4, 4), w],
        forward_compiler=run_fx,
    )  # fmt: skip
    x = torch.randn(4, 4)
    seen = weakref.ref(x)
    (out,) = run(x, w)
    del x
    out.sum().backward()
    assert seen() is None


def test_hooks_on_saved_tensors_see_each_once_a_backward():
    unpacked = []

    def unpack(value):
        unpacked.append(value)
        return value

    x = torch.randn(4, 4)
    w = torch.randn(4, 4, requires_grad=True)
    run = aot_compile(as_graph(chain, 2), [x, w], forward_compiler=Consuming())
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), unpack):
        (out,) = run(x, w)
    out.sum().backward()
    eager = clone_inputs([x, w])
    chain(*eager)[0].sum().backward()
    torch.testing.assert_close(w.grad, eager[1].grad)
    assert len(unpacked) == len({id(u) for u in unpacked}) > 0


def test_the_order_of_dimensions_is_found_once(monkeypatch):
    asked = []
    real = tangents._order_of
    monkeypatch.setattr(tangents, "_order_of", lambda value: asked.append(1) or real(value))
    x = torch.randn(5, 3, requires_grad=True)
    graph = as_graph(lambda x: (x.t().sin(), x.cos()), 1)
    parts = min_cut_partition(trace_joint(graph, (x,), decompositions=TABLES["core"]))
    given = tangents.Tangents(parts)
    for _ in range(3):
        first, second = given.prepare([None, None], [x], [True, True], {})
        assert first.stride() == (1, 3) and second.stride() == (3, 1)
        assert first.shape == (3, 5) and not first.any() and not second.any()
    assert len(asked) == 2
