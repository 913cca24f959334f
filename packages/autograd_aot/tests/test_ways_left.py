"""A backward to some inputs frees what eager's frees: other ways can be gone later."""

from __future__ import annotations

import random
import weakref

import pytest
import torch
import torch.nn.functional as F
from aot_testing import TABLES, Recorder, as_graph, run_fx, same_answers
from dovetail_autograd_aot import AotLog, aot_compile, compiled_autograd
from dovetail_autograd_aot.calls.lazy_backward import MAX_VARIANTS

FUNCTIONS = {
    "apart": lambda x, z: (x.sin() * 2).sum() + (z.cos() * 3).sum(),
    "one product": lambda x, z: (x * z).sum(),
    "met in a function": lambda x, z: (x.sin().exp() + z.exp().sin()).exp().sum(),
    "met in a sum": lambda x, z: (x.sin().exp() + z.exp().sin()).sum(),
    "nothing saved": lambda x, z: (x + z).sum(),
    "one saves": lambda x, z: (x + z.exp()).sum(),
    "joined": lambda x, z: torch.cat([x.sin(), z.sin()]).sum(),
    "rows by number": lambda x, z: x[[0, 2, 2]].sum() + z[[1]].sum(),
}


def answers(loss, inputs, order, **options):
    """Gradients of one input after another, or what was raised."""
    found = []
    for i in order:
        try:
            found += torch.autograd.grad(loss, inputs[i], **options)
        except RuntimeError as error:
            found.append(str(error)[:40])
    return found


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0), (0, 1, 0)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_one_input_after_another(name, order):
    function = FUNCTIONS[name]
    torch.manual_seed(0)
    inputs = [torch.randn(3, requires_grad=True) for _ in range(2)]
    run = aot_compile(as_graph(lambda x, z: (function(x, z),), 2), inputs, forward_compiler=run_fx)
    ours = answers(run(*inputs)[0], inputs, order)
    same_answers(ours, answers(function(*inputs), inputs, order))


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 0)])
@pytest.mark.parametrize("name", ["apart", "one product", "met in a sum"])
def test_in_passes_that_are_compiled_as_a_whole(name, order):
    function = FUNCTIONS[name]
    inputs = [torch.arange(1.0, 4.0).requires_grad_() for _ in range(2)]
    run = aot_compile(as_graph(lambda x, z: (function(x, z),), 2), inputs, forward_compiler=run_fx)
    context = compiled_autograd(lambda gm, examples: gm.forward)
    expected = answers(function(*inputs), inputs, order)
    for _ in range(3):
        with context:
            ours = answers(run(*inputs)[0], inputs, order)
        same_answers(ours, expected)
    assert context.report.compiled >= 2


def test_in_a_pass_of_several_gradients_at_once():
    def function(x, z):
        return (x.exp() + z.sin(),)

    inputs = [torch.arange(1.0, 4.0).requires_grad_() for _ in range(2)]
    run = aot_compile(as_graph(function, 2), inputs, forward_compiler=run_fx)
    options = {"grad_outputs": torch.eye(3), "is_grads_batched": True}
    ours = answers(run(*inputs)[0], inputs, (0, 1, 0), **options)
    same_answers(ours, answers(function(*inputs)[0], inputs, (0, 1, 0), **options))


class Squares(torch.autograd.Function):
    """It saves one of two inputs."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a)
        return a * a + b

    @staticmethod
    def backward(ctx, gradient):
        (a,) = ctx.saved_tensors
        return 2 * a * gradient, gradient


class Bent(torch.autograd.Function):
    """Its backward is not linear in the gradient."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a)
        return a + b

    @staticmethod
    def backward(ctx, gradient):
        (a,) = ctx.saved_tensors
        return gradient.abs() + a * 0, gradient * gradient


ONE = (
    torch.sin, torch.exp, torch.relu, torch.t, torch.neg, lambda v: v * 2, lambda v: v + 1,
    lambda v: v.flip(0), lambda v: v.cumsum(0), lambda v: v.softmax(0), lambda v: v.detach() + v,
    lambda v: F.layer_norm(v, (3,)), lambda v: v - v.mean(0), lambda v: v.clone().mul_(3),
)  # fmt: skip
TWO = (
    torch.add, torch.mul, torch.sub, torch.mm, torch.maximum, F.linear, Squares.apply, Bent.apply,
    lambda a, b: torch.cat([a, b])[1:4], lambda a, b: torch.where(a > 0, a, b),
    lambda a, b: torch.addmm(a, a, b), lambda a, b: a + b.detach(), lambda a, b: a.clone().copy_(b),
)  # fmt: skip


def random_function(rng, inputs):
    """A function of so many matrices, and how many it gives."""
    steps = []
    for count in range(inputs, inputs + rng.randint(1, 8)):
        arity = rng.randint(1, 2)
        step = rng.choice(ONE if arity == 1 else TWO)
        steps.append((step, [rng.randrange(count) for _ in range(arity)]))
    last = inputs + len(steps) - 1
    given = sorted({last, *(rng.randint(inputs, last) for _ in range(2))})

    def function(*matrices):
        values = list(matrices)
        for step, at in steps:
            values.append(step(*[values[i] for i in at]))
        return tuple(values[i] for i in given)

    return function, len(given)


@pytest.mark.parametrize("seed", range(80))
def test_random_backwards_after_one_another(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    count = rng.randint(1, 4)
    function, outputs = random_function(rng, count)
    inputs = [torch.randn(3, 3, requires_grad=True) for _ in range(count)]
    table = TABLES[rng.choice(["aten", "core"])]
    run = aot_compile(
        as_graph(function, count), inputs, forward_compiler=run_fx, decompositions=table
    )
    passes = []
    for _ in range(4):
        roots = rng.sample(range(outputs), rng.randint(1, outputs))
        passes.append((roots, rng.sample(inputs, rng.randint(1, count)), rng.random() < 0.2))
    found = []
    for results in (run(*inputs), function(*inputs)):
        found.append([])
        for roots, wanted, kept in passes:
            losses = [results[i].sum() for i in roots if results[i].requires_grad]
            if not losses:
                continue
            options = {"retain_graph": kept, "allow_unused": True}
            try:
                found[-1] += torch.autograd.grad(losses, wanted, **options)
            except RuntimeError as error:
                found[-1].append(str(error)[:40])
                break  # (eager may have freed some of it before)
    same_answers(*found)


def products(gm):
    return sum(node.target is torch.ops.aten.mm.default for node in gm.graph.nodes)


def test_gradients_that_nobody_asks_for_are_not_computed():
    inputs = [torch.randn(3, 3, requires_grad=True) for _ in range(3)]
    recorder = Recorder()
    run = aot_compile(
        as_graph(lambda x, v, w: (((x @ v).relu() @ w).relu(),), 3), inputs,
        forward_compiler=recorder,
    )  # fmt: skip
    for _ in range(2):
        torch.autograd.grad(run(*inputs)[0].sum(), inputs[0])
    assert [products(gm) for gm in recorder.graphs] == [2, 2]
    run(*inputs)[0].sum().backward()
    assert [products(gm) for gm in recorder.graphs] == [2, 2, 4]


def test_where_no_more_backwards_are_compiled_all_gradients_are_computed():
    log, recorder = AotLog(), Recorder()
    inputs = [torch.randn(3, requires_grad=True) for _ in range(MAX_VARIANTS + 3)]

    def function(*tensors):
        return (torch.stack([t.exp() for t in tensors]).prod(0),)

    run = aot_compile(as_graph(function, len(inputs)), inputs, forward_compiler=recorder, log=log)
    loss, expected = run(*inputs)[0].sum(), function(*inputs)[0].sum()
    for one in inputs:
        ours = torch.autograd.grad(loss, one, retain_graph=True)
        torch.testing.assert_close(ours, torch.autograd.grad(expected, one, retain_graph=True))
    assert len(recorder.graphs) == 1 + MAX_VARIANTS + 1
    assert not log.plain_backwards


def test_where_what_others_need_is_gone_theirs_are_never_computed():
    """More of such backwards than are compiled: the others run operator by operator."""
    log = AotLog()
    count = MAX_VARIANTS + 3
    inputs = [torch.randn(3, requires_grad=True) for _ in range(count)]

    def function(*tensors):
        return (torch.stack([t.exp() for t in tensors]).sum(0),)

    run = aot_compile(as_graph(function, count), inputs, forward_compiler=run_fx, log=log)
    loss, order = run(*inputs)[0].sum(), (*range(count), 0)
    same_answers(answers(loss, inputs, order), answers(function(*inputs)[0].sum(), inputs, order))
    assert sum(log.plain_backwards.values()) == count - MAX_VARIANTS


def test_no_gradient_is_computed_of_what_is_gone_though_it_was_before():
    """Numbers of rows that nothing holds any more would be read."""
    inputs = [torch.randn(4, 3, requires_grad=True) for _ in range(MAX_VARIANTS + 3)]
    log, numbers = AotLog(), torch.tensor([3, 0, 3])

    def function(numbers, *tensors):
        return (sum(F.embedding(numbers + 0, t).exp() for t in tensors),)

    run = aot_compile(
        as_graph(function, len(inputs) + 1), [numbers, *inputs], forward_compiler=run_fx, log=log
    )
    order = range(len(inputs))
    loss, expected = run(numbers, *inputs)[0].sum(), function(numbers, *inputs)[0].sum()
    for retained in (True, False):
        ours = answers(loss, inputs, order, retain_graph=retained)
        same_answers(ours, answers(expected, inputs, order, retain_graph=retained))
    assert sum(log.plain_backwards.values()) == len(inputs) - MAX_VARIANTS


def test_what_only_closed_ways_need_is_let_go():
    saved = []

    def compiler(gm, example_inputs):
        def run(*arguments):
            results = gm(*arguments)
            saved.extend(weakref.ref(result) for result in results[1:])
            return results

        return run if not saved else gm

    inputs = [torch.randn(3, 3, requires_grad=True) for _ in range(2)]
    run = aot_compile(
        as_graph(lambda x, z: ((x @ x).exp() + (z @ z).exp(),), 2),
        inputs,
        forward_compiler=compiler,
    )
    (result,) = run(*inputs)
    assert len(saved) == 2
    left = []
    for one in inputs:
        torch.autograd.grad(result, one, torch.ones(3, 3))
        left.append([value() is not None for value in saved])
    assert sorted(left[0]) == [False, True] and left[1] == [False, False]


def test_what_is_left_may_not_have_been_written_to():
    def function(x, z):
        return (x.sin() + z.sin(),)

    for whole in (function, None):
        inputs = [torch.randn(3, requires_grad=True) for _ in range(2)]
        call = whole or aot_compile(as_graph(function, 2), inputs, forward_compiler=run_fx)
        (result,) = call(*inputs)
        torch.autograd.grad(result.sum(), inputs[0])
        with torch.no_grad():
            inputs[1].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(result.sum(), inputs[1])


LEFT = {
    "a sum": (lambda x, y: (x.sin(), y * 2 + x), 1, 0, 0),
    "a sum of all": (lambda x, y: (x.sum() + y.exp(),), 0, 0, 1),
    "sizes only": (lambda x, y: (x.exp(), torch.cat([y[:2].t(), x])), 1, 1, 0),
}


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("table", TABLES)
def test_what_reads_no_saved_values_is_differentiable_after_all_else_is_freed(name, table):
    function, output, asked, freed = LEFT[name]
    inputs, log = [torch.arange(1.0, 4.0).requires_grad_() for _ in range(2)], AotLog()
    run = aot_compile(
        as_graph(function, 2),
        inputs,
        forward_compiler=run_fx,
        decompositions=TABLES[table],
        log=log,
    )
    found = []
    for call in (function, run):
        results = call(*inputs)
        torch.autograd.grad(sum(r.sum() for r in results), inputs)
        given = torch.ones_like(results[output]).requires_grad_()
        (first,) = torch.autograd.grad(
            results[output], inputs[asked], given, create_graph=True, retain_graph=True
        )
        (second,) = torch.autograd.grad(first.square().sum(), given)
        with pytest.raises(RuntimeError, match="a second time"):
            torch.autograd.grad(results[0].sum(), inputs[freed])
        found.append([first.detach(), second])
    same_answers(*found)
    assert sum(log.replays.values()) == 1 and "ways that read nothing saved" in str(log.replays)
