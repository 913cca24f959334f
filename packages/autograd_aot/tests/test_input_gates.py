"""What inputs were computed from is come to only from outputs that lead there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_testing import as_graph, run_fx, same_answers
from dovetail_autograd_aot import aot_compile, compiled_autograd
from torch import Tensor
from torch.fx import symbolic_trace

Function = Callable[..., Any]


def graph(y: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return y * 2 * w, z.sin() * w, (y * z * w).sum()


class Counted(torch.autograd.Function):
    """Counts its backwards: what the user's code does there."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Counted.calls += 1
        return gradient * 1


def one_after_another(o: Any, i: Any) -> None:
    o[0].sum().backward()
    o[1].sum().backward()


def one_alone(o: Any, i: Any) -> None:
    o[1].sum().backward()


def together(o: Any, i: Any) -> None:
    (o[0].sum() + o[1].sum() + o[2]).backward()


def of_one_input(o: Any, i: Any) -> Any:
    return torch.autograd.grad(o[0].sum(), i[0])


def of_an_input_behind_a_gate_and_one_that_is_not(o: Any, i: Any) -> Any:
    return torch.autograd.grad(o[1].sum(), [i[1], i[2]])


def of_second_order(o: Any, i: Any) -> None:
    (g,) = torch.autograd.grad(o[1].sum(), i[1], create_graph=True)
    g.square().sum().backward()


def kept_and_again(o: Any, i: Any) -> None:
    o[0].sum().backward(retain_graph=True)
    o[0].sum().backward()
    o[1].sum().backward()


def by_way_of_another(o: Any, i: Any) -> None:
    o[0].register_hook(lambda g: g * 2)
    o[2].backward()


def several_at_once(o: Any, i: Any) -> Any:
    return torch.autograd.grad(o[1], i[1], torch.eye(3), is_grads_batched=True)


QUESTIONS = [
    one_after_another, one_alone, together, of_one_input, kept_and_again, of_second_order,
    of_an_input_behind_a_gate_and_one_that_is_not, by_way_of_another, several_at_once,
]  # fmt: skip


def asked(run: Callable[..., Any], question: Callable[..., Any]) -> list[Any]:
    torch.manual_seed(0)
    leaves = [torch.randn(3, requires_grad=True) for _ in range(3)]
    Counted.calls = 0
    y, z = Counted.apply(leaves[0].exp()), Counted.apply(leaves[1].exp())
    found = question(run(y, z, leaves[2]), leaves) or ()
    return [*found, *(leaf.grad for leaf in leaves), Counted.calls]


def compiled() -> Callable[..., Any]:
    examples = [torch.ones(3, requires_grad=True) * 1 for _ in range(2)]
    examples.append(torch.ones(3, requires_grad=True))
    return aot_compile(symbolic_trace(graph), examples, forward_compiler=run_fx)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.__name__)
def test_answers_are_eagers(question: Callable[..., Any]) -> None:
    same_answers(asked(compiled(), question), asked(graph, question))


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.__name__)
def test_answers_are_eagers_of_what_was_compiled_for_leaves(question: Callable[..., Any]) -> None:
    examples = [torch.ones(3, requires_grad=True) for _ in range(3)]
    run = aot_compile(symbolic_trace(graph), examples, forward_compiler=run_fx)
    same_answers(asked(run, question), asked(graph, question))
    outputs = run(*examples)
    outputs[0].sum().backward()
    assert examples[0].grad is not None and examples[1].grad is None


def test_compiled_autograd_comes_through_gates() -> None:
    context = compiled_autograd(lambda gm, _: gm)
    run = compiled()

    def in_context(o: Any, i: Any) -> None:
        with context:
            (o[0].sum() + o[1].sum()).backward()

    for _ in range(3):
        same_answers(asked(run, in_context)[:-1], asked(graph, together_of_two)[:-1])
    assert context.report.compiled == 2 and not context.report.on_engine


def together_of_two(o: Any, i: Any) -> None:
    (o[0].sum() + o[1].sum()).backward()


def test_the_same_tensor_given_twice_in_a_run_by_eager() -> None:
    def fn(x: Tensor, again: Tensor) -> tuple[Tensor, ...]:
        v = x[1:]
        return v, (v * again[:2]).sin()

    def gradients(run: Callable[..., Any]) -> tuple[Tensor, ...]:
        x = torch.linspace(-1, 1, 3, requires_grad=True)
        v, out = run(x, x)
        return torch.autograd.grad(out.sum(), [v, x])

    example = torch.ones(3, requires_grad=True)
    run = aot_compile(symbolic_trace(fn), [example, example], forward_compiler=run_fx)
    same_answers(list(gradients(run)), list(gradients(fn)))


def written_by_autograd(y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    y.mul_(2)
    return z * 2, y * z


def overwritten(y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    y.copy_(z)
    return z * 2, y * z


def written_under_no_grad(y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    c, d = z * 2, y.exp()
    with torch.no_grad():
        y.add_(1)
    return c, d


def written_and_not_used(y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        y.add_(1)
    return z * 2, z.sin()


def written_and_not_used_with_one_output(y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        y.add_(1)
    return (z * 2,)


def reshaped(y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    c = z * 2
    y.unsqueeze_(0)
    return c, y * z


def of_one_output(number: int) -> Callable[..., Any]:
    def question(o: Any, i: Any) -> None:
        o[number].sum().backward()

    return question


def of_the_written(o: Any, i: Any) -> None:
    if i[0].requires_grad:
        i[0].sum().backward()


def of_everything(o: Any, i: Any) -> None:
    (sum(one.sum() for one in o) + i[0].sum()).backward()


WRITING = [
    written_by_autograd, overwritten, written_under_no_grad, written_and_not_used,
    written_and_not_used_with_one_output, reshaped,
]  # fmt: skip


class Seen(torch.autograd.Function):
    """Notes each gradient that comes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seen: list[Any]) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.seen = seen
        return x * 1.5

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.seen.append(gradient)
        return None if gradient is None else gradient * 1.5, None


def with_history(seen: tuple[list[Any], ...] = ([], [])) -> tuple[list[Tensor], list[Tensor]]:
    leaves = [torch.linspace(0.5, 1.5, 3, requires_grad=True) for _ in seen]
    return leaves, [Seen.apply(leaf, each) for leaf, each in zip(leaves, seen, strict=True)]


@pytest.mark.parametrize(
    "question", [of_one_output(0), of_one_output(-1), of_the_written, of_everything]
)
@pytest.mark.parametrize("fn", WRITING, ids=lambda fn: fn.__name__)
def test_inputs_that_are_written_to(fn: Function, question: Function) -> None:
    """What they were computed from is come to as in eager, and with the same gradients."""
    run = aot_compile(as_graph(fn, 2), with_history()[1], forward_compiler=run_fx)
    answers = []
    for each in (fn, run):
        seen: tuple[list[Any], list[Any]] = ([], [])
        leaves, inputs = with_history(seen)
        question(each(*inputs), inputs)
        answers.append([len(seen[0]), *seen[0], *seen[1], *(leaf.grad for leaf in leaves)])
    same_answers(answers[1], answers[0])


def test_hook_on_a_written_input_that_gets_no_gradient() -> None:
    examples = [torch.ones(3, requires_grad=True) * 1 for _ in range(2)]
    run = aot_compile(as_graph(written_and_not_used, 2), examples, forward_compiler=run_fx)
    y, z = examples
    calls: list[Any] = []
    y.register_hook(calls.append)
    outputs = run(y, z)
    (outputs[0].sum() + outputs[1].sum()).backward()
    assert not calls


def test_written_input_whose_gradient_cannot_be_computed() -> None:
    """Only the backwards that come to it fail."""

    def fn(y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        y.mul_(y)
        return z * 2, z.sin()

    run = aot_compile(as_graph(fn, 2), with_history()[1], forward_compiler=run_fx)
    answers = []
    for each in (fn, run):
        leaves, inputs = with_history()
        outputs = each(*inputs)
        (outputs[0].sum() + outputs[1].sum()).backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(inputs[0].sum(), leaves[0], retain_graph=True, allow_unused=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            inputs[0].sum().backward()
        answers.append([inputs[0].detach(), leaves[1].grad])
    same_answers(answers[1], answers[0])


def test_write_that_changes_nothing_gives_an_input_a_new_history() -> None:
    def fn(y: Tensor) -> tuple[Tensor, ...]:
        before = y * 2
        y.conj_physical_()  # (of real numbers)
        return before, y * 3

    run = aot_compile(as_graph(fn, 1), with_history()[1][:1], forward_compiler=run_fx)
    answers = []
    for each in (fn, run):
        leaves, inputs = with_history()
        outputs = each(inputs[0])
        loss = outputs[0].sum() + outputs[1].sum()
        answers.append(list(torch.autograd.grad(loss, [inputs[0], leaves[0]])))
    same_answers(answers[1], answers[0])


def test_write_that_changes_nothing_is_one_where_the_shape_changes_too() -> None:
    """What retains its gradient does so at the place between the two."""

    def fn(y: Tensor) -> tuple[Tensor, ...]:
        before = y * 2
        y.conj_physical_()  # (of real numbers)
        y.unsqueeze_(0)
        return before, y * 3

    run = aot_compile(as_graph(fn, 1), with_history()[1][:1], forward_compiler=run_fx)
    answers = []
    for each in (fn, run):
        leaves, inputs = with_history()
        inputs[0].retain_grad()
        outputs = each(inputs[0])
        (outputs[0].sum() + outputs[1].sum()).backward()
        answers.append([inputs[0].grad, leaves[0].grad])
    same_answers(answers[1], answers[0])


class Squared(torch.autograd.Function):
    """Its backward multiplies by what it takes besides, and gives that no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(x, factor)
        return x * x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, factor = ctx.saved_tensors
        return 2 * gradient * x * factor, None


def function_of_one(y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return Squared.apply(y, y.detach()), z.detach() + 1


def function_of_both(y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return Squared.apply(y, z), y.sin()


@pytest.mark.parametrize("second_order", [False, True])
@pytest.mark.parametrize("fn", [function_of_one, function_of_both], ids=lambda fn: fn.__name__)
def test_inputs_without_gradient_beside_a_function_of_the_user(
    fn: Function, second_order: bool
) -> None:
    """They are come to if the function takes them, and get gradients of second order."""
    run = aot_compile(as_graph(fn, 2), with_history()[1], forward_compiler=run_fx)
    answers = []
    for each in (fn, run):
        seen: tuple[list[Any], list[Any]] = ([], [])
        leaves, inputs = with_history(seen)
        outputs = each(*inputs)
        if second_order:
            (first,) = torch.autograd.grad(outputs[0].sum(), inputs[0], create_graph=True)
            first.sum().backward()
        else:
            outputs[0].sum().backward()
        visits = [len(each) for each in seen]
        answers.append([*visits, *(leaf.grad for leaf in leaves)])
    same_answers(answers[1], answers[0])


def test_gradients_by_way_where_no_whole_backward_can_be_computed() -> None:
    """What the error is not on the way of is told."""

    def fn(y: Tensor) -> tuple[Tensor, ...]:
        h = y * 2
        k = h.sin()
        h.add_(1)  # `sin` saved it
        return h, h * 3, k + h

    run = aot_compile(as_graph(fn, 1), with_history()[1][:1], forward_compiler=run_fx)
    for each in (fn, run):
        leaves, inputs = with_history()
        h, part, broken = each(inputs[0])
        (found,) = torch.autograd.grad(part.sum(), h, retain_graph=True)
        torch.testing.assert_close(found, torch.full((3,), 3.0))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(broken.sum(), leaves[0], allow_unused=True)


def test_gradients_by_way_of_a_written_input_where_no_backward_can_be_computed() -> None:
    def fn(y: Tensor) -> tuple[Tensor, ...]:
        y.add_(y.sin())
        return (y * 3,)

    run = aot_compile(as_graph(fn, 1), with_history()[1][:1], forward_compiler=run_fx)
    for each in (fn, run):
        _, inputs = with_history()
        try:
            found = torch.autograd.grad(each(inputs[0])[0].sum(), inputs[0])
        except RuntimeError as error:
            assert each is run and "by way of another" in str(error)
        else:
            torch.testing.assert_close(found[0], torch.full((3,), 3.0))


def test_views_of_a_result_whose_gradient_cannot_be_computed() -> None:
    """Only the backwards that come to it fail."""

    def fn(y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        h = y * z
        broken = h.sin() * 2
        with torch.no_grad():
            h.add_(1)  # `sin` saved it
        return broken[1:], broken[:2], z * 3, broken

    run = aot_compile(as_graph(fn, 2), with_history()[1], forward_compiler=run_fx)
    answers = []
    for each in (fn, run):
        leaves, inputs = with_history()
        outputs = each(*inputs)
        outputs[2].sum().backward()
        for number in (0, 1, 3):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                outputs[number].sum().backward(retain_graph=True)
        shared = outputs[0].untyped_storage().data_ptr() == outputs[3].untyped_storage().data_ptr()
        answers.append([shared, leaves[1].grad, *(o.detach() for o in outputs)])
    same_answers(answers[1], answers[0])


@pytest.mark.parametrize("again", [False, True])
def test_what_eagers_backward_raises_is_raised_on_the_way_to_an_input(again):
    """Not that the input were unused."""

    def fn(x, y):
        result = x * y * x
        y.add_(1)
        return (result,)

    x, y = torch.ones(3, requires_grad=True), torch.ones(3)
    run = aot_compile(as_graph(fn, 2), [x, y], forward_compiler=run_fx)
    for one in (run, fn):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(one(x, y)[0].sum(), x, create_graph=again)
