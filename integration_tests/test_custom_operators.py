"""Operators that users register: kernels in Python, gradients, lists of results."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail

ops = torch.ops.dovetail_custom


@torch.library.custom_op("dovetail_custom::product", mutates_args=())
def product(x: Tensor, y: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * y.numpy())  # refuses what requires a gradient


@product.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _product_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, y = ctx.saved_tensors
    return product(grad, y), product(grad, x)


product.register_autograd(_product_backward, setup_context=_save)


@torch.library.custom_op("dovetail_custom::halves", mutates_args=())
def halves(x: Tensor) -> tuple[list[Tensor], int]:
    return [part.clone() for part in x.chunk(2)], 7


@halves.register_fake
def _(x: Tensor) -> tuple[list[Tensor], int]:
    return [part.clone() for part in x.chunk(2)], 7


halves.register_autograd(
    lambda ctx, grads, _: torch.cat(grads), setup_context=lambda *_, **__: None
)


def products(x: Tensor, y: Tensor) -> Tensor:
    return product(x, product(x, y).sin()) * 2


def parts(x: Tensor, y: Tensor) -> Tensor:
    (first, second), number = halves(x * y)
    return first * second.cos() + number


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("program", [products, parts])
def test_kernels_in_python_and_their_gradients(
    program: Callable[..., Tensor], backend: str
) -> None:
    compiled = dovetail.compile(program, backend=backend, fullgraph=True)
    torch.manual_seed(0)
    leaves = [torch.randn(4, 3, requires_grad=True) for _ in range(2)]
    found = []
    for function in (program, compiled):
        result = function(*leaves)
        found.append((result, *torch.autograd.grad(result.sum(), leaves)))
    torch.testing.assert_close(found[1], found[0])
    with torch.no_grad():
        torch.testing.assert_close(compiled(*leaves), found[0][0])


# --- operators that write to their arguments -----------------------------------------------------


@torch.library.custom_op("dovetail_custom::scale_into", mutates_args={"out"})
def scale_into(x: Tensor, out: Tensor, by: float = 2.0) -> None:
    out.copy_(x * by)


@scale_into.register_fake
def _(x: Tensor, out: Tensor, by: float = 2.0) -> None:
    pass


@torch.library.custom_op("dovetail_custom::accumulate", mutates_args={"cache", "others"})
def accumulate(x: Tensor, cache: Tensor, others: list[Tensor]) -> Tensor:
    cache.add_(x)
    for other in others:
        other.mul_(2)
    return cache.sum(0)


@accumulate.register_fake
def _(x: Tensor, cache: Tensor, others: list[Tensor]) -> Tensor:
    return cache.sum(0)


_library: Any = torch.library.Library("dovetail_custom_defined", "FRAGMENT")
_library.define(
    "spread(Tensor(a!) x, Tensor[] parts, SymInt by, *, Tensor(b!)? noted, SymInt more=2) -> Tensor"
)
_library.define("note(Tensor x, Tensor(a!)? noted, Tensor(b!)? other=None) -> ()")


def spread(x: Tensor, parts: list[Tensor], by: int, noted: Tensor | None, more: int = 2) -> Tensor:
    x.add_(parts[0] * by * more)
    if noted is not None:
        noted.add_(parts[1])
    return parts[0] + parts[1]


def note(x: Tensor, noted: Tensor | None, other: Tensor | None = None) -> None:
    for target in (noted, other):
        if target is not None:
            target.add_(x.sum())


_library.impl("spread", spread, "CompositeExplicitAutograd")
_library.impl("note", note, "CompositeExplicitAutograd")
defined = torch.ops.dovetail_custom_defined


def optionally_written(x: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    own, noted = x.clone(), cache[0] + 1
    first = defined.spread(own, (x, cache[1]), 3, noted=noted)
    second = defined.spread(noted, [own, x], 2, noted=None, more=5)
    defined.note(x, None)
    defined.note(x, None, cache[0])
    defined.note(x, noted=own)
    return first, second, own, noted * 2


def written_parts(x: Tensor, cache: Tensor) -> Tensor:
    out = torch.empty_like(x)
    scale_into(x, out)
    shown = out.view(-1)
    ops.scale_into(out.sin(), cache[1], by=3.0)
    scale_into(x + 1, out)
    return shown + cache[1].reshape(-1)


def several_written(x: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    first, turned = x.cos(), x.t().contiguous().t()
    result = accumulate(x, cache[0], [first, turned])
    return result, first, turned * 1, cache * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "dovetail"])
@pytest.mark.parametrize("program", [written_parts, several_written, optionally_written])
def test_written_arguments(program: Callable[..., Any], backend: str) -> None:
    torch.manual_seed(0)
    x, cache = torch.randn(3, 4), torch.randn(2, 3, 4)
    compiled = dovetail.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        own = cache.clone()
        expected, found = program(x, cache), compiled(x, own)
        torch.testing.assert_close((found, own), (expected, cache))


def test_memory_that_another_argument_shows_breaks_the_graph() -> None:
    def shifted(x: Tensor) -> Tensor:
        scale_into(x[1:], x[:-1])
        return x * 2

    x = torch.arange(4.0)
    torch.testing.assert_close(dovetail.compile(shifted)(x.clone()), shifted(x.clone()))
    with pytest.raises(dovetail.CaptureError, match="writes to its arguments"):
        dovetail.compile(shifted, fullgraph=True)(x)


@pytest.mark.parametrize("backend", ["eager", "dovetail"])
def test_an_operator_that_captured_code_is_the_first_to_name(backend: str) -> None:
    name = f"named_first_by_{backend}"
    _library.define(f"{name}(Tensor x) -> Tensor")
    _library.impl(name, lambda x: x * 3, "CompositeExplicitAutograd")

    def f(x: Tensor) -> Tensor:
        return getattr(torch.ops.dovetail_custom_defined, name)(x) + 1

    compiled = dovetail.compile(f, backend=backend, fullgraph=True)
    for _ in range(2):  # (`torch.ops` keeps what it was asked for)
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 4.0))
    assert dovetail.report(compiled).graphs == 1


# --- sizes that depend on data -------------------------------------------------------------------


@torch.library.custom_op("dovetail_custom::positive", mutates_args=())
def positive(x: Tensor) -> Tensor:
    return x[x > 0]


@positive.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(max=x.numel()))


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_a_size_that_depends_on_data(backend: str) -> None:
    def f(x: Tensor) -> Tensor:
        return positive(x * 2).sin() + 1

    compiled = dovetail.compile(f, backend=backend, fullgraph=True)
    for x in (torch.tensor([1.0, -2.0, 3.0]), torch.tensor([-1.0, -2.0, 3.0]), -torch.ones(3)):
        torch.testing.assert_close(compiled(x), f(x))


def test_a_kernel_of_another_library_that_reads_data_is_not_run_without_it() -> None:
    """Its kernel in C++ is said to be for all devices: without data it ends the process."""
    pytest.importorskip("torchvision")
    pixels = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8)

    def program(x: torch.Tensor) -> torch.Tensor:
        written = torch.ops.image.encode_jpeg(x + 1, 90)
        return torch.ops.image.decode_jpeg(written, 0) + 1

    assert torch.equal(dovetail.compile(program)(pixels), program(pixels))


def test_an_operator_that_is_first_asked_for_in_the_program() -> None:
    with torch.library._scoped_library("dovetail_first_asked", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        library.impl("twice", lambda x: x * 2, "Meta")

        def program(x: torch.Tensor) -> torch.Tensor:
            return torch.ops.dovetail_first_asked.twice(x) + 1  # type: ignore[no-any-return]

        compiled = dovetail.compile(program, backend="eager", fullgraph=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
