"""Gradients of outputs by way of other outputs, hooks and `retain_grad()` on outputs."""

from __future__ import annotations

import gc
import mmap
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import output_asks
import pytest
import torch
import torch.nn.functional as F
from aot_testing import as_graph, run_fx
from dovetail_autograd_aot import AotLog, TraceError, aot_compile, compiled_autograd
from torch import Tensor
from torch.fx import GraphModule, symbolic_trace

Function = Callable[..., Any]


def compiled(fn: Function, inputs: list[Tensor], log: AotLog | None = None) -> Function:
    """`fn` as a graph of its operators, compiled."""
    return aot_compile(symbolic_trace(fn), inputs, forward_compiler=run_fx, log=log)


def same(ours: Any, eager: Any) -> None:
    """Compare what was asked of each."""
    assert len(ours) == len(eager)
    for one, other in zip(ours, eager, strict=True):
        if other is None or not isinstance(other, Tensor):
            assert one == other
        else:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def ask_both(fn: Function, sizes: list[tuple[int, ...]], question: Function) -> AotLog:
    """`question(outputs, inputs)` of eager and of the compiled function."""
    log = AotLog()
    answers = []
    for is_ours in (False, True):
        torch.manual_seed(0)
        inputs = [torch.randn(size, requires_grad=True) for size in sizes]
        run = compiled(fn, inputs, log) if is_ours else fn
        torch.manual_seed(1)
        answers.append(question(run(*inputs), inputs))
    same(answers[1], answers[0])
    return log


def chain(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    a = x * w
    b = torch.sin(a) * x
    c = (b * b * a).sum()
    return a, b, c


SIZES = [(3, 4), (3, 4)]


def gradient_of_one_by_way_of_another(o: Any, i: Any) -> Any:
    return torch.autograd.grad(o[2], [o[1], o[0], *i])


def gradient_of_the_middle(o: Any, i: Any) -> Any:
    return torch.autograd.grad(o[1].sum(), o[0])


def retained(o: Any, i: Any) -> Any:
    o[0].retain_grad()
    o[1].retain_grad()
    (o[2] + o[0].sum()).backward()
    return o[0].grad, o[1].grad, i[0].grad, i[1].grad


def hook_that_changes_the_gradient(o: Any, i: Any) -> Any:
    o[0].register_hook(lambda g: g * 10)
    o[2].backward()
    return i[0].grad, i[1].grad


def hook_on_a_node(o: Any, i: Any) -> Any:
    seen: list[Tensor] = []
    o[1].grad_fn.register_prehook(lambda gradients: seen.append(gradients[0].clone()))
    o[2].backward()
    return *seen, i[0].grad


def twice(o: Any, i: Any) -> Any:
    o[1].register_hook(lambda g: g * 3)
    (o[2] + o[0].sum()).backward(retain_graph=True)
    o[2].backward()
    return i[0].grad, i[1].grad


def penalty(o: Any, i: Any) -> Any:
    found = torch.autograd.grad(o[2], [o[0], o[1]], create_graph=True)
    sum(g.pow(2).sum() for g in found).backward()
    return *(g.detach() for g in found), i[0].grad, i[1].grad


def second_order(o: Any, i: Any) -> Any:
    (g,) = torch.autograd.grad(o[2], o[0], create_graph=True)
    return torch.autograd.grad(g.pow(2).sum(), [o[0], *i])


QUESTIONS = [
    gradient_of_one_by_way_of_another, gradient_of_the_middle, retained,
    hook_that_changes_the_gradient, hook_on_a_node, twice, penalty, second_order,
]  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.__name__)
def test_answers_are_eagers(question: Function) -> None:
    """By the compiled backward, cut at the outputs; of gradients of gradients, by running again."""
    assert ask_both(chain, SIZES, question).by_way == (question in (penalty, second_order))


def test_nothing_is_run_again_if_nobody_asks() -> None:
    def question(o: Any, i: Any) -> Any:
        o[2].register_hook(lambda g: g * 2)  # nothing is computed from it
        (o[0].sum() + o[1].sum() * 2 + o[2]).backward()
        return i[0].grad, i[1].grad

    assert ask_both(chain, SIZES, question).by_way == 0


def test_hook_on_what_the_backward_does_not_reach_is_not_called() -> None:
    def question(o: Any, i: Any) -> Any:
        calls: list[Any] = []
        o[2].register_hook(calls.append)
        o[1].sum().backward()
        return len(calls), i[0].grad

    assert ask_both(chain, SIZES, question).by_way == 0


def test_views_of_outputs_and_of_inputs() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        v = x.view(4, 3)
        h = (v @ w.view(3, 4)).tanh()
        parts = h.chunk(2)
        t = h.t()
        return v, parts[0], parts[1], t, t[1], (t * parts[0].sum()).exp()

    def question(o: Any, i: Any) -> Any:
        for one in o[:5]:
            one.retain_grad()
        found = torch.autograd.grad(o[5].sum(), o[:4], retain_graph=True, allow_unused=True)
        (o[5].sum() + o[4].sum()).backward()
        return *found, *(one.grad for one in o[:5]), i[0].grad, i[1].grad

    assert ask_both(fn, SIZES, question).by_way == 2


def test_one_result_by_way_of_a_view_of_an_input() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        v = x[1:]
        return v, (v * w[:2]).sin()

    def question(o: Any, i: Any) -> Any:
        return torch.autograd.grad(o[1].sum(), [o[0], *i])

    assert ask_both(fn, SIZES, question).by_way == 1  # (a view of an input has no tangent)


def test_written_in_place_before_and_after() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        a = x * w
        b = a.exp()
        a.add_(b)
        a[0].mul_(w[1])
        c = a.sin()
        d = (a * c).sum()
        return a, b, c, d

    def question(o: Any, i: Any) -> Any:
        o[0].retain_grad()
        o[1].register_hook(lambda g: g * 2)
        found = torch.autograd.grad(o[3], o[:3], retain_graph=True)
        o[3].backward()
        return *found, o[0].grad, i[0].grad, i[1].grad

    ask_both(fn, SIZES, question)


def test_input_that_is_written_to() -> None:
    def question(run: Function) -> Any:
        torch.manual_seed(0)
        leaf = torch.randn(4, requires_grad=True)
        x = leaf * 2
        out, once_more = run(x)
        x.retain_grad()
        out.sum().backward()
        return x.grad, leaf.grad, once_more.detach()

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(3)
        y = x + 1
        return y * 2 + x, y

    run = compiled(fn, [torch.randn(4, requires_grad=True) * 2])
    same(question(run), question(fn))


def test_random_numbers_are_those_of_the_forward() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        a = F.dropout(x @ w.t(), 0.5)
        return a, F.dropout(a.exp(), 0.5).sum()

    def question(o: Any, i: Any) -> Any:
        o[0].retain_grad()
        found = torch.autograd.grad(o[1], o[0], retain_graph=True)
        o[1].backward()
        return *found, o[0].grad, i[0].grad, i[1].grad, torch.rand(1)

    ask_both(fn, SIZES, question)


def test_a_module_with_statistics() -> None:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(4)

    def fn(x: Tensor, w: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        h = F.batch_norm(x * w, mean, variance, training=True)
        return h, h.relu().sum()

    answers = []
    for is_ours in (False, True):
        torch.manual_seed(0)
        x = torch.randn(3, 4, requires_grad=True)
        w = torch.randn(3, 4, requires_grad=True)
        statistics = [norm.running_mean.clone(), norm.running_var.clone()]
        run = compiled(fn, [x, w, *statistics]) if is_ours else fn
        h, loss = run(x, w, *statistics)
        h.retain_grad()
        loss.backward()
        answers.append((h.grad, x.grad, w.grad, *statistics))
    same(answers[1], answers[0])


def test_gradients_of_several_at_once() -> None:
    def question(o: Any, i: Any) -> Any:
        return torch.autograd.grad(
            o[1], [o[0], i[0]], torch.eye(12).view(12, 3, 4), is_grads_batched=True
        )

    ask_both(chain, SIZES, question)


def test_a_second_backward_needs_the_graph() -> None:
    x, w = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    a, _, c = compiled(chain, [x, w])(x, w)
    a.register_hook(lambda g: g)
    c.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        c.backward()


def test_a_pass_that_fails_leaves_nothing() -> None:
    x, w = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    run = compiled(chain, [x, w])

    def fail(g: Tensor) -> None:
        raise ValueError("by the user")

    a, _, c = run(x, w)
    hook = a.register_hook(fail)
    with pytest.raises(ValueError, match="by the user"):
        c.backward(retain_graph=True)
    hook.remove()
    a.retain_grad()
    c.backward()
    found = a.grad, x.grad, w.grad
    x.grad = w.grad = None
    a, _, c = chain(x, w)
    a.retain_grad()
    c.backward()
    same(found, (a.grad, x.grad, w.grad))


def test_penalties_of_two_outputs_that_are_computed_from_others() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        a, b = x * w, x.sin() * w
        return a, b, a.exp() * x, b.exp() * w

    def question(o: Any, i: Any) -> Any:
        found = torch.autograd.grad((o[2] + o[3]).sum(), o[:2], create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in found), [*o[:2], *i])
        return *(g.detach() for g in found), *second

    ask_both(fn, SIZES, question)


def test_nothing_is_kept_after_a_pass() -> None:
    x, w = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    run = compiled(chain, [x, w])
    outputs = run(x, w)
    outputs[0].retain_grad()
    context = outputs[2].grad_fn.next_functions[0][0]
    outputs[2].backward()
    alive = [weakref.ref(one) for one in (*outputs, context)]
    del outputs, context
    gc.collect()
    assert not any(one() is not None for one in alive)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is not told here")
@pytest.mark.parametrize("asks", [False, True])
def test_memory_does_not_grow(asks: bool) -> None:
    """Nodes of C++, which no garbage collector sees, hold nothing after a call."""
    x, w = (torch.randn(512, 512, requires_grad=True) for _ in range(2))  # 1 MiB each
    run = compiled(chain, [x, w])

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    for step in range(60):
        if step == 20:
            before = resident()
        outputs = run(x, w)
        if asks:
            outputs[0].retain_grad()
        outputs[2].backward()
        x.grad = w.grad = None
    assert resident() - before < 20 * x.nbytes


def test_what_cannot_be_run_again_is_refused() -> None:
    def fn(x: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        a = x * state.clone()
        state.add_(1)
        return a, (a * a).sum()

    x, state = torch.randn(3, requires_grad=True), torch.ones(3)
    a, b = compiled(fn, [x, state])(x, state)
    a.retain_grad()
    b.backward(retain_graph=True)
    torch.testing.assert_close((a.grad, x.grad), (2 * a.detach(), 2 * a.detach()))
    with pytest.raises(RuntimeError, match="by way of another, asked for through a compiled graph"):
        torch.autograd.grad(b, a, create_graph=True)


def test_a_loss_beside_the_logits_that_hooks_look_at() -> None:
    """As modules that are sharded give them, each with a hook: nothing is run again, and what the
    forward saved serves both parts of the backward."""
    ran: list[str] = []

    def compiler(graph: GraphModule, inputs: Any) -> Any:
        def run(*values: Any) -> Any:
            ran.append(" ".join(str(n.target) for n in graph.graph.nodes if n.op != "placeholder"))
            return graph.forward(*values)

        return run

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        logits = x @ w
        return torch.log_softmax(logits, -1)[:, 0].mean(), logits

    answers = []
    for ours in (False, True):
        torch.manual_seed(0)
        x, w = torch.randn(4, 6, requires_grad=True), torch.randn(6, 5, requires_grad=True)
        given = symbolic_trace(fn)
        run = aot_compile(given, [x, w], forward_compiler=compiler) if ours else fn
        loss, logits = run(x, w)
        seen: list[Any] = []
        for output in (loss, logits):
            output.register_hook(lambda g, seen=seen: seen.append(g.clone()))
        loss.backward()
        answers.append((*seen, x.grad, w.grad))
    same(answers[1], answers[0])
    assert [text.count("aten.mm.default") for text in ran] == [1, 0, 2]


@pytest.mark.parametrize("apart", [True, False], ids=["operators", "one operation"])
def test_derivative_that_is_computed_from_the_output_itself(apart: bool) -> None:
    """What autograd saves of `exp` for its backward is the output."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        a = x * 2
        b = a.exp()
        return a, b, (a * b).sum()

    x = torch.randn(3, requires_grad=True)
    graph = symbolic_trace(fn) if apart else as_graph(fn, 1)
    answers = []
    for run in (fn, aot_compile(graph, [x], forward_compiler=run_fx)):
        a, b, c = run(x)
        (g,) = torch.autograd.grad(c, a, create_graph=True)
        found = torch.autograd.grad(g.sum(), b, retain_graph=True)
        answers.append((*found, *torch.autograd.grad(g.sum(), [a, b, x])))
    same(answers[1], answers[0])


def test_third_order_is_refused() -> None:
    x, w = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    a, _, c = compiled(chain, [x, w])(x, w)
    (g,) = torch.autograd.grad(c, a, create_graph=True)
    with pytest.raises(RuntimeError, match="create_graph=True twice"):
        torch.autograd.grad(g.sum(), a, create_graph=True)


def test_compiled_autograd_passes_them() -> None:
    log = AotLog()
    x, w = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    run = compiled(chain, [x, w], log)
    context = compiled_autograd(lambda gm, _: gm)
    for _ in range(3):
        a, b, c = run(x, w)
        with context:
            (c + a.sum() + b.sum()).backward()
    assert log.by_way == 0
    report = context.report
    assert report.graphs == 2 and report.compiled == 1 and not report.on_engine
    found = x.grad, w.grad
    x.grad = w.grad = None
    for _ in range(3):
        a, b, c = chain(x, w)
        (c + a.sum() + b.sum()).backward()
    same(found, (x.grad, w.grad))


def leaves(count: int) -> list[Tensor]:
    return [torch.linspace(0.5, 1.5, 4).view(2, 2).requires_grad_() for _ in range(count)]


def everywhere(o: Any, i: Any) -> Any:
    """Gradients of inputs and outputs, by way of one another."""
    real = [one.abs() if one.is_complex() else one for one in o]
    loss = sum(one.sum() * n for n, one in enumerate(real, 2)) + i[0].sum()
    return torch.autograd.grad(loss, [*i, *o], allow_unused=True)


def with_hooks(o: Any, i: Any) -> Any:
    for one in dict.fromkeys((*i, *o)):
        one.register_hook(lambda g: g * 2)
    return everywhere(o, i)


def with_penalty(o: Any, i: Any) -> Any:
    last = o[-1].abs() if o[-1].is_complex() else o[-1]
    found = torch.autograd.grad(last.sum(), [*i, *o[:-1]], create_graph=True, allow_unused=True)
    real = [g for g in found if g is not None and g.requires_grad]
    if not real:
        return found
    return torch.autograd.grad(sum(g.abs().square().sum() for g in real), i, allow_unused=True)


def written_by_way_of_another(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    y.add_(1)
    x.add_(y, alpha=3)
    return y * 2, x * 3 + y


def written_by_way_of_a_view_of_a_result(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    h = y.exp()
    part = h[1:]
    x[1:].add_(part * 2)
    return part, h.t(), x * 3


def written_by_way_of_a_view_of_an_input(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    part = y[1:]
    x[1:].add_(part.sin())
    return part, x * 2


def written_by_way_of_a_view_of_a_written(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    y.add_(1)
    part = y[1:]
    x[1:].add_(part, alpha=2)
    return part, x * 2, x.sum() + part.sum()


def reshaped(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    before = x.exp()
    x.unsqueeze_(0)
    return before, x * x * y, x[0], x[0].sin() * y


def reshaped_and_one_result(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.t_()
    return (x * x * y,)


def reshaped_and_written_from(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.unsqueeze_(0)
    y.add_(x[0], alpha=2)
    return x * 2, y * 3


def strided_view_of_a_view(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    part = (x * y)[1:]
    strided = part.as_strided((2,), (1,))
    return part, strided, strided * y[0]


def strided_view_of_a_conjugate(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    conjugate = torch.complex(x, y)[1:].conj()
    return conjugate, conjugate.as_strided((2,), (1,))


def written_strided_view_of_a_conjugate(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    whole = torch.complex(x, y) * 1
    conjugate = whole.adjoint()
    strided = conjugate.as_strided((2,), (2,))
    strided.mul_(torch.complex(y[0], x[1]))
    return whole, conjugate, whole.sin()


def nothing_leads_to_inputs(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        view = x[:]  # it requires a gradient, but gives none on
    part = view[0]
    return part, part * part


CHANGING = [
    written_by_way_of_another, written_by_way_of_a_view_of_a_result,
    written_by_way_of_a_view_of_an_input, written_by_way_of_a_view_of_a_written, reshaped,
    reshaped_and_one_result, reshaped_and_written_from, strided_view_of_a_view,
    strided_view_of_a_conjugate, written_strided_view_of_a_conjugate,
]  # fmt: skip


@pytest.mark.parametrize("question", [everywhere, with_hooks, with_penalty])
@pytest.mark.parametrize("fn", CHANGING, ids=lambda fn: fn.__name__)
def test_by_way_of_what_changes_in_place_and_of_views(fn: Function, question: Function) -> None:
    run = aot_compile(as_graph(fn, 2), [one * 1 for one in leaves(2)], forward_compiler=run_fx)
    answers = []
    for each in (fn, run):
        inputs = [one * 1 for one in leaves(2)]
        answers.append(question(each(*inputs), inputs))
    same(answers[1], answers[0])


@pytest.mark.parametrize("question", [everywhere, with_hooks])
def test_by_way_of_what_leads_to_no_input(question: Function) -> None:
    test_by_way_of_what_changes_in_place_and_of_views(nothing_leads_to_inputs, question)


def test_view_of_an_input_of_before_that_changes_its_shape_is_refused() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        row = x[0]
        x.t_()
        return row, x * 2

    with pytest.raises(TraceError, match="a view of before that is returned"):
        aot_compile(as_graph(fn, 1), [leaves(1)[0] * 1], forward_compiler=run_fx)


def test_hook_on_an_input_that_no_output_leads_to_is_not_called() -> None:
    x, y = (one * 1 for one in leaves(2))
    run = aot_compile(as_graph(nothing_leads_to_inputs, 2), [x, y], forward_compiler=run_fx)
    calls: list[Any] = []
    x.register_hook(calls.append)
    run(x, y)[1].sum().backward()
    assert not calls


def test_penalty_by_way_of_what_no_input_leads_to_is_refused() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            view = x[:]
        a = view.clone()
        return a, a * a, x * 2

    x = leaves(1)[0] * 1
    a, b, _ = aot_compile(as_graph(fn, 1), [x], forward_compiler=run_fx)(x)
    with pytest.raises(RuntimeError, match="by way of another that no input leads to"):
        torch.autograd.grad(b.sum(), a, create_graph=True)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_programs(first: int) -> None:
    """A small budget; `output_asks.py` runs any number."""
    counts = output_asks.run_seeds(first, first + 100, output_asks.compiled_alone)
    assert counts["different"] == 0 and counts["equal"] > 5, dict(counts)


def test_asked_twice_where_a_write_changes_nothing() -> None:
    """The run by eager counts no write to the caller's tensor."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        v = x.t()
        with torch.no_grad():
            x.conj_physical_()  # (of real numbers: it is counted as a write)
        return v, (v * v).sin()

    answers = []
    for is_ours in (False, True):
        x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_().clone()
        run = aot_compile(as_graph(fn, 1), [x], forward_compiler=run_fx) if is_ours else fn
        v, out = run(x)
        found = [torch.autograd.grad(out.sum(), [v, x], retain_graph=True) for _ in range(2)]
        answers.append([*found[0], *found[1], x._version])
    same(answers[1], answers[0])
