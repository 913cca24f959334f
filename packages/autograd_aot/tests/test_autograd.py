"""What autograd promises around a compiled graph."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from aot_testing import TABLES, as_graph, check, run_fx
from dovetail_autograd_aot import AotLog, AotSettings, TraceError, aot_compile
from dovetail_autograd_aot.calls import double_backward


def compiled(fn, *inputs, table="core", **options):
    return aot_compile(
        as_graph(fn, len(inputs)), inputs, forward_compiler=run_fx,
        decompositions=TABLES[table], **options,
    )  # fmt: skip


def mlp(x, w, v):
    return (F.gelu(x @ w).tanh() @ v,)


def mlp_inputs():
    torch.manual_seed(0)
    return (
        torch.randn(4, 3),
        torch.randn(3, 5, requires_grad=True),
        torch.randn(5, 2, requires_grad=True),
    )


def test_second_backward_needs_retain_graph():
    inputs = mlp_inputs()
    (out,) = compiled(mlp, *inputs)(*inputs)
    out.sum().backward(retain_graph=True)
    first = inputs[1].grad.clone()
    out.sum().backward()
    torch.testing.assert_close(inputs[1].grad, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


def test_in_place_write_to_a_saved_input_is_noticed():
    inputs = mlp_inputs()
    (out,) = compiled(mlp, *inputs)(*inputs)
    with torch.no_grad():
        inputs[2].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_in_place_write_to_a_saved_output_is_noticed(shape):
    # exp saves its result; the output is the result or a view of it. (The product is there so that
    # saving is cheaper than computing again.)
    a = torch.randn(2, 3, requires_grad=True)
    (out,) = compiled(lambda a: ((a @ torch.eye(3)).exp().view(shape),), a)(a)
    out.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_outputs_may_be_written_to():
    a = torch.randn(2, 3, requires_grad=True)
    outs = compiled(lambda a: ((a * 2).view(6), (a * 3).t(), (a.sum() * 2)), a)(a)
    for out in outs:
        out.mul_(2)
    (outs[0].sum() + outs[1].sum() + outs[2]).backward()
    torch.testing.assert_close(a.grad, torch.full((2, 3), 14.0))


def test_views_of_outputs_see_writes():
    a = torch.randn(2, 3, requires_grad=True)
    base, view = compiled(lambda a: (lambda b: (b, b.view(6)))(a * 2), a)(a)
    base.mul_(10)
    torch.testing.assert_close(view, (a * 20).view(6))
    view.sum().backward()
    torch.testing.assert_close(a.grad, torch.full((2, 3), 20.0))


def test_views_of_inputs_see_writes():
    a = torch.randn(2, 3)
    (view,) = compiled(lambda a: (a.t(),), a)(a)
    view.zero_()
    assert a.abs().sum() == 0


def test_undefined_tangents():
    # Only one of two outputs is used: the other's parameters get None, not zeros.
    a, b, c = (torch.randn(3, requires_grad=True) for _ in range(3))
    x, _ = compiled(lambda a, b, c: (a * c, b.exp() * c), a, b, c)(a, b, c)
    x.sum().backward()
    assert b.grad is None
    torch.testing.assert_close(a.grad, c.detach())
    torch.testing.assert_close(c.grad, a.detach())


def test_tangent_layouts():
    a = torch.randn(4, 3, requires_grad=True)
    run = compiled(lambda a: (a.sin(),), a)
    for tangent in (
        torch.ones(()).expand(4, 3),
        torch.randn(3, 4).t(),
        torch.randn(8, 6)[::2, ::2],
    ):
        a.grad = None
        run(a)[0].backward(tangent)
        torch.testing.assert_close(a.grad, tangent * a.detach().cos())


def test_saved_tensors_are_freed():
    a = torch.randn(1000, requires_grad=True)
    (out,) = compiled(lambda a: ((a * 2).exp().sin().sum(),), a)(a)
    seen = []

    def walk(node):
        for value in getattr(node, "saved_tensors", ()):
            seen.append(weakref.ref(value))

    walk(out.grad_fn)
    assert seen
    out.backward()
    gc.collect()
    assert all(r() is None or r() is a for r in seen)


def test_backward_is_compiled_lazily():
    calls = []

    def compiler(gm, examples):
        calls.append(gm)
        return gm

    a = torch.randn(3, requires_grad=True)
    run = aot_compile(as_graph(lambda a: (a.sin(),), 1), [a], forward_compiler=compiler)
    (out,) = run(a)
    assert len(calls) == 1
    out.sum().backward()
    run(a)[0].sum().backward()
    assert len(calls) == 2
    aot_compile(
        as_graph(lambda a: (a.sin(),), 1), [a], forward_compiler=compiler,
        settings=AotSettings(backward_now=True),
    )  # fmt: skip
    assert len(calls) == 4


DOUBLE = {
    "mlp": (mlp, mlp_inputs()),
    "detach": (lambda a: (a.detach() * a * a,), (torch.randn(3, requires_grad=True),)),
    "views": (
        lambda a: (lambda b: (b.view(6), b[0], a.t()))((a * a).sin()),
        (torch.randn(2, 3, requires_grad=True),),
    ),
    "dropout": (
        lambda a: (F.dropout(a * a, 0.5, True).sin(),),
        (torch.randn(20, requires_grad=True),),
    ),
    "batch_norm": (
        lambda a, w, m, v: (F.batch_norm(a, m, v, w, training=True) ** 3,),
        (
            torch.randn(4, 3, 2, requires_grad=True), torch.randn(3, requires_grad=True),
            torch.zeros(3), torch.ones(3),
        ),
    ),
    "mutated": (
        lambda a, b: (b.mul_(a).sum() * a,),
        (torch.randn(3, requires_grad=True), torch.zeros(3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["mlp", "detach", "views", "dropout", "batch_norm"])
def test_double_backward(name):
    fn, inputs = DOUBLE[name]
    results = []
    log = AotLog()
    for run_compiled in (False, True):
        values = [i.detach().double().requires_grad_(i.requires_grad) for i in inputs]
        run = compiled(fn, *values, log=log) if run_compiled else fn
        wanted = [v for v in values if v.requires_grad]
        torch.manual_seed(3)
        outs = run(*values)
        loss = sum((o * (i + 1)).sum() for i, o in enumerate(outs))
        first = torch.autograd.grad(loss, wanted, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), wanted)
        results.append((*first, *second))
    for ours, eager in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, eager)
    assert log.double_backwards == 1 and not log.replays


def test_derivatives_of_any_order_are_compiled():
    """Each order is a graph of its own; a second call compiles nothing."""
    log = AotLog()
    x = torch.tensor([0.3, 1.2], dtype=torch.float64, requires_grad=True)
    run = compiled(lambda x: (x.sin(),), x, log=log)
    for _ in range(2):
        (value,) = run(x)
        for order, expected in enumerate([x.cos(), -x.sin(), -x.cos(), x.sin()]):
            (value,) = torch.autograd.grad(value.sum(), x, create_graph=order < 3)
            torch.testing.assert_close(value, expected)
    assert log.double_backwards == 3 and not log.replays


def test_derivatives_of_any_order_of_a_later_output_are_compiled():
    log = AotLog()
    x = torch.tensor([0.3, 1.2], dtype=torch.float64, requires_grad=True)
    run = compiled(lambda x: (x.exp(), x.sin()), x, log=log)
    _, value = run(x)
    for order, expected in enumerate([x.cos(), -x.sin(), -x.cos()]):
        (value,) = torch.autograd.grad(value.sum(), x, create_graph=order < 2)
        torch.testing.assert_close(value, expected)
    assert log.double_backwards == 2 and not log.replays


def test_a_double_backward_that_is_not_compiled_is_counted(caplog, monkeypatch):
    monkeypatch.setattr(double_backward, "MAX_COMPILED", 1)
    log = AotLog()
    w = torch.randn(4, requires_grad=True)
    run = compiled(lambda w: (w**3 * 2,), w, log=log)
    for graded in (False, True, True):  # two kinds of calls
        (out,) = run(w)
        tangent = torch.ones(4, requires_grad=graded)
        (g,) = torch.autograd.grad(out, w, tangent, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), w)
        torch.testing.assert_close(h, 12 * w.detach())
    assert log.double_backwards == 1 and log.replays == {"more than 1 kinds of calls": 2}
    assert len(caplog.records) == 1 and "uncompiled" in caplog.text
    assert "ran uncompiled 2 times: more than 1 kinds of calls" in "\n".join(log.lines())


def test_double_backward_to_the_tangent():
    a = torch.randn(3, requires_grad=True)
    t = torch.randn(3, requires_grad=True)
    (out,) = compiled(lambda a: (a.sin(),), a)(a)
    (g,) = torch.autograd.grad(out, a, t, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), t)
    torch.testing.assert_close(h, a.detach().cos())


def test_double_backward_through_an_overwritten_input_is_refused():
    fn, inputs = DOUBLE["mutated"]
    values = [copy.deepcopy(i) for i in inputs]
    (out,) = compiled(fn, *values)(*values)
    with pytest.raises(RuntimeError, match="overwrites an input"):
        torch.autograd.grad(out.sum(), values[0], create_graph=True)


def test_a_graph_that_writes_to_its_input_does_not_hold_itself():
    """The input's history is the graph's, which keeps what a second backward needs."""

    def overwritten(x):
        y = x.exp()
        x.mul_(2)
        return (y * 2,)

    def doubled(x, w):
        x.mul_(3)
        return ((w * w).sum() * 2 + x.sum(),)

    leaf = torch.randn(3, 4, requires_grad=True)
    x = leaf.clone()
    (out,) = compiled(overwritten, leaf.clone())(x)
    held = weakref.ref(x)
    del x, out
    gc.collect()
    assert held() is None
    # What it keeps is enough for a second backward.
    w = torch.randn(5, requires_grad=True)
    (out,) = compiled(doubled, leaf.clone(), w)(leaf.clone(), w)
    grads = torch.autograd.grad(out, (leaf, w), create_graph=True)
    torch.testing.assert_close(grads[0], torch.full((3, 4), 3.0))
    (second,) = torch.autograd.grad(grads[1].sum(), (w,))
    torch.testing.assert_close(second, torch.full((5,), 4.0))


def test_double_backward_notices_in_place_writes():
    a = torch.randn(3, requires_grad=True)
    b = torch.randn(3)
    (out,) = compiled(lambda a, b: ((a + b).exp(),), a, b)(a, b)
    b.add_(1)
    with pytest.raises(RuntimeError, match="modified in place"):
        torch.autograd.grad(out.sum(), a, create_graph=True)


def test_attributes_become_inputs_where_needed():
    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3))
            self.register_buffer("count", torch.zeros(3))
            self.register_buffer("table", torch.arange(3.0))

    holder = Holder()
    graph = torch.fx.Graph()
    a = graph.placeholder("a")
    w, c, t = (graph.get_attr(n) for n in ("weight", "count", "table"))
    graph.call_function(torch.Tensor.add_, (c, 1))
    product = graph.call_function(torch.mul, (a, w))
    total = graph.call_function(torch.add, (product, t))
    graph.output((total, c, t))
    gm = torch.fx.GraphModule(holder, graph)
    x = torch.randn(3)
    run = aot_compile(gm, [x], forward_compiler=run_fx)
    out, count, table = run(x)
    assert count is holder.count and table is holder.table
    torch.testing.assert_close(count, torch.ones(3))
    torch.testing.assert_close(out, x * holder.weight + holder.table)
    out.sum().backward()
    torch.testing.assert_close(holder.weight.grad, x)


def test_a_write_to_an_input_is_seen_in_one_that_overlaps():
    def fn(a, b):
        a.add_(1)
        return (a[:4] * b,)

    whole = torch.arange(6.0)
    run = compiled(fn, whole[:4], whole[2:])
    # Overlapping in this way and in that, apart, the very same: the graph is made for each.
    for first, second in ((slice(0, 4), slice(2, 6)), (slice(1, 5), slice(0, 4)),
                          (slice(0, 4), slice(0, 4))):  # fmt: skip
        ours, theirs = torch.arange(6.0), torch.arange(6.0)
        (got,) = run(ours[first], ours[second])
        (expected,) = fn(theirs[first], theirs[second])
        assert torch.equal(got, expected) and torch.equal(ours, theirs)
    a, b = torch.arange(4.0), torch.arange(4.0)
    assert torch.equal(run(a, b)[0], (torch.arange(4.0) + 1) * torch.arange(4.0))
    assert torch.equal(a, torch.arange(4.0) + 1) and torch.equal(b, torch.arange(4.0))


def test_as_strided_of_an_input_begins_where_the_input_does():
    run = compiled(
        lambda a: (a.as_strided((2,), (1,)), a.as_strided((2,), (1,), 1)), torch.randn(4)
    )
    whole = torch.randn(10)
    own, absolute = run(whole[4:8])
    assert torch.equal(own, whole[4:6]) and torch.equal(absolute, whole[1:3])


def test_writes_through_data_are_not_counted():
    a = torch.randn(3)
    compiled(lambda a: (a.data.add_(1),), a)(a)
    assert a._version == 0


def test_inference_tensors_have_no_version_counters():
    with torch.inference_mode():
        x, mean, var = torch.randn(4, 3), torch.zeros(3), torch.ones(3)
        twin = mean.clone(), var.clone()
        run = compiled(lambda x, m, v: (F.batch_norm(x, m, v, training=True),), x, mean, var)
        (out,) = run(x, mean, var)
        torch.testing.assert_close(out, F.batch_norm(x, *twin, training=True))
        torch.testing.assert_close((mean, var), twin)


def test_what_eagers_backward_raises_is_raised_in_the_backward():
    def fn(a):
        b = a * 1
        c = b * b
        b.add_(1)
        return (c,)

    a = torch.ones(3, requires_grad=True)
    (out,) = compiled(fn, a)(a)
    assert out.tolist() == [1, 1, 1] and out.requires_grad
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_one_output_without_a_backward_leaves_the_others_theirs():
    """They are asked one by one; the gradient of every second slice is decomposed then too."""

    def fn(a):
        b = a * 1
        c = b * b
        b.add_(1)
        return (c, a[::2] * a[::2])

    a = torch.arange(1.0, 4.0, requires_grad=True)
    squares, part = compiled(fn, a)(a)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squares.sum().backward()
    part.sum().backward()
    assert a.grad.tolist() == [2, 0, 6]


@pytest.mark.parametrize(
    "fn",
    [
        lambda a: (a.resize_(5)[:3], a),
        lambda a: ((a * 2).resize_(5)[:3],),
        lambda a: (a.set_(a * 2),),
        lambda a: (a.view(torch.int32).as_strided((1,), (1,)),),
    ],
)
def test_what_a_tensor_is_changes_in_place(fn):
    x, y = torch.arange(3.0), torch.arange(3.0)
    (ours, *_), (eager, *_) = compiled(fn, x)(x), fn(y)
    assert torch.equal(ours, eager) and x.shape == y.shape
    assert torch.equal(x[:3], y[:3]) and (ours is x) == (eager is y)


@pytest.mark.parametrize(
    "fn, match",
    [
        (lambda a: (a.expand(2, 3).add_(1),), "single memory location"),
        (lambda a: (a.unfold(0, 2, 1).zero_(),), "overlapping windows"),
        (lambda a: (torch.rand(3, generator=torch.Generator()),), "generator"),
    ],
)
def test_refusals(fn, match):
    with pytest.raises((TraceError, RuntimeError), match=match):
        compiled(fn, torch.randn(3))


def checkpointed(a, w, fn):
    from torch.utils.checkpoint import checkpoint

    return (checkpoint(lambda t: fn(t @ w).exp(), a, use_reentrant=False),)


def test_checkpointed_region():
    check(
        lambda a, w: checkpointed(a, w, torch.sin),
        (torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)),
    )


def test_random_numbers_in_a_checkpointed_region_are_refused():
    with pytest.raises(TraceError, match="checkpointed region"):
        compiled(
            lambda a, w: checkpointed(a, w, lambda t: F.dropout(t, 0.5, True)),
            torch.randn(3, 3, requires_grad=True),
            torch.randn(3, 3, requires_grad=True),
        )


def test_function_transforms():
    check(
        lambda a: (torch.func.grad(lambda t: (t**3).sum())(a) + torch.func.vmap(torch.sin)(a),),
        (torch.randn(3, 3),),
    )


def test_in_place_on_a_leaf_is_eagers_error():
    with pytest.raises(RuntimeError, match="leaf Variable"):
        compiled(lambda a: (a.add_(1),), torch.randn(3, requires_grad=True))


def test_ambient_autocast_is_baked_in():
    w, x = torch.randn(4, 4, requires_grad=True), torch.randn(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run = compiled(lambda w, x: (F.linear(x, w),), w, x)
        (ours,) = run(w, x)
        eager = F.linear(x, w)
    assert ours.dtype == eager.dtype == torch.bfloat16
    assert torch.equal(ours, eager)
    ours.float().sum().backward()
    assert w.grad.dtype == torch.float32


SAVING_NOTHING = {
    "flip": lambda x: x.flip(0), "roll": lambda x: x.roll(1, 0), "mean": lambda x: x.mean(0),
    "unbind": lambda x: x.unbind(0)[1] - 3, "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(0, 2, 1), "tril": lambda x: x.tril(),
    "cumsum": lambda x: x.cumsum(0), "chunk": lambda x: torch.cat(x.chunk(2, 1)[::-1]),
}  # fmt: skip


@pytest.mark.parametrize("table", ["aten", "core"])
@pytest.mark.parametrize("shared", SAVING_NOTHING.values(), ids=SAVING_NOTHING)
def test_backwards_after_one_another_that_share_what_saves_nothing(shared, table):
    """Eager's nodes of it can run again, though they were freed."""

    def fn(x):
        h = shared(x)
        return h.sin(), h.cos()

    gradients = []
    for run in (fn, compiled(fn, torch.ones(4, 4, requires_grad=True), table=table)):
        x = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
        for output in run(x):
            output.sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("shared", [torch.exp, lambda x: x * x, lambda x: x.max()])
def test_backwards_after_one_another_that_share_what_saves_are_refused(shared):
    def fn(x):
        h = shared(x)
        return h.sin(), h.cos()

    x = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
    first, second = compiled(fn, x)(x)
    first.sum().backward()
    with pytest.raises(RuntimeError, match="a second time"):
        second.sum().backward()


def test_importing_and_tracing_leaves_the_compilers_alone():
    import subprocess
    import sys

    code = (
        "import sys, torch; before = set(sys.modules)\n"
        "from dovetail_autograd_aot import aot_compile\n"
        "from torch.fx import symbolic_trace\n"
        "a = torch.randn(3, requires_grad=True)\n"
        "run = aot_compile(symbolic_trace(lambda a: (a.sin(),)), [a], "
        "forward_compiler=lambda gm, e: gm)\n"
        "run(a)[0].sum().backward()\n"
        "new = set(sys.modules) - before\n"
        "bad = [m for m in new if m.startswith(('torch._dynamo', 'torch._inductor',"
        " 'torch._functorch', 'torch._subclasses'))]\n"
        "assert not bad, bad\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
