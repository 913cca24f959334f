"""Calls in training that run no Python of ours between autograd and compiled code, and those that
have to: both behave as eager does."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aot_testing import TABLES, as_graph, run_fx
from dovetail_autograd_aot import aot_compile
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

TLS = (torch._C._dispatch_tls_local_exclude_set, torch._C._dispatch_tls_local_include_set)


def one(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return ((x * w).sin(),)


def two(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    first = x * w
    return first, first.exp()


def saved_output(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return ((x @ w.t()).tanh(),)


def with_constant(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (x * w).cos(), (x > 0).float()


def with_dropout(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (F.dropout(x * w, 0.5),)


def nothing_saved(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (x + w.neg(),)


FUNCTIONS = {
    f.__name__: f for f in (one, two, saved_output, with_constant, with_dropout, nothing_saved)
}


def new_inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.rand(4, 3, requires_grad=True), torch.rand(4, 3, requires_grad=True)


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compiled, and called often enough for the common backward to be known."""
    inputs = new_inputs()
    run = aot_compile(
        as_graph(fn, len(inputs)), inputs, forward_compiler=run_fx,
        decompositions=TABLES["core"], **options,
    )  # fmt: skip
    for _ in range(2):
        torch.autograd.grad(loss(run(*inputs)), inputs)
    return run


def loss(outputs: tuple[Tensor, ...]) -> Tensor:
    """Of dense gradients."""
    of = [o.square().sum() for o in outputs if o.requires_grad]
    return sum(of[1:], of[0])


def own_python(call: Callable[[], object]) -> list[str]:
    """Functions of the package that are entered while `call` runs."""
    entered: list[str] = []

    def profile(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and "dovetail_autograd_aot" in code.co_filename:
            entered.append(code.co_qualname)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


# Of two outputs each gets a node of its own after the forward, and before the backward it is asked
# whether gradients were taken apart; the state of random numbers is read in Python.
MOST = {"two": (3, 0), "with_dropout": (3, 0)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_common_step_enters_no_python_of_ours(name: str) -> None:
    run, inputs = compiled(FUNCTIONS[name]), new_inputs()
    outputs: list[Any] = []
    in_forward = own_python(lambda: outputs.append(loss(run(*inputs))))
    in_backward = own_python(lambda: outputs[0].backward())
    forward, backward = MOST.get(name, (0, 0))
    assert len(in_forward) <= forward, in_forward
    assert len(in_backward) <= backward, in_backward


def test_gradients_of_any_layout_enter_no_python_of_ours() -> None:
    run, inputs = compiled(one), new_inputs()
    for gradient in (torch.ones(()).expand(4, 3), torch.ones(3, 4).t()):
        (output,) = run(*inputs)
        found: list[Any] = []
        call = lambda: found.extend(torch.autograd.grad(output, inputs, gradient))  # noqa: B023, E731
        assert own_python(call) == []
        eager = torch.autograd.grad(one(*inputs), inputs, gradient)
        assert all(map(torch.equal, found, eager))


def answers(fn: Callable[..., Any], use: Callable[..., list[Any]]) -> list[Any]:
    """What a use of a function gives, errors as their types and first lines."""
    inputs = new_inputs()
    torch.manual_seed(1)
    try:
        found = use(fn, *inputs)
    except RuntimeError as error:
        found = [type(error), str(error).split(":")[0][:60]]
    return [*found, *(t.grad for t in inputs)]


def once(f: Callable[..., Any], x: Tensor, w: Tensor) -> list[Any]:
    outputs = f(x, w)
    loss(outputs).backward()
    return [*outputs]


def twice(f: Callable[..., Any], x: Tensor, w: Tensor) -> list[Any]:
    total = loss(f(x, w))
    total.backward(retain_graph=True)
    total.backward()
    return []


def after_it_is_freed(f: Callable[..., Any], x: Tensor, w: Tensor) -> list[Any]:
    output = next(o for o in reversed(f(x, w)) if o.requires_grad)
    output.backward(torch.ones_like(output))
    output.backward(torch.ones_like(output))
    return []


def of_one_input(f: Callable[..., Any], x: Tensor, w: Tensor) -> list[Any]:
    output = f(x, w)[0]
    ones = torch.ones_like(output)
    return [
        *torch.autograd.grad(output, x, ones, retain_graph=True),
        *torch.autograd.grad(output, w, ones),
    ]


def of_the_first_output(f: Callable[..., Any], x: Tensor, w: Tensor) -> list[Any]:
    outputs = f(x, w)
    outputs[0].sum().backward()
    return [*outputs]


def of_second_order(f: Callable[..., Any], x: Tensor, w: Tensor) -> list[Any]:
    first = torch.autograd.grad(loss(f(x, w)), (x, w), create_graph=True)
    return list(torch.autograd.grad(first[0].sum() + first[1].square().sum(), (x, w)))


def of_second_order_after_one(f: Callable[..., Any], x: Tensor, w: Tensor) -> list[Any]:
    total = loss(f(x, w))
    kept = torch.autograd.grad(total, (x, w), retain_graph=True)
    first = torch.autograd.grad(total, (x, w), create_graph=True)
    return [*kept, *torch.autograd.grad(first[0].square().sum(), (x, w))]


def of_a_batch(f: Callable[..., Any], x: Tensor, w: Tensor) -> list[Any]:
    output = f(x, w)[0]
    return list(
        torch.autograd.grad(output, (x, w), torch.rand(5, *output.shape), is_grads_batched=True)
    )


def with_hooks(f: Callable[..., Any], x: Tensor, w: Tensor) -> list[Any]:
    outputs = f(x, w)
    outputs[0].register_hook(lambda g: g * 2)
    x.register_hook(lambda g: g + 1)
    outputs[0].retain_grad()
    loss(outputs).backward()
    return [outputs[0].grad]


def with_saved_tensor_hooks(f: Callable[..., Any], x: Tensor, w: Tensor) -> list[Any]:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
        loss(f(x, w)).backward()
    return []


def a_lazy_gradient(f: Callable[..., Any], x: Tensor, w: Tensor) -> list[Any]:
    output = f(x, w)[0]
    ones = torch.ones(output.shape)
    gradient = torch.complex(ones, ones).conj().imag
    assert gradient.is_neg()
    return list(torch.autograd.grad(output, (x, w), gradient))


def in_anomaly_mode(f: Callable[..., Any], x: Tensor, w: Tensor) -> list[Any]:
    with torch.autograd.detect_anomaly(check_nan=True):
        loss(f(x, w)).backward()
    return []


def a_constant_asked(f: Callable[..., Any], x: Tensor, w: Tensor) -> list[Any]:
    return [(o.requires_grad, o.is_leaf, o._version) for o in f(x, w)]


USES = (
    once, twice, after_it_is_freed, of_one_input, of_the_first_output, of_second_order,
    of_second_order_after_one, of_a_batch, with_hooks, with_saved_tensor_hooks, a_lazy_gradient,
    in_anomaly_mode, a_constant_asked,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_eager_does_after_common_calls(name: str, use: Callable[..., list[Any]]) -> None:
    fn = FUNCTIONS[name]
    ours, eager = answers(compiled(fn), use), answers(fn, use)
    before = [get() for get in TLS]
    for found, wanted in zip(ours, eager, strict=True):
        if isinstance(wanted, Tensor):
            torch.testing.assert_close(found, wanted)
        else:
            assert found == wanted
    assert [get() for get in TLS] == before


def test_what_was_written_to_is_noticed() -> None:
    run = compiled(saved_output)
    for write in (lambda inputs, output: output.mul_(2), lambda inputs, output: inputs[0].mul_(2)):
        inputs = new_inputs()
        (output,) = run(*inputs)
        ones = torch.ones_like(output)
        with torch.no_grad():
            write(inputs, output)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.backward(ones)


def test_an_error_of_compiled_code_leaves_everything_as_it_was() -> None:
    fails = []

    def compiler(gm: Any, examples: Any) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            if fails:
                raise ValueError(fails[0])
            return gm(*inputs)

        return run

    inputs = new_inputs()
    run = aot_compile(as_graph(one, 2), inputs, forward_compiler=compiler)
    for _ in range(2):
        loss(run(*inputs)).backward()
    total = loss(run(*inputs))
    before = [torch.is_grad_enabled(), *(get() for get in TLS)]
    fails.append("told")
    with pytest.raises(ValueError, match="told"):
        run(*inputs)
    with pytest.raises(ValueError, match="told"):
        total.backward()
    assert [torch.is_grad_enabled(), *(get() for get in TLS)] == before


@pytest.mark.parametrize("name", FUNCTIONS)
def test_autocast_around_the_call_is_as_it_was(name: str) -> None:
    inputs = new_inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = [get() for get in TLS]
        run = compiled(FUNCTIONS[name])
        total = loss(run(*inputs))
        assert [get() for get in TLS] == before
        total.backward()
        assert [get() for get in TLS] == before


def test_a_compiled_backward_owns_what_was_saved() -> None:
    seen: list[list[int]] = []

    def compiler(gm: Any, examples: Any) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            return gm(*inputs)

        def consume(arguments: list[Any]) -> Any:
            own = [sys.getrefcount(value) for value in arguments]
            results = gm(*arguments)
            arguments.clear()
            seen.append(own)
            return results

        setattr(run, "run_consuming", consume)  # noqa: B010
        return run

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor]:
        return ((x @ w.t()).exp() @ w,)

    inputs = new_inputs()
    run = aot_compile(as_graph(fn, 2), inputs, forward_compiler=compiler)
    for _ in range(3):
        loss(run(*inputs)).backward()
    assert len(seen) == 3 and seen[1] == seen[2] and seen[1] <= seen[0], seen


def test_gradients_that_only_the_engine_has_are_freed_on_the_way() -> None:
    freed: list[bool] = []

    def compiler(gm: Any, examples: Any) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            return gm(*inputs)

        def consume(arguments: list[Any]) -> Any:
            results = gm(*arguments)
            gradient = StorageWeakRef(arguments[-1].untyped_storage())
            arguments.clear()
            freed.append(gradient.expired())
            return results

        setattr(run, "run_consuming", consume)  # noqa: B010
        return run

    def fn(x: Tensor) -> tuple[Tensor]:
        return (x.sin(),)

    x = torch.randn(512, 1024, requires_grad=True)
    run = aot_compile(as_graph(fn, 1), [x], forward_compiler=compiler)

    def step(backward: Callable[[Tensor], Any]) -> bool:
        """Whether the gradient was freed, in a backward that gives the right one."""
        x.grad, freed[:] = None, []
        backward(run(x)[0])
        assert x.grad is not None and torch.allclose(x.grad, 2 * x.sin() * x.cos())
        return freed.pop()

    def squares(y: Tensor) -> Tensor:
        return y.square().sum()

    step(lambda y: squares(y).backward())  # the first is no common one
    assert step(lambda y: squares(y).backward())
    assert step(lambda y: torch.autograd.backward(squares(y), inputs=[x]))
    kept = 2 * x.detach().sin()
    assert not step(lambda y: y.backward(kept))
    assert torch.equal(kept, 2 * x.detach().sin())
    seen: list[Tensor] = []

    def hooked(y: Tensor) -> None:
        y.register_hook(seen.append)
        squares(y).backward()

    def retaining(y: Tensor) -> None:
        y.retain_grad()
        squares(y).backward()
        assert y.grad is not None
        seen.append(y.grad)

    def with_node_hooks(y: Tensor) -> None:
        y.grad_fn.register_prehook(lambda gradients: seen.append(gradients[0]))
        y.grad_fn.register_hook(lambda _, gradients: seen.append(gradients[0]))
        squares(y).backward()

    def captured(y: Tensor) -> None:
        found = torch.autograd.grad(squares(y), [y, x])
        seen.append(found[0])
        x.grad = found[1]

    for way in (hooked, with_node_hooks, captured):
        assert not step(way)
    step(retaining)  # (torch may have made a copy)
    assert len(seen) == 5
    assert all(torch.allclose(gradient, kept) for gradient in seen)


def test_threads_share_a_compiled_graph() -> None:
    run, inputs, errors = compiled(two), new_inputs(), []

    def work() -> None:
        try:
            for _ in range(50):
                own = [t.detach().requires_grad_() for t in inputs]
                eager = torch.autograd.grad(loss(two(*own)), own)
                ours = torch.autograd.grad(loss(run(*own)), own)
                assert all(map(torch.allclose, ours, eager))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_what_was_compiled_is_freed() -> None:
    kept: list[Any] = []

    def compiler(gm: Any, examples: Any) -> Callable[..., Any]:
        kept.append(weakref.ref(gm))
        return run_fx(gm, examples)

    inputs = new_inputs()
    run = aot_compile(as_graph(two, 2), inputs, forward_compiler=compiler)
    for _ in range(3):
        loss(run(*inputs)).backward()
    del run
    gc.collect()
    assert len(kept) == 2 and all(graph() is None for graph in kept)
