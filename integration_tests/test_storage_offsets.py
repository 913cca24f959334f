"""Inputs whose storage offset differs from the first call's: batches cut out of a data set,
experts' weights out of a stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail

Fn = Callable[..., Any]


def turned_product(x: Tensor) -> Tensor:
    return (x @ x.t()).sin()


def views_out(x: Tensor) -> tuple[Tensor, ...]:
    return x.t(), x[1:], x.view(-1), (x * 2).t()


def written_view(x: Tensor) -> tuple[Tensor, Tensor]:
    v = x[1:]
    v.mul_(2)
    return v, x @ x


def windows(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:, :3] @ x[:3], x.unfold(0, 2, 1).sum()


def strided(x: Tensor) -> Tensor:
    return torch.as_strided(x, (2, 2), (1, 2)) + 1


def strided_in_storage(x: Tensor) -> Tensor:
    return torch.as_strided(x, (2, 2), (1, 2), 3) @ torch.ones(2, 2)


def asked(x: Tensor) -> Tensor:
    return x * x.storage_offset()


def library_calls(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.svdvals(x[1:4].t()), x.diagonal().sort().values


def other_type(x: Tensor) -> Tensor:
    return x.view(torch.int32)[:, :2].t() + 1


def filled(x: Tensor) -> Tensor:
    made = torch.empty(6, 6)
    made.t().copy_(x)
    return made @ x.t()


FUNCTIONS: list[Fn] = [
    turned_product, views_out, written_view, windows, strided, strided_in_storage, asked,
    library_calls, other_type, filled,
]  # fmt: skip


def results(fn: Fn, memory: Tensor, start: int, grads: bool) -> list[Tensor]:
    """What it returns, then what it wrote to and the gradient of all memory."""
    memory = memory.clone().requires_grad_(grads)
    out = fn(memory[start : start + 36].view(6, 6))
    found = list(out) if isinstance(out, tuple) else [out]
    if grads:
        torch.autograd.backward(torch.stack([t.square().sum() for t in found]).sum())
        assert memory.grad is not None
        found.append(memory.grad)
    return [t.detach() for t in [*found, memory]]


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: str(fn.__name__))
@pytest.mark.parametrize("starts", [(0, 36, 7), (36, 0, 72)], ids=str)
def test_an_input_elsewhere_in_its_storage(fn: Fn, starts: tuple[int, ...], backend: str) -> None:
    torch.manual_seed(0)
    memory = torch.randn(120)
    compiled = dovetail.compile(fn, backend=backend)
    for start in starts:
        for grads in (False, True):
            if grads and fn in (written_view, other_type):
                continue  # writes to a leaf's view; integers
            found = results(compiled, memory, start, grads)
            expected = results(fn, memory, start, grads)
            for ours, eager in zip(found, expected, strict=True):
                assert ours.shape == eager.shape and ours.stride() == eager.stride()
                torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)
    report = dovetail.report(compiled)
    # With gradients, and without; where the program asks: for the first offset, for 0, for others.
    assert report.graphs <= (6 if fn is asked else 2) and not report.breaks


def test_a_loop_over_experts() -> None:
    """Each call is given another piece of a stack of weights; the backward reads them again."""

    def expert(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).sin() @ w.t()

    stack = torch.randn(4, 8, 16)
    compiled = dovetail.compile(expert)
    for fn in (expert, compiled):
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
        weights = stack.clone().requires_grad_()
        total = torch.zeros(5, 8)
        for number in range(4):
            total = total + fn(x, weights[number])
        total.square().mean().backward()
        if fn is expert:
            expected = [x.grad, weights.grad]
    torch.testing.assert_close([x.grad, weights.grad], expected)
    assert dovetail.report(compiled).graphs == 1


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_inputs_apart_and_then_over_one_another(backend: str) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y.t() @ y

    compiled = dovetail.compile(fn, backend=backend)
    memory = torch.randn(120)
    for first, second in ((0, 36), (0, 0), (0, 6), (36, 36), (36, 72), (36, 42), (0, 36)):
        ours, eager = memory.clone(), memory.clone()
        found, expected = (
            f(m[first : first + 36].view(6, 6), m[second : second + 36].view(6, 6))
            for f, m in ((compiled, ours), (fn, eager))
        )
        torch.testing.assert_close(found, expected)
        assert torch.equal(ours, eager)


def with_gaps(x: Tensor) -> tuple[Tensor, ...]:
    made = torch.empty_strided(x.size(), (16, 1))
    made[:] = x * 2
    other = x.new_empty_strided((3, 4), (8, 2))
    other.zero_()
    other[1] += x[0, :4]
    return made, other, other.t()


def over_sequences(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.conv1d(x, weight.transpose(2, 1)).clone()


def test_memory_with_gaps_keeps_its_strides() -> None:
    compiled = dovetail.compile(with_gaps, fullgraph=True)
    x = torch.randn(6, 8, requires_grad=True)
    wanted, got = with_gaps(x), compiled(x)
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.stride() == theirs.stride()
    torch.testing.assert_close(got, wanted)
    (a,), (b,) = (torch.autograd.grad(sum(t.sin().sum() for t in f), x) for f in (got, wanted))
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_over_sequences_lie_as_eager_lays_them(dtype: torch.dtype) -> None:
    inputs = [torch.randn(2, 3, 9, dtype=dtype), torch.randn(4, 2, 3, dtype=dtype)]
    results = []
    for fn in (over_sequences, dovetail.compile(over_sequences, fullgraph=True)):
        given = [t.clone().requires_grad_() for t in inputs]
        made = fn(*given)
        results.append((made, *torch.autograd.grad(made.sin().sum(), given)))
    for theirs, mine in zip(*results, strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_whose_elements_lie_on_one_another(dynamic: bool) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y.expand(2, *x.shape).view(torch.int32), y.unfold(0, 2, 1).view(torch.int32)

    compiled = dovetail.compile(fn, dynamic=dynamic)
    for length in (6, 9):
        x = torch.arange(length)
        for ours, theirs in zip(compiled(x), fn(x), strict=True):
            assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()


@pytest.mark.parametrize("graded", ["nothing", "the factor", "the input"])
def test_a_call_whose_inputs_lie_as_nothing_compiled_may_is_eager_and_told(graded: str) -> None:
    """Captured for an input that begins where its memory does, called with one that does not."""

    def fn(x: Tensor, factor: Tensor) -> Tensor:
        return x.fill_diagonal_(0.5).mul_(factor) * 2

    compiled = dovetail.compile(fn)
    for start in (0, 4, 4, 0):
        found = []
        for call in (compiled, fn):
            leaf = torch.arange(16.0, requires_grad=graded == "the input")
            x = (leaf * 1)[start : start + 9].view(3, 3)
            x = x if leaf.requires_grad else x.detach()
            factor = torch.tensor(3.0, requires_grad=graded == "the factor")
            y = call(x, factor)
            wanted = [t for t in (leaf, factor) if t.requires_grad]
            found.append((y, x, *(torch.autograd.grad(y.sum(), wanted) if wanted else ())))
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    told = dovetail.report(compiled).as_text()
    if graded == "the input":  # (a view with a history: from the first call on)
        assert "a view that autograd takes anew of its base" in told
    elif graded == "the factor":
        why = "a write through as_strided"
        assert f"2 calls ran uncompiled, for where their inputs lie: {why}" in told
    else:
        assert "ran uncompiled" not in told
        assert "inputs that share memory lay in new ways: 1 compilations" in told


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_a_storage_that_is_written_to_before_the_backward(backend: str) -> None:
    """It has no version counter: what the backward computes again is computed from a copy of it."""

    def fn(x: Tensor) -> Tensor:
        made = (x + x).abs_()
        x.as_strided_((), ())
        x.neg_()
        return made

    found = []
    for call in (fn, dovetail.compile(fn, backend=backend)):
        leaf = torch.tensor([-0.7], requires_grad=True)
        x = leaf * 1
        (call(x).sum() + x.sum()).backward()
        found.append((x.detach(), leaf.grad))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_views_of_a_saved_copy_lie_as_the_copy(backend: str) -> None:
    """An input with gaps that is overwritten is saved without them."""

    def fn(x: Tensor) -> Tensor:
        x.data.copy_(x)
        y = torch.view_as_real(x)
        return y * y

    found = []
    for call in (fn, dovetail.compile(fn, backend=backend)):
        memory = torch.linspace(-1, 1, 24).view(2, 1, 6, 2)
        x = torch.view_as_complex(memory)[:, :, ::2].detach().requires_grad_()
        y = call(x)
        y.sum().backward()
        found.append((y.detach(), x.detach(), x.grad))
    torch.testing.assert_close(found[1], found[0])


PLACES_IN_STORAGE: dict[str, Fn] = {
    "a view": lambda x: torch.as_strided(x, (x.shape[0] - 2, 2), (1, 1), 1),
    "a value": lambda x: torch.as_strided(x, (x.shape[0] - 1, 2), (1, 1), 1) * 2,
    "beside a result": lambda x: (
        torch.as_strided(x + 1, (2, 2), (1, 2), 0),
        x.as_strided((2,), (2,), 1),
    ),
    "of a part": lambda x: torch.as_strided(x[1:], (2,), (1,), 0) * 3 + x[0],
}


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("name", PLACES_IN_STORAGE)
def test_places_in_the_storage_of_an_input_of_symbolic_sizes(name: str, graded: bool) -> None:
    fn = PLACES_IN_STORAGE[name]
    compiled = dovetail.compile(fn, backend="aot_eager", dynamic=True, fullgraph=True)
    for n, start in ((8, 0), (8, 0), (9, 0), (12, 0), (8, 3), (9, 1)):
        found = []
        for call in (fn, compiled):
            whole = torch.arange(20.0, requires_grad=graded) * 1
            results = call(whole[start : start + n])
            results = results if isinstance(results, tuple) else (results,)
            gradients = (
                torch.autograd.grad(sum(r.exp().sum() for r in results), whole) if graded else ()
            )
            found.append((*results, *gradients))
        torch.testing.assert_close(found[1], found[0])
